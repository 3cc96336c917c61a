"""A URI with the path methods that the suites use."""

from __future__ import annotations


class UriPath(str):
    """Text to which names are added with ``/``."""

    __slots__ = ()

    def __truediv__(self, name: str) -> UriPath:
        return UriPath(f"{self}/{name}")
