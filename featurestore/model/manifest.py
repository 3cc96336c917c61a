"""Manifests of training datasets: files, lineage and read rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from featurestore.errors import (
    DatasetDamaged,
    InvalidName,
    InvalidSplit,
    did_you_mean,
    listing,
)
from featurestore.model import display
from featurestore.model.json_object import (
    JsonDict,
    JsonMapping,
    JsonObject,
    MalformedJson,
    check_format,
    parse_object,
    seal,
    unseal,
)
from featurestore.model.names import check_name
from featurestore.model.paths import is_relative_path
from featurestore.model.plan import canonical_hash
from featurestore.model.roles import ROLES, Role
from featurestore.model.window_features import WindowLineage, parse_plan_windows

MANIFEST_FORMAT = 1

_SHA256 = re.compile(r"[0-9a-f]{64}")

# The input of the content hash: the rules that determine the bytes, and the file hashes.
_CONTENT_FIELDS = (
    "format", "data_format", "seed", "key", "split_rule", "block_rows", "compression", "columns",
    "layout", "splits", "files", "uncovered_rows",
)  # fmt: skip


# The policies of ``missing_labels=``.
DROP, WEIGHT_ZERO = "drop", "weight_zero"
MISSING_LABELS = ("error", DROP, WEIGHT_ZERO)


@dataclass(frozen=True)
class ManifestColumn:
    """A column of the dataset files.

    ``type`` is the feature type as JSON (``arrow.schemas``); ``tf_type``, ``shape``, ``null``
    and ``loss`` are those of ``formats.ColumnEncoding``.
    """

    name: str
    type: Any
    role: Role
    tf_type: str
    shape: tuple[int, ...] | None
    null: str
    loss: str | None = None

    __repr__ = display.record_repr


@dataclass(frozen=True)
class ManifestFile:
    """A file other than a shard: its path relative to the dataset, size, and SHA-256."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ManifestShard:
    """A shard: the rows ``[first_row, first_row + rows)`` of its split, in canonical order."""

    path: str
    first_row: int
    rows: int
    bytes: int
    sha256: str
    sidecars: tuple[ManifestFile, ...] = ()

    @property
    def files(self) -> tuple[ManifestFile, ...]:
        """The file of the shard and its sidecars.

        >>> [file.path for file in ManifestShard("train/csv-0", 0, 4, 32, "9f86d0").files]
        ['train/csv-0']
        """
        return (ManifestFile(self.path, self.bytes, self.sha256), *self.sidecars)


@dataclass(frozen=True)
class ManifestSplit:
    """A split of a dataset.

    ``nulls`` counts the null cells of columns that contain nulls, ``label_counts`` counts the rows
    of each label value by label column, and ``label_weights`` are the derived class weights. Missing
    labels are only in ``nulls``: a label text "null" is a value.
    """

    name: str
    rows: int
    bytes: int
    shards: tuple[ManifestShard, ...]
    nulls: Mapping[str, int] = field(default_factory=dict)
    label_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    label_weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    __repr__ = display.record_repr

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

    policy: str
    rows: int

    def __str__(self) -> str:
        rows = f"{self.rows:,} rows" if self.rows != 1 else "1 row"
        verb = "were" if self.rows != 1 else "was"
        result = f"{verb} dropped"
        if self.policy == WEIGHT_ZERO:
            result = "have weight 0" if self.rows != 1 else "has weight 0"
        return f"{rows} without label {result} (missing_labels={self.policy!r})"


