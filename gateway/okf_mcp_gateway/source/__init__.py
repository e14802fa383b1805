"""Where documents come from: git, its processes and its copies on disk."""
