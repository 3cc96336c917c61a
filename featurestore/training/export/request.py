"""The request of ``create_training_dataset``, checked before the first write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from featurestore.arrow.column_names import check_feature_names
from featurestore.errors import InvalidArgument
from featurestore.model.names import check_name
from featurestore.model.requests import TimeSplit, TrainingDatasetRequest
from featurestore.model.roles import Role, RoleRequest, assign_roles
from featurestore.plugins.format import DatasetFormat, find_format
from featurestore.training.export.assignment import SplitRule, as_columns, check_columns, make_rule
from featurestore.training.export.profiles import check_max_lengths
from featurestore.training.transformations import check_transformations
from featurestore.transform.fit import ColumnChain

DEFAULT_BLOCK_ROWS = 1024
SHARD_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class ExportRequest:
    """A checked export request: names, rules and columns fit the schema of the data."""

    name: str
    schema: pa.Schema
    labels: tuple[str, ...]
    key: tuple[str, ...]
    roles: Mapping[str, Role]
    rule: SplitRule
    seed: int
    format: DatasetFormat
    compression: str | None
    shards: int | None
    rows_per_shard: int | None
    block_rows: int
    statistics: bool = True
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    transformations: tuple[ColumnChain, ...] = ()
    fit_on: str = "train"
    max_lengths: Mapping[str, int] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the files, in order."""
        return tuple(self.schema.names)

    def shards_of(self, rows: int, *, bytes_per_row: float) -> int:
        """Return the number of shards of a split.

        By default about 128 MiB a shard; a multiple of 8 if each shard then has at least a block.
        """
        if self.shards is not None:
            return self.shards
        if self.rows_per_shard is not None:
            return max(1, -(-rows // self.rows_per_shard))
        shard_count = max(1, round(rows * bytes_per_row / SHARD_BYTES))
        rounded_count = -(-shard_count // 8) * 8
        if rows < rounded_count * self.block_rows:
            return shard_count
        return rounded_count


def check_request(
    options: TrainingDatasetRequest,
    *,
    schema: pa.Schema,
    known_roles: RoleRequest | None = None,
    default_key: Sequence[str] = (),
) -> ExportRequest:
    """Check the options of the caller; raise for the first invalid one.

    Args:
        options: The arguments of ``create_training_dataset``.
        schema: The schema of the data.
        known_roles: The column roles that the data determines.
        default_key: The columns that identify a row if the caller names none.
    """
    check_name(options.name, noun="training dataset")
    check_feature_names(schema.names)
    labels = as_columns(options.label)
    check_columns(labels, schema=schema, argument="label")
    keys = as_columns(options.key) or tuple(default_key)
    check_columns(keys, schema=schema, argument="key")
    if not schema.names:
        raise InvalidArgument("The data has no columns.")
    dataset_format = find_format(options.data_format)
    dataset_format.check(schema, compression=options.compression)
    rule = make_rule(
        options.splits, split_by=options.split_by, stratify=options.stratify, schema=schema
    )
    _check_numbers(options)
    roles = assign_roles(schema, _resolve_roles(options, schema, known_roles or RoleRequest()))
    transformations = check_transformations(
        options.transformations or {}, schema, roles=roles, fit_on=options.fit_on, splits=rule.names
    )
    return ExportRequest(
        name=options.name,
        schema=schema,
        labels=labels,
        key=keys or tuple(schema.names),
        roles=roles,
        rule=rule,
        seed=options.seed,
        format=dataset_format,
        compression=options.compression,
        shards=options.shards,
        rows_per_shard=options.rows_per_shard,
        block_rows=options.block_rows or DEFAULT_BLOCK_ROWS,
        statistics=options.statistics,
        description=options.description,
        tags=dict(options.tags or {}),
        transformations=transformations,
        fit_on=options.fit_on,
        max_lengths=check_max_lengths(options.max_lengths or {}, schema),
    )


def _check_numbers(options: TrainingDatasetRequest) -> None:
    for argument in ("shards", "rows_per_shard", "block_rows"):
        value = getattr(options, argument)
        if value is not None and not (_is_integer(value) and value >= 1):
            raise InvalidArgument(f"{argument}={value!r} is not a positive integer.")
    if options.shards is not None and options.rows_per_shard is not None:
        raise InvalidArgument(
            "shards and rows_per_shard exclude each other.", hint="pass one of them"
        )
    if not (_is_integer(options.seed) and 0 <= options.seed < 2**64):
        raise InvalidArgument(
            f"seed={options.seed!r} is not a seed.",
            hint="seeds are integers from 0 to 2**64 - 1",
        )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _resolve_roles(
    options: TrainingDatasetRequest, schema: pa.Schema, known_roles: RoleRequest
) -> RoleRequest:
    """Combine the roles from the data with those of the caller; check that all columns exist."""
    weights = as_columns(options.weight)
    if len(weights) > 1:
        raise InvalidArgument(
            f"weight={options.weight!r} is not one column.", hint="weight='column'"
        )
    features, exclude = as_columns(options.features), as_columns(options.exclude)
    for argument, names in (("features", features), ("exclude", exclude), ("weight", weights)):
        check_columns(names, schema=schema, argument=argument)
    for name in weights:
        kind = schema.field(name).type
        if not pa.types.is_integer(kind) and not pa.types.is_floating(kind):
            raise InvalidArgument(f"weight={name!r} is {kind}; weights are numbers.")
    split_time = None
    if isinstance(options.splits, TimeSplit):
        split_time = options.splits.column
    return replace(
        known_roles,
        labels=as_columns(options.label),
        weight=next(iter(weights), None),
        declared_keys=as_columns(options.key),
        features=features,
        exclude=exclude,
        split_time=split_time,
    )
