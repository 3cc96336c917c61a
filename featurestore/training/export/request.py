"""What ``create_training_dataset`` was asked, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from featurestore.arrow.column_names import check_feature_names
from featurestore.errors import InvalidArgument
from featurestore.model.names import check_name
from featurestore.model.requests import TrainingDatasetRequest
from featurestore.model.roles import KnownRoles, Role, assign_roles
from featurestore.model.splits import TimeSplit
from featurestore.plugins.format import DatasetFormat, find_format
from featurestore.training.export.lengths import check_max_lengths
from featurestore.training.export.split_rules import SplitRule, as_columns, check_columns, make_rule
from featurestore.training.transformations import check_transformations
from featurestore.transform.fit import ColumnChain

DEFAULT_BLOCK_ROWS = 1024
SHARD_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class ExportRequest:
    """One export: names, rules and columns, all checked against the schema of the data."""

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

        By default about 128 MiB a shard, a multiple of 8 where each would hold a block or more.
        """
        if self.shards is not None:
            return self.shards
        if self.rows_per_shard is not None:
            return max(1, -(-rows // self.rows_per_shard))
        wanted = max(1, round(rows * bytes_per_row / SHARD_BYTES))
        rounded = -(-wanted // 8) * 8
        if rows < rounded * self.block_rows:
            return wanted
        return rounded


def check_request(
    asked: TrainingDatasetRequest,
    *,
    schema: pa.Schema,
    known: KnownRoles | None = None,
    default_key: Sequence[str] = (),
) -> ExportRequest:
    """Return a request as it can be served, or raise for the first thing that is wrong with it.

    Args:
        asked: What the caller asked for.
        schema: Of the data.
        known: What the data says of its columns' roles.
        default_key: What identifies a row where the caller does not say.
    """
    check_name(asked.name, noun="training dataset")
    check_feature_names(schema.names)
    labels = as_columns(asked.label)
    check_columns(labels, schema=schema, argument="label")
    keys = as_columns(asked.key) or tuple(default_key)
    check_columns(keys, schema=schema, argument="key")
    if not schema.names:
        raise InvalidArgument("The data has no columns.")
    chosen = find_format(asked.data_format)
    chosen.check(schema, compression=asked.compression)
    rule = make_rule(asked.splits, split_by=asked.split_by, stratify=asked.stratify, schema=schema)
    _check_numbers(asked)
    roles = assign_roles(schema, _known_roles(asked, schema, known or KnownRoles()))
    transformations = check_transformations(
        asked.transformations or {}, schema, roles=roles, fit_on=asked.fit_on, splits=rule.names
    )
    return ExportRequest(
        name=asked.name,
        schema=schema,
        labels=labels,
        key=keys or tuple(schema.names),
        roles=roles,
        rule=rule,
        seed=asked.seed,
        format=chosen,
        compression=asked.compression,
        shards=asked.shards,
        rows_per_shard=asked.rows_per_shard,
        block_rows=asked.block_rows or DEFAULT_BLOCK_ROWS,
        statistics=asked.statistics,
        description=asked.description,
        tags=dict(asked.tags or {}),
        transformations=transformations,
        fit_on=asked.fit_on,
        max_lengths=check_max_lengths(asked.max_lengths or {}, schema),
    )


def _check_numbers(asked: TrainingDatasetRequest) -> None:
    for argument in ("shards", "rows_per_shard", "block_rows"):
        value = getattr(asked, argument)
        if value is not None and not (_is_whole(value) and value >= 1):
            raise InvalidArgument(f"{argument}={value!r} is not a positive whole number.")
    if asked.shards is not None and asked.rows_per_shard is not None:
        raise InvalidArgument(
            "shards and rows_per_shard exclude one another.", hint="give one of them"
        )
    if not (_is_whole(asked.seed) and 0 <= asked.seed < 2**64):
        raise InvalidArgument(
            f"seed={asked.seed!r} is not a seed.",
            hint="seeds are whole numbers from 0 to 2**64 - 1",
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _known_roles(asked: TrainingDatasetRequest, schema: pa.Schema, known: KnownRoles) -> KnownRoles:
    """Return what the data and the caller say of the roles; every name is a column."""
    weights = as_columns(asked.weight)
    if len(weights) > 1:
        raise InvalidArgument(f"weight={asked.weight!r} is not one column.", hint="weight='column'")
    features, exclude = as_columns(asked.features), as_columns(asked.exclude)
    for argument, names in (("features", features), ("exclude", exclude), ("weight", weights)):
        check_columns(names, schema=schema, argument=argument)
    if weights and not _is_number(schema.field(weights[0]).type):
        raise InvalidArgument(
            f"weight={weights[0]!r} is {schema.field(weights[0]).type}; weights are numbers."
        )
    split_time = None
    if isinstance(asked.splits, TimeSplit):
        split_time = asked.splits.column
    return replace(
        known,
        labels=as_columns(asked.label),
        weight=next(iter(weights), None),
        said_keys=as_columns(asked.key),
        features=features,
        exclude=exclude,
        split_time=split_time,
    )


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)
