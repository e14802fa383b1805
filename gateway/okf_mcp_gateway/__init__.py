"""Many owners, kept fresh from git and served over HTTP."""