@dataclass(frozen=True)
class Manifest:
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

    name: str
    version: int
    data_format: str
    seed: int
    key: tuple[str, ...]
    split_rule: JsonMapping
    block_rows: int
    compression: str | None
    columns: tuple[ManifestColumn, ...]
    layout: JsonMapping
    splits: tuple[ManifestSplit, ...]
    files: tuple[ManifestFile, ...]
    plan: JsonMapping | None
    plan_hash: str | None
    sources: tuple[JsonMapping, ...]
    reproducible: bool
    reproducible_reason: str | None
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    run_id: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    statistics: JsonMapping = field(default_factory=dict)
    uncovered_rows: int = 0
    dropped_rows: int | None = None
    prefixes: Mapping[str, list[str]] = field(default_factory=dict)
    view: JsonMapping | None = None
    transformations: Mapping[str, str] | None = None
    reads: tuple[JsonMapping, ...] = ()
    max_lengths: Mapping[str, int] = field(default_factory=dict)
    missing_labels: MissingLabels | None = None

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

    def to_json(self) -> JsonDict:
        """Convert to a JSON object, the inverse of ``from_json``."""
        data = {"format": MANIFEST_FORMAT, **_to_plain_json(self)}
        # Fields that were added later are absent when they are empty, as in earlier manifests.
        for name in ("view", "transformations", "reads", "max_lengths", "missing_labels"):
            if not data[name]:
                del data[name]
        return data

    @classmethod
    def from_json(cls, data: object) -> Manifest:
        """Parse the output of ``to_json``.

        Raises:
            MalformedJson: A value is missing or out of range, or a path leads outside the dataset.
        """
        return _parse_manifest(JsonObject.from_value(data))

    def to_bytes(self) -> bytes:
        """Return the contents of the manifest file.

        The file contains the JSON object with its content hash and a checksum of the whole.
        """
        data = self.to_json()
        return seal({**data, "content_hash": _content_hash(data)})

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
            format_number = parse_object(content).get("format")
            check_format(format_number, MANIFEST_FORMAT, subject=f"The manifest {path!r}")
            data = unseal(content)
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


