"""What ``create_training_dataset`` was asked, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from featurestore.errors import InvalidArgument
from featurestore.model.manifest import Role
from featurestore.model.names import check_feature_names, check_name
from featurestore.model.requests import TrainingDatasetRequest
from featurestore.plugins.format import DatasetFormat, find_format
from featurestore.training.export.split_rules import SplitRule, as_columns, check_columns, make_rule

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
    default_key: Sequence[str] = (),
    time: str | None = None,
) -> ExportRequest:
    """Return a request as it can be served, or raise for the first thing that is wrong with it.

    Args:
        asked: What the caller asked for.
        schema: Of the data.
        default_key: What identifies a row where the caller does not say.
        time: The column that is the labels' time.
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
    return ExportRequest(
        name=asked.name,
        schema=schema,
        labels=labels,
        key=keys or tuple(schema.names),
        roles=_roles(schema, labels=labels, keys=keys, time=time),
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


def _roles(
    schema: pa.Schema, *, labels: Sequence[str], keys: Sequence[str], time: str | None
) -> dict[str, Role]:
    """Return the role of each column: labels first, then the time, then keys.

    All else are features.
    """
    roles: dict[str, Role] = dict.fromkeys(schema.names, "feature")
    roles.update(dict.fromkeys(keys, "key"))
    if time in roles:
        roles[time] = "time"
    roles.update(dict.fromkeys(labels, "label"))
    if "feature" not in roles.values() and not labels:
        raise InvalidArgument(
            "The data holds only keys and times, no features.",
            hint="ask for features, or name other columns in key=",
        )
    return roles
