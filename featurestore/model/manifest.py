"""The manifest of a training dataset: what the files are, where they came from, how to read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from featurestore.errors import InvalidSplit, listing
from featurestore.model.plan import canonical_hash

MANIFEST_FILE = "manifest.json"
MANIFEST_FORMAT = 1
Role = Literal["feature", "label", "key", "time"]

# What the content hash covers: the rules that decide the bytes, and the bytes' own hashes.
_CONTENT = (
    "format", "data_format", "seed", "key", "split_rule", "block_rows", "compression", "columns", "layout", "splits",
    "files", "uncovered_rows",
)  # fmt: skip


@dataclass(frozen=True)
class ManifestColumn:
    """One column of the files.

    ``type`` is the feature type as JSON (``model.arrow_json``); ``tf_type``, ``shape``, ``null`` and ``loss``
    are those of ``formats.ColumnEncoding``.
    """

    name: str
    type: Any
    role: Role
    tf_type: str
    shape: tuple[int, ...] | None
    null: str
    loss: str | None = None


@dataclass(frozen=True)
class ManifestFile:
    """A file beside the shards: path relative to the dataset, size, SHA-256."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ManifestShard:
    """One shard: the rows ``[first_row, first_row + rows)`` of its split, in canonical order."""

    path: str
    first_row: int
    rows: int
    bytes: int
    sha256: str
    sidecars: tuple[ManifestFile, ...] = ()


@dataclass(frozen=True)
class ManifestSplit:
    """One split; ``nulls`` counts null cells of the columns that have any; ``label_counts`` per label column."""

    name: str
    rows: int
    bytes: int
    shards: tuple[ManifestShard, ...]
    nulls: Mapping[str, int] = field(default_factory=dict)
    label_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    label_weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """Everything about a training dataset except its rows.

    ``content_hash`` is what proves the data: the same rows, rules and seed give the same hash in any store,
    whichever engine wrote the files. Where the rows came from (plan, sources) has its own ``plan_hash``.
    ``uncovered_rows`` lie in no range of a TimeSplit; ``dropped_rows`` are label rows that an inner join left out,
    None without such a join. ``prefixes``: for each file longer than a MiB the first digits of the SHA-256 of its first
    1, 2, ... MiB, by which ``verify`` finds where a damaged file begins to differ.
    """

    name: str
    version: int
    data_format: str
    seed: int
    key: tuple[str, ...]
    split_rule: Mapping[str, Any]
    block_rows: int
    compression: str | None
    columns: tuple[ManifestColumn, ...]
    layout: Mapping[str, Any]
    splits: tuple[ManifestSplit, ...]
    files: tuple[ManifestFile, ...]
    plan: Mapping[str, Any] | None
    plan_hash: str | None
    sources: tuple[Mapping[str, Any], ...]
    reproducible: bool
    reproducible_reason: str | None
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    run_id: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)
    uncovered_rows: int = 0
    dropped_rows: int | None = None
    prefixes: Mapping[str, list[str]] = field(default_factory=dict)

    def split(self, name: str) -> ManifestSplit:
        """Return a split by name; InvalidSplit lists those that exist."""
        for each in self.splits:
            if each.name == name:
                return each
        raise InvalidSplit(
            f"Training dataset {self.name!r} version {self.version} has no split {name!r}; "
            f"it has {listing(split.name for split in self.splits)}."
        )

    def column(self, name: str) -> ManifestColumn:
        """Return a column by name."""
        for each in self.columns:
            if each.name == name:
                return each
        raise InvalidSplit(
            f"No column {name!r}; there are {listing(column.name for column in self.columns)}."
        )

    @property
    def content_hash(self) -> str:
        """SHA-256 over what decides the bytes and the bytes' own hashes."""
        data = self.to_json()
        return canonical_hash({part: data[part] for part in _CONTENT})

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that ``from_json`` reads back equal."""
        return {"format": MANIFEST_FORMAT, **_plain(asdict(self))}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        """Return the manifest that ``to_json`` wrote."""
        known = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        return cls(
            **{
                **known,
                "key": tuple(data["key"]),
                "columns": tuple(_column(each) for each in data["columns"]),
                "splits": tuple(_split(each) for each in data["splits"]),
                "files": tuple(ManifestFile(**each) for each in data["files"]),
                "sources": tuple(data["sources"]),
            }
        )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value


def _column(data: Mapping[str, Any]) -> ManifestColumn:
    shape = data["shape"]
    return ManifestColumn(**{**data, "shape": None if shape is None else tuple(shape)})


def _split(data: Mapping[str, Any]) -> ManifestSplit:
    shards = tuple(
        ManifestShard(
            **{**shard, "sidecars": tuple(ManifestFile(**each) for each in shard["sidecars"])}
        )
        for shard in data["shards"]
    )
    return ManifestSplit(**{**data, "shards": shards})
