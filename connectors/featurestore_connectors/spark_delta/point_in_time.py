"""Feature plans on Spark: labels and rows in one sorted stream, a running maximum, no range join.

The rule (docs/point-in-time.md): of the rows with equal keys whose event time, and created time where the group
declares it, are at or before the label's time, the greatest by (event time, created time, tie hash). Rows enter the
stream of their key at the time from which they are eligible, the later of their two times; so at each label the
greatest row seen until then is the answer. Groups that are joined on the same columns share one shuffle.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import EngineError
from featurestore.hashing import tie_hash
from featurestore.model.plan import ROW, FeaturePlan, Join
from featurestore.plugins.engine import Engine, Relation
from featurestore_connectors.spark_delta.relations import relation
from featurestore_connectors.spark_delta.sqltext import column, timestamp

if TYPE_CHECKING:
    import numpy.typing as npt

_TIE = "__fs_tie"
_PART = "part"
_SIGN = np.uint64(1 << 63)
_DAY = 86_400_000_000


def retrieve(engine: Engine, plan: FeaturePlan, labels: Relation | None) -> Relation:
    """Return the rows of a feature plan as a lazy relation."""
    left = _Left.of(engine, plan, labels)
    frame = left.frame
    sides = [_Right(number, join, plan) for number, join in enumerate(plan.joins)]
    for side in (side for side in sides if not side.is_timed):
        frame = _join_on_key(frame, side, left, side.rows(engine))
    clusters: dict[tuple[tuple[str, str], ...], list[_Right]] = {}
    for side in (side for side in sides if side.is_timed):
        clusters.setdefault(side.meets_on, []).append(side)
    for cluster in clusters.values():
        frame = _join_as_of(frame, cluster, left, [side.rows(engine) for side in cluster])
    return relation(_result(frame, plan, left, sides), plan.schema)


@dataclass(frozen=True)
class _Left:
    """The left side under short names, ``c0, c1, ...``; ``places`` says which column is which."""

    frame: Any
    plan: FeaturePlan
    places: dict[str, str]

    @classmethod
    def of(cls, engine: Engine, plan: FeaturePlan, labels: Relation | None) -> _Left:
        needed = [output.column for output in plan.left_outputs]
        needed += [name for join in plan.joins for name, _ in join.on]
        needed += [plan.left_time] if plan.left_time is not None else []
        needed += [ROW] if plan.keep_order else []
        names = list(dict.fromkeys(needed)) or [plan.left_schema.names[0]]
        given = _left_relation(engine, plan, labels, names)
        places = {name: f"c{index}" for index, name in enumerate(names)}
        return cls(
            given.native.select(*(column(name).alias(place) for name, place in places.items())),
            plan,
            places,
        )

    def column(self, name: str) -> Any:
        return column(self.places[name])

    def key(self, name: str, kind: pa.DataType) -> Any:
        """Return a left column as it is compared with a key of a feature type."""
        return _comparable(self.column(name), self.plan.left_schema.field(name).type, kind)

    @property
    def time(self) -> Any:
        """The label's time."""
        if self.plan.fixed_time is not None:
            return timestamp(self.plan.fixed_time)
        if self.plan.left_time is None:
            raise EngineError("The plan joins as of a time and names none.", hint="label_time=")
        kind = self.plan.left_schema.field(self.plan.left_time).type
        return _moment(self.column(self.plan.left_time), kind)