def _to_plain_json(value: Any) -> Any:
    # ``dataclasses.asdict`` would copy every string and number of the layout on its own.
    if is_dataclass(value):
        return {each.name: _to_plain_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {key: _to_plain_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return list(map(_to_plain_json, value))
    return value


def _parse_manifest(data: JsonObject) -> Manifest:
    """Parse the fields of a manifest, whose format was already checked."""
    try:
        # Paths are derived from the name, so a manifest of another store must not choose it freely.
        name = check_name(data.text("name"), noun="training dataset")
    except InvalidName as error:
        raise MalformedJson(error.message) from error
    dropped_rows, plan = data.optional_number("dropped_rows"), None
    if data.get("plan") is not None:
        plan = data.object("plan").data
    view = None
    if "view" in data:
        view = _parse_view(data.object("view"))
    reads: tuple[JsonMapping, ...] = ()
    if "reads" in data:
        reads = tuple(map(_parse_source_read, data.objects("reads")))
    max_lengths: Mapping[str, int] = {}
    if "max_lengths" in data:
        max_lengths = data.object("max_lengths").read_values(JsonObject.number)
    missing_labels = None
    if "missing_labels" in data:
        missing_labels = _parse_missing_labels(data.object("missing_labels"))
    transformations = None
    if "transformations" in data:
        file = data.object("transformations")
        transformations = {"path": _parse_path(file), "sha256": _parse_sha256(file)}
    return Manifest(
        name=name,
        version=data.number("version", minimum=1),
        data_format=data.text("data_format"),
        # Row hashes take the seed modulo 2**64.
        seed=data.number("seed", maximum=2**64 - 1),
        key=data.texts("key"),
        split_rule=data.object("split_rule").data,
        block_rows=data.number("block_rows", minimum=1),
        compression=data.optional_text("compression"),
        columns=tuple(map(_parse_column, data.objects("columns"))),
        layout=data.object("layout").data,
        splits=tuple(map(_parse_split, data.objects("splits"))),
        files=tuple(map(_parse_file, data.objects("files"))),
        plan=plan,
        plan_hash=data.optional_text("plan_hash"),
        sources=tuple(map(_parse_source, data.objects("sources"))),
        reproducible=data.flag("reproducible"),
        reproducible_reason=data.optional_text("reproducible_reason"),
        description=data.text("description"),
        tags=data.object("tags").read_values(JsonObject.text),
        created=_parse_time(data, "created"),
        run_id=data.optional_text("run_id"),
        libraries=data.object("libraries").read_values(JsonObject.text),
        statistics=_parse_statistics(data.object("statistics")),
        uncovered_rows=data.number("uncovered_rows"),
        dropped_rows=dropped_rows,
        prefixes=data.object("prefixes").read_values(lambda data, name: list(data.texts(name))),
        view=view,
        transformations=transformations,
        reads=reads,
        max_lengths=max_lengths,
        missing_labels=missing_labels,
    )


def _parse_missing_labels(data: JsonObject) -> MissingLabels:
    policy = data.text("policy")
    if policy not in (DROP, WEIGHT_ZERO):
        raise data.wrong_type_error("policy", f"{DROP} or {WEIGHT_ZERO}")
    return MissingLabels(policy, data.number("rows"))


def _parse_source_read(data: JsonObject) -> JsonMapping:
    """Parse the record of a source read."""
    for name in ("source", "kind", "query"):
        data.text(name)
    for name in ("snapshot", "input", "high_water_mark"):
        if name in data:
            data.optional_text(name)
    data.number("rows")
    return data.data


def _parse_view(data: JsonObject) -> JsonMapping:
    data.text("name")
    data.number("version", minimum=1)
    return data.data


def _parse_column(data: JsonObject) -> ManifestColumn:
    from featurestore.arrow.schemas import type_from_json

    dtype = data.get("type")
    try:
        type_from_json(dtype)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise data.wrong_type_error("type", "a feature type") from error
    role = data.text("role")
    if role not in ROLES:
        raise data.wrong_type_error("role", f"one of {', '.join(ROLES)}")
    return ManifestColumn(
        name=data.text("name"),
        type=dtype,
        role=role,
        tf_type=data.text("tf_type"),
        shape=None if data.get("shape") is None else data.numbers("shape"),
        null=data.text("null"),
        loss=data.optional_text("loss"),
    )


def _parse_split(data: JsonObject) -> ManifestSplit:
    name = data.text("name")
    # The name is the directory of the split, and must not lead outside of the dataset.
    if not is_relative_path(name) or "/" in name:
        raise data.wrong_type_error("name", "the name of a directory")
    split = ManifestSplit(
        name=name,
        rows=data.number("rows"),
        bytes=data.number("bytes"),
        shards=tuple(map(_parse_shard, data.objects("shards"))),
        nulls=data.object("nulls").read_values(JsonObject.number),
        label_counts=data.object("label_counts").read_values(
            lambda data, name: data.object(name).read_values(JsonObject.number)
        ),
        label_weights=data.object("label_weights").read_values(
            lambda data, name: data.object(name).read_values(JsonObject.real)
        ),
    )
    _check_rows(split, data)
    return split


def _check_rows(split: ManifestSplit, data: JsonObject) -> None:
    """Check that the shards of a split cover its rows with contiguous ranges."""
    # Readers locate a row by arithmetic on these ranges, so a gap or an overlap returns wrong rows.
    expected = 0
    for shard in split.shards:
        if shard.first_row != expected:
            raise MalformedJson(f"{shard.path} begins at row {shard.first_row}, not at {expected}")
        expected += shard.rows
    if split.rows != expected:
        raise data.wrong_type_error("rows", f"{expected}, the number of rows in its shards")


def _parse_shard(data: JsonObject) -> ManifestShard:
    file = _parse_file(data)
    sidecars = tuple(map(_parse_file, data.objects("sidecars")))
    return ManifestShard(
        file.path, data.number("first_row"), data.number("rows"), file.bytes, file.sha256, sidecars
    )


def _parse_file(data: JsonObject) -> ManifestFile:
    return ManifestFile(_parse_path(data), data.number("bytes"), _parse_sha256(data))


def _parse_path(data: JsonObject) -> str:
    path = data.text("path")
    # A manifest may come from another store: its paths must not lead outside of the dataset.
    if not is_relative_path(path):
        raise data.wrong_type_error("path", "a path below the dataset")
    return path


def _parse_sha256(data: JsonObject) -> str:
    digits = data.text("sha256")
    if not _SHA256.fullmatch(digits):
        raise data.wrong_type_error("sha256", "a SHA-256")
    return digits


def _parse_source(data: JsonObject) -> JsonMapping:
    data.text("featuregroup")
    data.number("version", minimum=1)
    data.number("delta_version")
    data.optional_text("table_id")
    # Sources of external groups without a snapshot.
    if "live" in data:
        data.flag("live")
    return data.data


def _parse_statistics(data: JsonObject) -> JsonMapping:
    for split in data.data:
        entry = data.object(split)
        _parse_path(entry)
        _parse_sha256(entry)
        if entry.data.get("sample") is not None:
            _parse_path(entry.object("sample"))
            _parse_sha256(entry.object("sample"))
    return data.data


def _parse_time(data: JsonObject, name: str) -> str:
    text = data.text(name)
    try:
        if text:
            datetime.fromisoformat(text)
    except ValueError as error:
        raise data.wrong_type_error(name, "an ISO 8601 time") from error
    return text


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
