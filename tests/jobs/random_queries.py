"""Random queries of jobs, from a grammar of forms that mix windows and of forms that do not."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Literal

# Event times inside of hourly windows, by the end that belongs to the window.
_FITTING_TIMES = {
    "left": (
        "{time}", "date_trunc('hour', {time})", "date_trunc('minute', {time})",
        "date_trunc('hour', {time}) + interval 30 minutes", "date_trunc('hour', cast({time} as timestamp))",
        "date_trunc('hour', {time}) + interval 59 minutes",
    ),
    "right": (
        "date_trunc('hour', {time}) + interval 1 hour", "date_trunc('hour', {time}) + interval '60 minutes'",
        "date_trunc('hour', {time} - interval '1 hour') + interval 2 hours",
        "date_trunc('second', {time}) + interval 1 second",
        "date_trunc('minute', {time}) + interval '1 minute'",
    ),
}  # fmt: skip
_OUTSIDE_TIMES = (
    "date_trunc('day', {time})", "time_bucket(interval '15 minutes', {time})",
    "date_trunc('week', {time}) + interval '1 hour'",
    "date_trunc('hour', {time}) + interval '61 minutes'", "{time} - interval '1 hour'",
)  # fmt: skip
_BOUNDS = (
    "{time} >= $window_start", "$window_start <= {time}", "{time} < $window_end",
    "$window_end > {time}", "({time} >= $window_start and {time} < $window_end)",
)  # fmt: skip
_RISKY_BOUNDS = (
    "{time} > $window_start", "{time} <= $window_end", "not {time} < $window_start",
    "({time} >= $window_start or {time} < $window_end)", "{time} < $window_start",
    "{time} between $window_start and $window_end", "{time} >= $window_start - interval 1 hour",
    "{other}.left_at < $window_end", "{other}.valid_from < $window_end",
    "{other}.valid_from >= $window_start", "valid_from < $window_end",
)  # fmt: skip
_JOINS = ("join", "left join", "semi join", "anti join", "cross join")
_RISKY_JOINS = ("right join", "full join", *_JOINS)
_MEASURES = (
    "count(*)", "sum({trips}.fare)", "max({trips}.fare)", "count(distinct {trips}.fare)",
    "count(*) filter (where {trips}.fare > 1)", "min(epoch_us({trips}.left_at))",
    "stddev_pop({trips}.fare)",
)  # fmt: skip
_RISKY_MEASURES = (
    "max(epoch_us($window_end))", "row_number() over (order by {trips}.id)",
    "sum(count(*)) over ()", "count(*) filter (where {trips}.left_at > $window_start)",
    "(select count(*) from trips)", "epoch_us($window_end) - epoch_us(max({trips}.left_at))",
)  # fmt: skip
_RISKY_TIMES = (
    "max({time})", "$window_end", "$window_start", "$window_end - interval '1 hour'",
    "greatest({time}, timestamptz '2024-01-01 02:00:00Z')", "{other}.valid_from",
)  # fmt: skip


@dataclass(frozen=True)
class RandomQuery:
    """A query over ``trips`` and ``stops``, which have times, and ``prices``; rules of its job."""

    sql: str
    closed: Literal["left", "right"]
    lookback: str | None

    @property
    def rules(self) -> dict[str, Any]:
        """The arguments of ``sql_job``."""
        return {"sql": self.sql, "closed": self.closed, "lookback": self.lookback}


class QueryGenerator:
    """Generates one query; half of the queries have few forms that mix windows."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.risk = self.random.choice((0.02, 0.3))
        self.closed: Literal["left", "right"] = self.random.choice(("left", "right"))

    def query(self) -> RandomQuery:
        """Return a random query."""
        tables = self._tables()
        time = f"{self.trips}.left_at" if self._occurs(0.7) else "left_at"
        self.names = {"time": time, "trips": self.trips, "other": self.second_alias}
        conditions = [
            self._choose(_BOUNDS, _RISKY_BOUNDS) for _ in range(self.random.randint(0, 3))
        ]
        conditions += [f"{self.trips}.fare > 1"] * self._occurs(0.3)
        filters = f" where {' and '.join(conditions)}" if conditions else ""
        outputs, clauses = self._outputs(time)
        lookback = "1h" if self._occurs(self.risk / 6) else None
        sql = f"select {outputs} from {tables}{filters}{clauses}"
        return RandomQuery(sql, self.closed, lookback)

    def _occurs(self, probability: float) -> bool:
        return self.random.random() < probability

    def _choose(self, usual: tuple[str, ...], risky: tuple[str, ...]) -> str:
        forms = risky if self._occurs(self.risk) else usual
        return self.random.choice(forms).format(**self.names)

    def _tables(self) -> str:
        """Return the FROM clause, after choosing the aliases of the trips and of another table."""
        self.trips = self.random.choice(("trips", "t"))
        self.second_alias = "p"
        trips = "trips" if self.trips == "trips" else "trips t"
        if self._occurs(0.5):
            return trips
        self.names: dict[str, str] = {}
        join = self._choose(_JOINS, _RISKY_JOINS)
        second = self._choose(("prices",), ("stops", "trips"))
        condition = f"on p.zone = {self.trips}.zone"
        if self._occurs(self.risk):
            condition += " and p.valid_from < $window_end"
        elif self._occurs(0.3):
            condition = "using (zone)"
        if join == "cross join":
            condition = ""
        if self._occurs(0.3):
            join = self.random.choice(("join", "right join", join))
            return f"{second} p {join} {trips} {condition}"
        return f"{trips} {join} {second} p {condition}"

    def _event_time(self, time: str) -> str:
        if self._occurs(self.risk / 2):
            return self._choose(_RISKY_TIMES, _RISKY_TIMES)
        forms = _FITTING_TIMES[self.closed]
        if self._occurs(0.25):
            forms = (*_FITTING_TIMES["left"], *_FITTING_TIMES["right"], *_OUTSIDE_TIMES)
        text = self.random.choice(forms).format(time=time)
        if self._occurs(0.15):
            return f"cast({text} as {self.random.choice(('timestamp', 'date', 'timestamptz'))})"
        return text

    def _outputs(self, time: str) -> tuple[str, str]:
        """Return the columns of the query, and the clauses after WHERE."""
        hour = self._event_time(time)
        has_time = self._occurs(0.85)
        columns = [f"{self.trips}.zone"] + [f"{hour} as hour"] * has_time
        if self._occurs(0.35):
            if self.second_alias not in hour and self._occurs(0.1):
                return f"{self.trips}.*, {hour} as hour", ""
            columns += [f"{self.trips}.id", f"{self.trips}.fare * 2 as double"]
            distinct = "distinct " if self._occurs(0.2) else ""
            limit = " order by 1, 2, 3 limit 2" if self._occurs(self.risk / 2) else ""
            return distinct + ", ".join(columns), limit
        measures = [self._choose(_MEASURES, _RISKY_MEASURES) for _ in range(2)]
        columns += [f"{measure} as m{number}" for number, measure in enumerate(measures)]
        keys = ["all", "1, 2", f"{self.trips}.zone, {time}"]
        if has_time:
            keys += [f"{self.trips}.zone, hour", f"{hour}, {self.trips}.zone"]
        else:
            keys = ["1", "all", f"{self.trips}.zone"]
        if self._occurs(self.risk / 3):
            keys = ["1", f"{self.trips}.zone"]
        group = "" if self._occurs(self.risk / 4) else f" group by {self.random.choice(keys)}"
        having = " having count(*) > 1" if group and self._occurs(0.15) else ""
        return ", ".join(columns), group + having
