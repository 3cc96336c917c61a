"""A URI with the few habits of a path that the suites use."""

from __future__ import annotations


class UriPath(str):
    """Text to which names are added with ``/``."""

    __slots__ = ()

    def __truediv__(self, name: str) -> UriPath:
        return UriPath(f"{self}/{name}")
