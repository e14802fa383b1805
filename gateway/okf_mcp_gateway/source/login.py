"""How a south token reaches git: a pipe, and `askpass.sh`, which reads it for one question (G4).

A variable would show the token to every process that git starts, an argument to every user of the
machine, and a file would outlive them all.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

MAX_TOKEN_BYTES: Final = 4096
"""What every system lets us write to a pipe that nobody reads yet, without waiting (`PIPE_BUF`)."""

_ASKPASS: Final = Path(__file__).parent / "askpass.sh"


@dataclass(frozen=True, slots=True)
class Login:
    """What one git process may answer when the host of `url` asks who it is."""

    url: str
    user: str
    token: str
    """As UTF-8, at most `MAX_TOKEN_BYTES`; one byte more is a `ValueError`."""

    def __post_init__(self) -> None:
        """Refuse a token that the pipe doesn't hold."""
        if len(self.token.encode()) > MAX_TOKEN_BYTES:
            raise ValueError(f"the token of this host is longer than {MAX_TOKEN_BYTES} bytes")

    def __repr__(self) -> str:
        return f"Login(url={self.url!r}, user={self.user!r}, token=***)"

    def variables(self, descriptor: int) -> dict[str, str]:
        """Return the variables that bind the token in the pipe `descriptor` to the host.

        git writes the user in its question as it is, or percent-encoded since version 2.48.
        """
        parts = urlsplit(self.url)
        prompt = f"Password for '{parts.scheme}://{{user}}@{parts.netloc}': "
        return {
            "GIT_ASKPASS": str(_ASKPASS),
            "OKF_ASKPASS_FD": str(descriptor),
            "OKF_ASKPASS_PROMPT": prompt.format(user=self.user),
            "OKF_ASKPASS_PROMPT_ENCODED": prompt.format(user=quote(self.user, safe="")),
        }

    @property
    def configuration(self) -> dict[str, str]:
        """What git is told beforehand: the user, so that it asks for the password alone."""
        parts = urlsplit(self.url)
        return {f"credential.{parts.scheme}://{parts.netloc}.username": self.user}

    @contextmanager
    def hand_over(self) -> Generator[tuple[dict[str, str], tuple[int, ...]]]:
        """Yield what a git process needs: its variables, and the descriptors to pass to it.

        Ours are closed afterwards.
        """
        read_end, write_end = os.pipe()
        try:
            with os.fdopen(write_end, "wb") as pipe:
                pipe.write(self.token.encode())
            yield self.variables(read_end), (read_end,)
        finally:
            os.close(read_end)
