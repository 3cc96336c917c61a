"""A URI with the path methods that the suites use."""

from __future__ import annotations


class UriPath(str):
    """A string to which names are joined with ``/``."""

    __slots__ = ()

    def __truediv__(self, name: str) -> UriPath:
        return UriPath(f"{self}/{name}")
