"""The result of verifying a Delta table, which grows during the verification."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from featurestore.model.verification import FileProblem

COPY_HINT = "restore it from a copy"


@dataclass
class TableVerification:
    """The progress and the result of a verification; paths are relative to the table."""

    path: str
    latest: int = -1
    rows: int = 0
    files: int = 0
    bytes: int = 0
    commits: int = 0
    checkpoints: int = 0
    problems: list[FileProblem] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)

    def add_problem(
        self, file: str, message: str, *, version: int | None = None, hint: str = COPY_HINT
    ) -> None:
        """Add a problem of a file."""
        relative = file.removeprefix(os.path.join(self.path, ""))
        self.problems.append(FileProblem(relative, message, version, hint))