@dataclass(frozen=True)
class _Right:
    """One group on its way to a join: keys ``k0, k1, ...``, ``since`` and the row to be found as the struct ``row``."""

    number: int
    join: Join
    plan: FeaturePlan

    @property
    def is_timed(self) -> bool:
        """Whether the answer differs between labels of one key."""
        return self.join.event_time is not None and self.plan.fixed_time is None

    @property
    def meets_on(self) -> tuple[tuple[str, str], ...]:
        """Left columns and the types of the keys: what groups must share to share one sort."""
        schema = self.join.source.spec.schema
        return tuple((left, str(schema.field(key).type)) for left, key in self.join.on)

    @property
    def is_unique(self) -> bool:
        """Whether no two rows can tie: the log says so, and the join is on the whole primary key."""
        # What the log claims leaves nulls out, and without the filter rows of unknown created time count.
        nulls_count = self.join.created_time is not None and not self.waits
        return (
            self.join.source.unique and bool(self.join.source.spec.primary_key) and not nulls_count
        )

    @property
    def waits(self) -> bool:
        """Whether rows become known later than they are true."""
        return self.join.created_time is not None and self.plan.created_time_filter

    @property
    def keys(self) -> list[str]:
        return [f"k{index}" for index in range(len(self.join.on))]

    @property
    def best(self) -> str:
        """The column that holds the row found."""
        return f"w{self.number}"

    @property
    def last_is_greatest(self) -> bool:
        """Whether the row that became eligible last is the answer: only its time orders the rows of a key."""
        return self.is_timed and self.is_unique and self.join.created_time is None

    def greatest(self, until: Any) -> Any:
        """Return the greatest row of a window."""
        from pyspark.sql import functions as F

        best = F.last(self.best, ignorenulls=True) if self.last_is_greatest else F.max(self.best)
        return best.over(until).alias(self.best)

    def rows(self, engine: Engine) -> Any:
        """Return the rows that can match some label: keys, ``since``, and ``row``, which orders as the rule says."""
        from pyspark.sql import functions as F

        frame = self._read(engine)
        schema = self.join.source.spec.schema
        event, created = self._time(self.join.event_time), self._time(self.join.created_time)
        known = [column(key).isNotNull() for _, key in self.join.on]
        known += [event.isNotNull()] if event is not None else []
        known += [created.isNotNull()] if self.waits else []
        since = F.greatest(event, created) if self.waits else event
        if self.plan.fixed_time is not None and since is not None:
            known.append(since <= timestamp(self.plan.fixed_time))
        for condition in known:
            frame = frame.where(condition)
        held = event is not None and not (self.last_is_greatest and self.join.ttl is None)
        order = [event.alias("event")] if held else []
        order += [created.alias("created")] if created is not None else []
        order += [] if self.is_unique else [column(_TIE).alias("tie")]
        values = [
            column(output.column).alias(f"o{index}")
            for index, output in enumerate(self.join.outputs)
        ]
        # A struct of nulls is no null, so it tells a row of nulls from no row; but it cannot be empty.
        row = F.struct(*(order + values or [F.lit(True).alias("found")]))
        keys = [
            _comparable(
                column(key), schema.field(key).type, self.plan.left_schema.field(left).type
            ).alias(name)
            for name, (left, key) in zip(self.keys, self.join.on, strict=True)
        ]
        return frame.select(
            *keys, *([since.alias("since")] if since is not None else []), row.alias("row")
        )

    def _read(self, engine: Engine) -> Any:
        source = self.join.source
        times = [
            time for time in (self.join.event_time, self.join.created_time) if time is not None
        ]
        needed = [
            *(key for _, key in self.join.on),
            *times,
            *(output.column for output in self.join.outputs),
        ]
        names = list(dict.fromkeys(needed))
        schema = source.spec.schema
        if self.is_unique:
            return engine.read_table(
                source.path, version=source.delta_version, schema=schema, columns=names
            ).native
        everything = engine.read_table(source.path, version=source.delta_version, schema=schema)
        hashed = pa.schema([*(schema.field(name) for name in names), pa.field(_TIE, pa.int64())])
        return engine.map_batches(everything, WithTieHash(tuple(names)), schema=hashed).native

    def _time(self, name: str | None) -> Any:
        return (
            None
            if name is None
            else _moment(column(name), self.join.source.spec.schema.field(name).type)
        )


