"""Invalid rows of files: refused with file, line and column, or skipped and counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from featurestore.errors import InvalidSourceFile
from featurestore.plugins.source import BadRow
from featurestore_connectors.sources.folders.listing import FolderFile

_MAX_STORED = 10_000
_SHOWN = 120


@dataclass(frozen=True)
class TableName:
    """The table that is read, for messages and the calls in their hints.

    ``options`` are the options of the reading call, ``declared`` the types of ``dtypes``.
    """

    source: str
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)

    def call(self, **options: object) -> str:
        """Return the call that reads the table with more options.

        >>> TableName("lake", "orders").call(dtypes={"zip": "string"})
        "read_source('lake', path='orders', dtypes={'zip': 'string'})"
        """
        arguments = [repr(self.source)]
        if self.path is not None:
            arguments.append(f"path={self.path!r}")
        if isinstance(options.get("dtypes"), Mapping):
            options["dtypes"] = {**self.declared, **options["dtypes"]}  # type: ignore[dict-item]
        merged = {**self.options, **options}
        arguments += [f"{name}={value!r}" for name, value in merged.items()]
        return f"read_source({', '.join(arguments)})"

    def refusal(self, message: str, *, hint: str | None = None) -> InvalidSourceFile:
        """Return the error for invalid files."""
        return InvalidSourceFile(f"Source {self.source!r}: {message}", hint=hint)


@dataclass
class BadRows:
    """Handler of invalid rows: raises an error, or counts them in quarantine.

    The first 10,000 are stored with their text.
    """

    table: TableName
    quarantines: bool
    count: int = 0
    rows: list[BadRow] = field(default_factory=list)

    def add(self, row: BadRow, *, hint: str | None = None) -> None:
        """Count a row.

        Raises:
            InvalidSourceFile: The options do not quarantine rows.
        """
        if not self.quarantines:
            column = "" if row.column is None else f", column {row.column!r}"
            raise self.table.refusal(
                f"{row.file} line {row.line}{column}: {row.reason}.",
                hint=hint
                or f"{self.table.call(on_bad_rows='quarantine')} leaves such rows out and counts "
                "them",
            )
        self.count += 1
        if len(self.rows) < _MAX_STORED:
            self.rows.append(row)


def start_of(text: str) -> str:
    """Return the beginning of a line, for messages."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def unreadable(file: FolderFile, table: TableName, error: Exception) -> InvalidSourceFile:
    """Return the error for a file whose bytes cannot be read or decompressed."""
    return table.refusal(f"{file.name} cannot be read, or is damaged: {error}.")
