"""Manifests of training datasets: files, lineage and read rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated

from featurestore.errors import (
    DatasetDamaged,
    InvalidSplit,
    did_you_mean,
    listing,
)
from featurestore.model import display, json_object
from featurestore.model.json_object import JsonMapping, MalformedJson
from featurestore.model.names import check_name
from featurestore.model.paths import is_relative_path
from featurestore.model.plan import canonical_hash
from featurestore.model.records import (
    OMIT_DEFAULT,
    Checked,
    FeatureType,
    Range,
    Record,
    TimeText,
    Valid,
    Version,
    members,
)
from featurestore.model.roles import Role
from featurestore.model.window_features import WindowLineage, parse_plan_windows

MANIFEST_FORMAT = 1

# A manifest may come from another store: its paths must not lead outside of the dataset.
FilePath = Annotated[str, Valid(is_relative_path, "a path below the dataset")]
FileHash = Annotated[str, Valid(re.compile(r"[0-9a-f]{64}").fullmatch, "a SHA-256")]
_FILE = members({"path": FilePath, "sha256": FileHash})
_STATISTICS = members(
    {"path": FilePath, "sha256": FileHash}, {"sample": Annotated[JsonMapping | None, _FILE]}
)
_VIEW = members({"name": str, "version": Version})
# Sources of external groups without a snapshot are live.
_SOURCE = members(
    {"featuregroup": str, "version": Version, "delta_version": int},
    {"table_id": str | None, "live": bool},
)
_READ = members(
    {"source": str, "kind": str, "query": str, "rows": int},
    dict.fromkeys(("snapshot", "input", "high_water_mark"), str | None),
)

# The input of the content hash: the rules that determine the bytes, and the file hashes.
_CONTENT_FIELDS = (
    "format", "data_format", "seed", "key", "split_rule", "block_rows", "compression", "columns",
    "layout", "splits", "files", "uncovered_rows",
)  # fmt: skip


# The policies of ``missing_labels=``.
DROP, WEIGHT_ZERO = "drop", "weight_zero"
MISSING_LABELS = ("error", DROP, WEIGHT_ZERO)


def _is_directory_name(name: str) -> bool:
    return is_relative_path(name) and "/" not in name


@dataclass(frozen=True)
class ManifestColumn:
    """A column of the dataset files.

    ``type`` is the feature type as JSON (``arrow.schemas``); ``tf_type``, ``shape``, ``null``
    and ``loss`` are those of ``formats.ColumnEncoding``.
    """

    name: str
    type: FeatureType
    role: Role
    tf_type: str
    shape: tuple[int, ...] | None
    null: str
    loss: str | None = None

    __repr__ = display.record_repr


@dataclass(frozen=True)
class ManifestFile:
    """A file other than a shard: its path relative to the dataset, size, and SHA-256."""

    path: FilePath
    bytes: int
    sha256: FileHash


@dataclass(frozen=True)
class ManifestShard:
    """A shard: the rows ``[first_row, first_row + rows)`` of its split, in canonical order."""

    path: FilePath
    first_row: int
    rows: int
    bytes: int
    sha256: FileHash
    sidecars: tuple[ManifestFile, ...] = ()

    @property
    def files(self) -> tuple[ManifestFile, ...]:
        """The file of the shard and its sidecars.

        >>> [file.path for file in ManifestShard("train/csv-0", 0, 4, 32, "9f86d0").files]
        ['train/csv-0']
        """
        return (ManifestFile(self.path, self.bytes, self.sha256), *self.sidecars)


@dataclass(frozen=True)
class ManifestSplit(Record):
    """A split of a dataset.

    ``nulls`` counts the null cells of columns that contain nulls, ``label_counts`` counts the rows
    of each label value by label column, and ``label_weights`` are the derived class weights. Missing
    labels are only in ``nulls``: a label text "null" is a value.
    """

    name: Annotated[str, Valid(_is_directory_name, "the name of a directory")]
    rows: int
    bytes: int
    shards: tuple[ManifestShard, ...]
    nulls: Mapping[str, int] = field(default_factory=dict)
    label_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    label_weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    __repr__ = display.record_repr

    def check_json(self, data: JsonMapping) -> ManifestSplit:
        """Check that the shards cover the rows with contiguous ranges."""
        # Readers locate a row by arithmetic on these ranges, so a gap or an overlap returns wrong
        # rows.
        expected = 0
        for shard in self.shards:
            if shard.first_row != expected:
                raise MalformedJson(
                    f"{shard.path} begins at row {shard.first_row}, not at {expected}"
                )
            expected += shard.rows
        if self.rows != expected:
            expected_rows = f"{expected}, the number of rows in its shards"
            raise json_object.wrong_value_error(self.rows, expected_rows, path="rows")
        return self

    def value_counts(self, label: str) -> dict[str, int] | None:
        """Return the row count of each label value, None if the label has too many values.

        >>> split = ManifestSplit("train", 4, 0, (), {"y": 1}, {"y": {"a": 1, "null": 3}})
        >>> split.value_counts("y")  # of an earlier release
        {'a': 1, 'null': 2}
        """
        if label not in self.label_counts:
            return None
        counts = dict(self.label_counts[label])
        nulls = self.nulls.get(label, 0)
        # Earlier releases counted missing labels as "null", too, so that all rows were counted.
        if nulls and sum(counts.values()) == self.rows:
            counts["null"] -= nulls
        return {value: count for value, count in counts.items() if count}


@dataclass(frozen=True)
class MissingLabels:
    """The policy of an export for rows without label, "drop" or "weight_zero", and their number.

    >>> print(MissingLabels("drop", 1200))
    1,200 rows without label were dropped (missing_labels='drop')
    """

    policy: Annotated[str, Valid((DROP, WEIGHT_ZERO).__contains__, f"{DROP} or {WEIGHT_ZERO}")]
    rows: int

    def __str__(self) -> str:
        rows = f"{self.rows:,} rows" if self.rows != 1 else "1 row"
        verb = "were" if self.rows != 1 else "was"
        result = f"{verb} dropped"
        if self.policy == WEIGHT_ZERO:
            result = "have weight 0" if self.rows != 1 else "has weight 0"
        return f"{rows} without label {result} (missing_labels={self.policy!r})"


@dataclass(frozen=True)
class Manifest(Record, format=MANIFEST_FORMAT, subject="The manifest {name!r}"):
    """The metadata of a training dataset.

    ``content_hash`` identifies the data: the same rows, rules and seed result in the same hash in
    any store and on any engine. The origin of the rows (plan, sources) has a separate
    ``plan_hash``. ``view`` is the name and version of the feature view that the rows were retrieved
    from. ``uncovered_rows`` are outside all ranges of a TimeSplit; ``dropped_rows`` are label rows
    that an inner join dropped, or None without an inner join. ``prefixes`` contains the leading
    digits of the SHA-256 of the first 1, 2, ... MiB of each file longer than a MiB, which
    ``verify`` uses to locate damage. ``transformations`` is the path and SHA-256 of the
    transformations file. ``reads`` are the reads of registered sources, for labels and external
    feature groups. ``max_lengths`` are the declared maximum lengths. ``missing_labels`` is the
    policy for rows without label, unless it is "error", and the number of such rows.
    """

    # Paths are derived from the name, so a manifest of another store must not choose it freely.
    name: Annotated[str, Checked(partial(check_name, noun="training dataset"))]
    version: Version
    data_format: str
    # Row hashes take the seed modulo 2**64.
    seed: Annotated[int, Range(maximum=2**64 - 1)]
    key: tuple[str, ...]
    split_rule: JsonMapping
    block_rows: Annotated[int, Range(minimum=1)]
    compression: str | None
    columns: tuple[ManifestColumn, ...]
    layout: JsonMapping
    splits: tuple[ManifestSplit, ...]
    files: tuple[ManifestFile, ...]
    plan: JsonMapping | None
    plan_hash: str | None
    sources: tuple[Annotated[JsonMapping, _SOURCE], ...]
    reproducible: bool
    reproducible_reason: str | None
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    created: TimeText = ""
    run_id: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    statistics: Mapping[str, Annotated[JsonMapping, _STATISTICS]] = field(default_factory=dict)
    uncovered_rows: int = 0
    dropped_rows: int | None = None
    prefixes: Mapping[str, list[str]] = field(default_factory=dict)
    # Fields that were added later are absent when they are empty, as in earlier manifests.
    view: Annotated[JsonMapping | None, _VIEW, OMIT_DEFAULT] = None
    transformations: Annotated[Mapping[str, str] | None, _FILE, OMIT_DEFAULT] = None
    reads: Annotated[tuple[Annotated[JsonMapping, _READ], ...], OMIT_DEFAULT] = ()
    max_lengths: Annotated[Mapping[str, int], OMIT_DEFAULT] = field(default_factory=dict)
    missing_labels: Annotated[MissingLabels | None, OMIT_DEFAULT] = None

    __repr__ = display.record_repr

    def split(self, name: str) -> ManifestSplit:
        """Return a split by name; raise InvalidSplit with the existing splits if not found."""
        for candidate in self.splits:
            if candidate.name == name:
                return candidate
        names = [split.name for split in self.splits]
        raise InvalidSplit(
            f"Training dataset {self.name!r} version {self.version} has no split {name!r}. "
            f"Available: {listing(names)}.",
            hint=did_you_mean(name, names, write="{!r}"),
        )

    def column(self, name: str) -> ManifestColumn:
        """Return a column by name."""
        for candidate in self.columns:
            if candidate.name == name:
                return candidate
        raise InvalidSplit(
            f"Unknown column {name!r}. Available: {listing(column.name for column in self.columns)}."
        )

    @property
    def windows(self) -> tuple[WindowLineage, ...]:
        """The lineage of the window aggregates among the columns."""
        if self.plan is None:
            return ()
        columns = [column.name for column in self.columns]
        return tuple(parse_plan_windows(self.plan, columns=columns))

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the rules that determine the bytes, and of the file hashes."""
        return _content_hash(self.to_json())

    def to_bytes(self) -> bytes:
        """Return the contents of the manifest file.

        The file contains the JSON object with its content hash and a checksum of the whole.
        """
        data = self.to_json()
        return json_object.seal({**data, "content_hash": _content_hash(data)})

    @classmethod
    def from_bytes(cls, content: bytes, *, path: str) -> Manifest:
        """Parse the output of ``to_bytes``; any changed byte is detected.

        Args:
            content: The contents of the file.
            path: The path of the file, for error messages.

        Raises:
            DatasetDamaged: The contents differ from what was written.
            FormatTooNew: A newer release wrote the manifest.
        """
        try:
            # The format is checked before the checksum: a manifest of a newer release is not
            # damaged.
            format_number = json_object.parse_object(content).get("format")
            json_object.check_format(
                format_number, MANIFEST_FORMAT, subject=f"The manifest {path!r}"
            )
            data = json_object.unseal(content)
            manifest = cls.from_json(data)
        except MalformedJson as error:
            raise _damaged_error(path, str(error)) from error
        # A manifest can be edited and sealed again; the content hash ties it to its files.
        if data.get("content_hash") != manifest.content_hash:
            raise _damaged_error(path, f"its content hash should be {manifest.content_hash}")
        return manifest


def _damaged_error(path: str, reason: str) -> DatasetDamaged:
    return DatasetDamaged(
        f"The manifest {path!r} is damaged: {reason}.",
        hint="restore the file from a copy, or create the dataset again",
    )


def _content_hash(data: JsonMapping) -> str:
    return canonical_hash({name: data[name] for name in _CONTENT_FIELDS})


def format_source(source: JsonMapping) -> str:
    """Format a manifest source for display.

    >>> format_source({"featuregroup": "weather", "version": 1, "delta_version": 7})
    'weather@v1 Delta version 7'
    """
    group = f"{source['featuregroup']}@v{source['version']}"
    if source.get("live"):
        return f"{group}, external, without a snapshot"
    return f"{group} Delta version {source['delta_version']}"


def read_text(read: JsonMapping) -> str:
    """Format a source read for display.

    >>> read_text({"source": "source:shop", "rows": 3, "snapshot": "version 7", "query": "1a2b"})
    'source:shop 3 rows at version 7, query 1a2b'
    """
    return (
        f"{read['source']} {read['rows']:,} rows at {read['snapshot']}, query {read['query'][:8]}"
    )
