"""The places of the requests that run: one that waits for a pull gives its own to others (H10).

So an owner whose source hangs keeps no place from the readers of another.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from starlette.types import Scope

_PLACE: Final = "okf.place"


class Places:
    """How many requests run, and how many may; written by them, on the event loop."""

    def __init__(self, count: int) -> None:
        self._free = count

    def take(self) -> "Place | None":
        """Return a place; None if all are taken."""
        return Place(self) if self._free > 0 else None

    def add(self, count: int) -> None:
        """Change how many are free; those who come back from waiting may make it negative."""
        self._free += count


class Place:
    """One request's place, from when it is made until it is left."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._is_taken = False
        self.take()

    def take(self) -> None:
        """Have it, though there may be more requests than places for a moment."""
        if not self._is_taken:
            self._is_taken = True
            self._places.add(-1)

    def leave(self) -> None:
        """Give it back, if it is not given back."""
        if self._is_taken:
            self._is_taken = False
            self._places.add(1)

    def give_to(self, scope: Scope) -> Scope:
        """Return the scope of the request whose place this is."""
        return {**scope, _PLACE: self}


@contextmanager
def waiting(scope: Scope) -> Generator[None]:
    """Leave the request's place to others in the meantime."""
    place: Place | None = scope.get(_PLACE)
    if place is not None:
        place.leave()
    try:
        yield
    finally:
        if place is not None:
            place.take()
