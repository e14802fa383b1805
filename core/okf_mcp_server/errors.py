"""The base of every error that is ours."""


class OkfError(Exception):
    """Something went wrong that a user can act on; `str(error)` is a sentence for that user."""
