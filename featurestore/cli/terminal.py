"""Escaping of control characters in everything that commands print."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from featurestore.model.printable import printable


class EscapingStream(io.TextIOBase):
    """A stream that escapes control characters and writes to ``raw``.

    Results, errors, warnings and logs go through it, so that text in a store cannot control the
    terminal. Only the program's own text may be written to ``raw``: a progress bar moves the
    cursor.
    """

    def __init__(self, raw: TextIO) -> None:
        super().__init__()
        self.raw = raw

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.raw.encoding

    def write(self, text: str) -> int:
        self.raw.write(printable(text))
        return len(text)

    def flush(self) -> None:
        self.raw.flush()

    def isatty(self) -> bool:
        return self.raw.isatty()

    def fileno(self) -> int:
        return self.raw.fileno()

    def writable(self) -> bool:
        return True


@contextmanager
def escaping() -> Iterator[None]:
    """Escape control characters in standard output and standard error."""
    output, errors = sys.stdout, sys.stderr
    sys.stdout = EscapingStream(output)
    sys.stderr = EscapingStream(errors)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = output, errors


def raw_errors() -> TextIO:
    """Return standard error without escaping, for a progress bar."""
    if isinstance(sys.stderr, EscapingStream):
        return sys.stderr.raw
    return sys.stderr