def _join_as_of(frame: Any, sides: list[_Right], left: _Left, rows: list[Any]) -> Any:
    """Return the frame with the row of each group that is the greatest until the label's time."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    first = sides[0]
    key_types = first.join.source.spec.schema
    types = {
        side.best: given.schema["row"].dataType for side, given in zip(sides, rows, strict=True)
    }
    label = F.struct(*(column(name) for name in frame.columns))

    def stream(*, at: Any, is_label: bool, row: _Right | None) -> list[Any]:
        found = [
            (F.col("row") if row is not None and row.best == name else F.lit(None))
            .cast(kind)
            .alias(name)
            for name, kind in types.items()
        ]
        held = label if is_label else F.lit(None).cast(label_type)
        return [at.alias("at"), F.lit(is_label).alias("is_label"), held.alias("label"), *found]

    label_type = frame.select(label.alias("label")).schema["label"].dataType
    keys = [
        left.key(name, key_types.field(key).type).alias(alias)
        for (name, key), alias in zip(first.join.on, first.keys, strict=True)
    ]
    merged = frame.select(*keys, *stream(at=left.time, is_label=True, row=None))
    for side, given in zip(sides, rows, strict=True):
        merged = merged.union(
            given.select(*side.keys, *stream(at=F.col("since"), is_label=False, row=side))
        )
    until = (
        Window.partitionBy(_PART, *first.keys)
        .orderBy("at", "is_label")
        .rowsBetween(Window.unboundedPreceding, 0)
    )
    best = [side.greatest(until) for side in sides]
    answered = (
        _almost_sorted(merged, first.keys).select("is_label", "label", *best).where("is_label")
    )
    return answered.select("label.*", *types)


def _almost_sorted(merged: Any, keys: list[str]) -> Any:
    """Return the stream shuffled by the hash of its keys and sorted by that hash and the second, one integer.

    Spark sorts by one integer without comparing rows. The window's sort by all keys and times, which compares rows all
    over memory, then finds them almost in order. Seconds before 1970 and after 2106 come in another order here, which
    costs time and changes no answer.
    """
    from pyspark.sql import functions as F

    second = F.unix_seconds("at").bitwiseAND(F.lit(0xFFFFFFFF))
    hashed = merged.withColumn(_PART, F.hash(*keys)).repartition(_PART)
    return hashed.sortWithinPartitions(
        F.shiftleft(F.col(_PART).cast("bigint"), 32).bitwiseOR(second)
    )


def _join_on_key(frame: Any, side: _Right, left: _Left, rows: Any) -> Any:
    """Return the frame with the greatest row of each key, whatever the label's time."""
    from pyspark.sql import functions as F

    if not (side.is_unique and side.join.event_time is None):
        rows = rows.groupBy(*side.keys).agg(F.max("row").alias("row"))
    schema = side.join.source.spec.schema
    names = {key: f"{side.best}_{key}" for key in side.keys}
    renamed = rows.select(
        *(F.col(key).alias(name) for key, name in names.items()), F.col("row").alias(side.best)
    )
    conditions = [
        left.key(name, schema.field(key).type) == F.col(place)
        for (name, key), place in zip(side.join.on, names.values(), strict=True)
    ]
    matches = conditions[0]
    for condition in conditions[1:]:
        matches = matches & condition
    return frame.join(renamed, matches, "left").drop(*names.values())


def _result(frame: Any, plan: FeaturePlan, left: _Left, sides: list[_Right]) -> Any:
    from pyspark.sql import functions as F

    values = {output.name: left.column(output.column) for output in plan.left_outputs}
    for side in sides:
        fresh = (
            None
            if side.join.ttl is None
            else _is_fresh(left.time, F.col(side.best)["event"], side.join.ttl)
        )
        for index, output in enumerate(side.join.outputs):
            value = F.col(side.best)[f"o{index}"]
            values[output.name] = value if fresh is None else F.when(fresh, value)
        if plan.how == "inner":
            frame = frame.where(F.col(side.best).isNotNull() if fresh is None else fresh)
    if plan.keep_order:
        frame = frame.orderBy(left.column(ROW))
    return frame.select(*(values[name].alias(name) for name in plan.columns))


def _is_fresh(at: Any, event: Any, ttl: timedelta) -> Any:
    from pyspark.sql import functions as F

    return F.unix_micros(at) - F.unix_micros(event) <= F.lit(ttl // timedelta(microseconds=1))


def _moment(value: Any, kind: pa.DataType) -> Any:
    """Return a time column as a timestamp; a date is its midnight in UTC, whatever the session's time zone."""
    from pyspark.sql import functions as F

    return F.timestamp_micros(F.unix_date(value) * _DAY) if pat.is_date(kind) else value


def _comparable(value: Any, mine: pa.DataType, other: pa.DataType) -> Any:
    """Return a key column in a type that holds the values of both sides."""
    return value if mine == other else value.cast(_wide(mine, other))


def _wide(mine: pa.DataType, other: pa.DataType) -> str:
    if pat.is_decimal(mine) or pat.is_decimal(other):
        digits = max(each.precision - each.scale for each in (mine, other))
        return f"decimal({min(digits + mine.scale, 38)},{mine.scale})"
    return "decimal(20,0)" if pa.uint64() in (mine, other) else "bigint"


@dataclass(frozen=True)
class WithTieHash:
    """Adds the hash that decides between rows of equal keys and times, as an integer of the same order."""

    columns: tuple[str, ...]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``columns`` of a batch and the hash of all its columns."""
        hashes: npt.NDArray[np.uint64] = tie_hash(batch)
        kept = batch.select(list(self.columns))
        signed = pa.array((hashes ^ _SIGN).view(np.int64))
        schema = kept.schema.append(pa.field(_TIE, pa.int64()))
        return pa.RecordBatch.from_arrays([*kept.columns, signed], schema=schema)


def _left_relation(
    engine: Engine, plan: FeaturePlan, labels: Relation | None, names: list[str]
) -> Relation:
    if plan.left_source is None:
        if labels is None:
            raise EngineError(
                "The plan needs labels and got none.",
                hint="pass the labels that it was planned for",
            )
        return labels
    source = plan.left_source
    return engine.read_table(
        source.path, version=source.delta_version, schema=source.spec.schema, columns=names
    )
