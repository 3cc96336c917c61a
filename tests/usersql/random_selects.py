"""Random queries of the grammar that both engines support, over two small tables."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP

# Names of columns by the family of their type.
TRIP_COLUMNS = {
    "number": ["id", "small", "seats", "fare", "miles", "cost", "tiny"],
    "text": ["zone", "note"],
    "date": ["day"],
    "time": ["at"],
    "bool": ["late"],
}
ZONE_COLUMNS = {
    "number": ["rank_of", "weight"],
    "text": ["zone"],
    "date": ["opened"],
    "time": [],
    "bool": ["open"],
}
# Sums of these columns are exact as doubles, so their order does not matter.
_SUMMED = ("id", "small", "seats", "fare", "miles", "cost", "rank_of", "weight")
# Spark has no distinct aggregates over windows.
_AGGREGATES = ("count", "count *", "sum", "avg", "min", "max")
_UNITS = ("second", "hour", "day", "week", "month", "quarter", "year", "decade")
_DAYS = [date(2000, 1, 1), None, date(2024, 2, 29), date(1970, 1, 1), date(1960, 6, 1)]
# Columns of integers and decimals; the text of a float differs between engines.
_EXACT = ("id", "small", "rank_of", "cost", "seats", "tiny")
Scope = dict[str, list[str]]


def tables() -> dict[str, pa.Table]:
    """Return the tables ``trips`` and ``zones``."""
    random = Random(1)
    size = 40

    def column(choices: list[Any], dtype: pa.DataType) -> pa.Array:
        return pa.array([random.choice([*choices, None]) for _ in range(size)], dtype)

    start = datetime(1969, 12, 31, 22, 59, 59, 123_456, tzinfo=UTC)
    trips = {
        "id": pa.array(range(size), pa.int64()),
        "small": column([0, 1, -3, 7, 12], pa.int8()),
        "seats": column([0, 1, 4, 200], pa.uint16()),
        "fare": column([0.0, -0.0, 0.5, 2.25, -8.0, 100.0], pa.float32()),
        "miles": column([0.0, 0.25, -3.5, 1024.0], pa.float64()),
        "cost": column([Decimal(text) for text in ("0.00", "1.25", "-7.10", "99.99")], pa.decimal128(10, 2)),
        "tiny": column([Decimal("0.1234"), Decimal("-0.5000")], pa.decimal128(4, 4)),
        "zone": column(["a", "b", "é", ""], pa.string()),
        "note": column(["", "ab", "Ä𝄞b", "a%_", " x "], pa.string()),
        "day": column([date(1969, 2, 28), date(2024, 1, 31), date(2024, 2, 29)], pa.date32()),
        "at": column([start + timedelta(hours=hours * 7919) for hours in range(9)], TIMESTAMP),
        "late": column([True, False], pa.bool_()),
    }  # fmt: skip
    zones = {
        "zone": pa.array(["a", "b", "b", "é", None], pa.string()),
        "rank_of": pa.array([1, 2, 3, None, 5], pa.int32()),
        "weight": pa.array([0.5, 1.0, None, -2.0, 4.0], pa.float64()),
        "opened": pa.array(_DAYS, pa.date32()),
        "open": pa.array([True, False, None, True, True], pa.bool_()),
    }  # fmt: skip
    return {"trips": pa.table(trips), "zones": pa.table(zones)}


class SelectGenerator:
    """Generates queries from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def query(self) -> str:
        """Return a query whose rows do not depend on the order of the tables."""
        form = self.random.choice(
            ["plain", "grouped", "window", "union", "with", "nested", "limit", "exists"]
        )
        return str(getattr(self, f"_{form}")())  # fmt: skip

    # -- queries ------------------------------------------------------------------------------

    def _plain(self) -> str:
        source, scope = self._source()
        distinct = self._maybe("distinct ", 0.2)
        return f"select {distinct}{self._items(scope)} from {source}{self._filter(scope)}"

    def _grouped(self) -> str:
        source, scope = self._source()
        keys = [self._value(scope, 1) for _ in range(self.random.randint(0, 2))]
        items = [f"{key} as k{n}" for n, key in enumerate(keys)]
        items += [f"{self._aggregate(scope)} as m{n}" for n in range(self.random.randint(1, 3))]
        group = ""
        if keys:
            names = [self.random.choice([f"k{n}", str(n + 1), keys[n]]) for n in range(len(keys))]
            group = " group by " + self.random.choice(["all", ", ".join(names)])
        having = self._maybe(f" having {self._aggregate(scope, 'count')} > 1", 0.3) if keys else ""
        return f"select {', '.join(items)} from {source}{self._filter(scope)}{group}{having}"

    def _window(self) -> str:
        scope = TRIP_COLUMNS
        partition = self._maybe(f"partition by {self._value(scope, 0)} ", 0.7)
        order = self.random.choice(["order by id", "order by id desc", "order by zone desc, id"])
        frame = self._maybe(" rows between 2 preceding and current row", 0.3)
        window = f"{partition}{order}"
        calls = [
            f"row_number() over ({window})",
            f"rank() over ({partition}order by {self._value(scope, 0)} {self._maybe('desc nulls first')})",
            f"dense_rank() over ({partition}order by zone)",
            f"lag({self._value(scope, 1)}) over ({window})",
            f"lead(small, 2, 0) over ({window})",
            f"{self._aggregate(scope, self.random.choice(_AGGREGATES))} over ({window}{frame})",
            f"{self._aggregate(scope, self.random.choice(_AGGREGATES))} over ({partition})",
        ]
        items = [f"{call} as w{n}" for n, call in enumerate(self.random.sample(calls, 3))]
        qualify = self._maybe(" qualify w0 is not null", 0.3)
        return f"select id, {', '.join(items)} from trips{self._filter(scope)}{qualify}"

    def _union(self) -> str:
        families = self.random.choices(["number", "text", "bool", "time"], k=2)
        sides = []
        for _ in range(2):
            items = [
                f"{self._operand(family, TRIP_COLUMNS, 1)} as c{n}"
                for n, family in enumerate(families)
            ]
            sides.append(f"select {', '.join(items)} from trips{self._filter(TRIP_COLUMNS)}")
        word = self.random.choice(["union all", "union", "except", "intersect"])
        return f" {word} ".join(sides)

    def _with(self) -> str:
        total = self._aggregate(TRIP_COLUMNS)
        return (
            f"with c as (select zone, {total} as m, count(*) as n from trips group by zone), "
            f"d(z, k) as (select zone, rank_of from zones where rank_of > {self.random.randint(0, 3)}) "
            f"select c.*, k + n as s from c {self._maybe('left')} join d on c.zone = d.z"
        )

    def _nested(self) -> str:
        inner_scope = TRIP_COLUMNS
        number, text = (
            self._operand("number", inner_scope, 1),
            self._operand("text", inner_scope, 1),
        )
        scope: Scope = {"number": ["p", "id"], "text": ["q"], "date": [], "time": [], "bool": []}
        inner = f"select id, {number} as p, {text} as q from trips{self._filter(inner_scope)}"
        return f"select {self._items(scope)} from ({inner}) n{self._filter(scope)}"

    def _limit(self) -> str:
        size, skipped = self.random.randint(1, 9), self.random.randint(0, 3)
        direction = self.random.choice(["", " desc", " desc nulls first", " nulls first"])
        return (
            f"select id, {self._value(TRIP_COLUMNS, 1)} as v from trips "
            f"order by v{direction}, id limit {size} offset {skipped}"
        )

    def _exists(self) -> str:
        word = self.random.choice(["exists", "not exists"])
        test = self.random.choice([
            f"{word} (select 1 from zones z where z.zone = t.zone and z.rank_of > t.small)",
            f"t.zone in (select zone from zones where rank_of <= {self.random.randint(1, 4)})",
            "t.small > (select avg(rank_of) from zones)",
            "t.small < (select max(rank_of) from zones z where z.zone = t.zone)",
        ])  # fmt: skip
        return f"select id, zone from trips t where {test}"

    # -- sources ------------------------------------------------------------------------------

    def _source(self) -> tuple[str, Scope]:
        if self.random.random() < 0.5:
            return "trips", TRIP_COLUMNS
        side = self.random.choice(["", "left ", "right ", "full ", "semi ", "anti "])
        is_using = self.random.random() < 0.5
        condition = "using (zone)" if is_using else "on t.zone = z.zone"
        source = f"trips t {side}join zones z {condition}"
        if side in ("semi ", "anti "):
            return source, {
                family: [f"t.{name}" for name in names] for family, names in TRIP_COLUMNS.items()
            }
        scope = {
            family: [f"t.{name}" for name in names] + [f"z.{name}" for name in ZONE_COLUMNS[family]]
            for family, names in TRIP_COLUMNS.items()
        }
        if is_using:
            scope["text"].append("zone")
        return source, scope

    def _filter(self, scope: Scope) -> str:
        return self._maybe(f" where {self._operand('bool', scope, 2)}", 0.5)

    def _items(self, scope: Scope) -> str:
        return ", ".join(
            f"{self._value(scope, 2)} as c{n}" for n in range(self.random.randint(1, 4))
        )

    # -- expressions ----------------------------------------------------------------------------

    def _maybe(self, text: str, share: float = 0.5) -> str:
        return text if self.random.random() < share else ""

    def _value(self, scope: Scope, depth: int) -> str:
        families = [
            family
            for family in ("number", "text", "bool", "date", "time")
            if scope[family] or depth
        ]
        families = [family for family in families if scope[family] or family in ("number", "bool")]
        return self._operand(self.random.choice(families), scope, depth)

    def _operand(self, family: str, scope: Scope, depth: int) -> str:
        names = scope[family]
        if depth == 0 or self.random.random() < 0.2:
            if names:
                return self.random.choice(names)
            if family == "bool":
                return f"{self.random.choice(scope['number'])} > 1"
        return str(getattr(self, f"_{family}")(scope, depth - 1))

    def _number(self, scope: Scope, depth: int) -> str:
        first, second = (self._operand("number", scope, 0) for _ in range(2))
        deep = self._operand("number", scope, depth) if depth else first
        default = self.random.choice(["0", "0.5", "1e1", second])
        text = self._operand("text", scope, 0) if scope["text"] else "'abc'"
        forms = [
            f"({first} / {second})",
            f"(cast({first} as double) * 0.5 + {second})",
            f"cast({first} as double) % 3",
            f"({first} / {self.random.choice(['3', '0', '0.25'])})",
            f"cast({first} as {self.random.choice(['double', 'bigint', 'int'])})",
            f"cast({self._exact(scope)} as decimal(18,3))",
            f"coalesce({first}, {second}, 0)",
            f"greatest({first}, {second})",
            f"nullif({first}, {self.random.choice(['0', '1.25'])})",
            f"abs({deep})",
            f"case when {self._operand('bool', scope, depth)} then {first} else {default} end",
            f"case {first} when 1 then 2 when 0.5 then 3 end",
            f"length({text})",
            f"strpos({text}, 'b')",
        ]  # fmt: skip
        if scope["time"]:
            time = self._operand("time", scope, depth)
            forms += [
                f"year({time})",
                f"extract(second from {time})",
                f"epoch_us({time})",
                f"quarter({self._operand('date', scope, 0)})",
            ]
        return self.random.choice(forms)

    def _text(self, scope: Scope, depth: int) -> str:
        text = self._operand("text", scope, depth) if depth else self._operand("text", scope, 0)
        number = self.random.randint(-3, 3)
        return self.random.choice([
            f"left({text}, {number})",
            f"right({text}, {number})",
            f"substring({text}, {number}, {self.random.randint(-2, 3)})",
            f"({text} || {self._operand('text', scope, 0)})",
            f"replace({text}, 'a', 'é')",
            f"trim({text})",
            f"cast({self._exact(scope)} as varchar)",
            f"case when {self._operand('bool', scope, depth)} then {text} end",
        ])  # fmt: skip

    def _exact(self, scope: Scope) -> str:
        names = [name for name in scope["number"] if name.split(".")[-1] in _EXACT]
        return self.random.choice(names or ["1"])

    def _date(self, scope: Scope, depth: int) -> str:
        day = self._operand("date", scope, 0)
        time = self._operand("time", scope, depth) if scope["time"] else day
        days = self.random.randint(-40, 40)
        return self.random.choice([f"({day} + {days})", f"cast({time} as date)"])

    def _time(self, scope: Scope, depth: int) -> str:
        time = self._operand("time", scope, 0)
        amount = self.random.choice(["1 month", "3 days", "7 hours", "1 year", "5 microseconds"])
        return self.random.choice([
            f"date_trunc('{self.random.choice(_UNITS)}', {self._operand('time', scope, depth)})",
            f"({time} {self.random.choice('+-')} interval {amount})",
            f"({self._operand('date', scope, 0)} + interval {amount})" if scope["date"] else time,
            f"coalesce({time}, cast({self._operand('date', scope, 0)} as timestamptz))" if scope["date"] else time,
        ])  # fmt: skip

    def _bool(self, scope: Scope, depth: int) -> str:
        families = [family for family in ("number", "text", "date", "time") if scope[family]]
        family = self.random.choice(families)
        first, second = (self._operand(family, scope, depth) for _ in range(2))
        sign = self.random.choice(["=", "<>", "<", "<=", ">", ">=", "is distinct from"])
        number = self._operand("number", scope, 0)
        forms = [
            f"{first} {sign} {second}",
            f"{number} {sign} {self.random.choice(['0.1', '1', '0.5', '2e0', '-7.1'])}",
            f"{number} in (1, 0.5, 2.25)",
            f"{number} between 0 and 2.5",
            f"({first} is null)",
            f"not ({first} {sign} {second})",
            f"({first} {sign} {second} or {number} > 0)",
            f"({first} {sign} {second} and {number} is not null)",
        ]
        if scope["text"]:
            forms.append(f"{self._operand('text', scope, 0)} like '%a%'")
        return self.random.choice(forms)

    def _aggregate(self, scope: Scope, name: str | None = None) -> str:
        numbers = [column for column in scope["number"] if column.split(".")[-1] in _SUMMED]
        number = self.random.choice(numbers)
        condition = self._maybe(f" filter (where {self._operand('bool', scope, 1)})", 0.2)
        name = name or self.random.choice([*_AGGREGATES, "count distinct"])
        if name == "count *":
            return f"count(*){condition}"
        if name == "count distinct":
            return f"count(distinct {self._value(scope, 0)})" if not condition else "count(*)"
        if name in ("sum", "avg"):
            return f"{name}({number}){condition}"
        return f"{name}({self._value(scope, 1)}){condition}"
