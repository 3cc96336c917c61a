"""What an external feature group is: rows of a registered source, under a definition of the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from featurestore.errors import InvalidArgument, did_you_mean
from featurestore.model.names import check_name

# When the store keeps a copy of the rows: for each training dataset, or not at all.
SNAPSHOTS = ("training", "never")


@dataclass(frozen=True)
class ExternalRows:
    """Where the rows of an external feature group are: a table, a query or files of a source.

    ``snapshots`` "training" copies them into the store when a training dataset is made of them,
    which can then be made again; "never" keeps no copy. ``rename`` is the option of that name.
    """

    source: str
    table: str | None = None
    sql: str | None = None
    path: str | None = None
    snapshots: str = "training"
    rename: str | None = None

    def __post_init__(self) -> None:
        check_name(self.source, noun="source")
        if self.snapshots not in SNAPSHOTS:
            raise InvalidArgument(
                f"snapshots={self.snapshots!r} is not known. 'training' copies the rows that a "
                "training dataset uses into the store, 'never' does not.",
                hint=did_you_mean(self.snapshots, SNAPSHOTS, write="snapshots={!r}")
                or "snapshots='training'",
            )

    def __str__(self) -> str:
        for name in ("table", "sql", "path"):
            value = getattr(self, name)
            if value is not None:
                return f"source {self.source!r}, {name}={' '.join(value.split())!r}"
        return f"source {self.source!r}"

    def to_json(self) -> dict[str, Any]:
        """Return the definition as a JSON object that ``from_json`` reads back equal."""
        data: dict[str, Any] = {"source": self.source, "snapshots": self.snapshots}
        for name in ("table", "sql", "path", "rename"):
            if getattr(self, name) is not None:
                data[name] = getattr(self, name)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ExternalRows:
        """Return the definition that ``to_json`` wrote; ValueError when it is anything else."""
        rows = cls(**dict(data))
        for value in vars(rows).values():
            if not isinstance(value, str | None):
                raise ValueError(f"{value!r} is no text")
        return rows
