"""Problems that verification detects, and the report of a verification."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Problem:
    """A problem in a file: its path relative to the dataset, and the byte offset if known.

    >>> str(Problem("train/csv-00000-of-00001.csv", "is cut off", 1234))
    'train/csv-00000-of-00001.csv at byte 1,234: is cut off'
    """

    file: str
    message: str
    offset: int | None = None

    def __str__(self) -> str:
        position = "" if self.offset is None else f" at byte {self.offset:,}"
        return f"{self.file}{position}: {self.message}"


@dataclass(frozen=True)
class VerifyReport:
    """The report of ``verify``."""

    dataset: str
    content_hash: str
    rows: int
    files: int
    bytes: int
    recomputed: bool
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether the files match the manifest."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        problems = [
            {"file": each.file, "message": each.message, "offset": each.offset}
            for each in self.problems
        ]
        return {
            "dataset": self.dataset,
            "ok": self.ok,
            "content_hash": self.content_hash,
            "rows": self.rows,
            "files": self.files,
            "bytes": self.bytes,
            "recomputed": self.recomputed,
            "problems": problems,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        state = "ok" if self.ok else "DAMAGED"
        lines = [f"{self.dataset}: {state}, {self.rows:,} rows, {self.files} files"]
        for finding in (*self.problems, *self.notes):
            lines.append(f"  {finding}")
        return "\n".join(lines)
