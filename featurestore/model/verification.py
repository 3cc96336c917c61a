"""The result of verifying the files of a feature group."""

from __future__ import annotations

from dataclasses import dataclass

from featurestore.model import display
from featurestore.model.records import Record

_REPORT_KEYS = (
    "featuregroup", "ok", "delta_version", "rows", "files", "bytes", "commits", "checkpoints",
    "problems", "unverified",
)  # fmt: skip


@dataclass(frozen=True)
class FileProblem(Record, closed=True):
    """A problem in a file of a table.

    Attributes:
        file: The path of the file in the folder of the table.
        message: What is wrong.
        delta_version: The commit that wrote the file, None if unknown.
        hint: What to do.

    >>> str(FileProblem("part-0.parquet", "is missing", 3, "restore it from a copy"))
    'part-0.parquet of Delta version 3: is missing. Hint: restore it from a copy'
    """

    file: str
    message: str
    delta_version: int | None = None
    hint: str | None = None

    __repr__ = display.record_repr

    def __str__(self) -> str:
        version = "" if self.delta_version is None else f" of Delta version {self.delta_version}"
        hint = "" if self.hint is None else f". Hint: {self.hint}"
        return f"{self.file}{version}: {self.message}{hint}"


@dataclass(frozen=True)
class GroupVerifyReport(Record, keys=_REPORT_KEYS, closed=True):
    """The result of verifying a feature group.

    Attributes:
        featuregroup: The name and version.
        delta_version: The last version in the log.
        rows: The rows of the checked files of this version.
        files: The number of checked data files, including those that only older versions need.
        bytes: Their size.
        commits: The number of checked commits.
        checkpoints: The number of checked checkpoints.
        problems: Missing and changed files.
        unverified: Commits and files without checksums, which other programs or earlier versions
            of this library wrote.
    """

    featuregroup: str
    delta_version: int
    rows: int
    files: int
    bytes: int
    commits: int
    checkpoints: int
    problems: tuple[FileProblem, ...] = ()
    unverified: tuple[str, ...] = ()

    __repr__ = display.record_repr

    @property
    def ok(self) -> bool:
        """Whether all checked files match the checksums in the log."""
        return not self.problems

    def __str__(self) -> str:
        state = "ok" if self.ok else "DAMAGED"
        counts = f"{self.rows:,} rows, {self.files} files, {self.commits} commits"
        lines = [f"{self.featuregroup}: {state}, {counts}"]
        lines += [f"  {finding}" for finding in (*self.problems, *self.unverified)]
        return "\n".join(lines)
