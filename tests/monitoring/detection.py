"""Daily series of 25 features with planted changes, judged by a monitor and by tests of scipy.

Twenty features do not change. The others change on one day: a step of a number, a shift of the
shares of categories, a new category, a flag from 30 to 50 % true, and codes that are replaced by
codes within their range. The comparison uses the same baseline windows, the same significance level
and the same two consecutive windows: ``ks_2samp`` for numbers, ``chi2_contingency`` for values.

python -m tests.monitoring.detection    # writes the table into docs/how-to/watch.md, some minutes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import stats

from featurestore.model.monitor import MonitorSpec
from featurestore.model.times import Window
from featurestore.monitoring import bounds
from featurestore.monitoring.profile import FeatureProfile, Profile
from tests.monitoring.changes import judge_all
from tests.monitoring.series import DAY, GRID, START

SIZES = (80, 200, 1_500)
SEEDS = range(20)
WATCH_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "watch.md"
CHANGES = ("step", "category shift", "new category", "boolean", "replaced codes")
# The first 56 days are the baseline of the first judged day; the change starts on day ``CHANGE``.
JUDGED, CHANGE, END = 56, 60, 62
WATCHED = MonitorSpec("series", schema=False, volume=None)
_STEP = 0.5
_NEW_SHARE = 0.05
_WEIGHTS = np.array([5, 4, 3, 2, 1, 1]) / 16
_SHIFTED_WEIGHTS = np.array([3, 3, 3, 3, 2, 2]) / 16
_CODES = np.arange(1, 80, 2)
Values = npt.NDArray[np.generic]
Draw = Callable[[np.random.Generator, int], Values]


def _categories(weights: Sequence[float] | npt.NDArray[np.float64]) -> Draw:
    names = np.array([f"value {number}" for number in range(len(weights))])
    shares = np.asarray(weights) / np.sum(weights)
    return lambda rng, rows: rng.choice(names, rows, p=shares)


def _flag(share: float) -> Draw:
    return lambda rng, rows: rng.random(rows) < share


UNCHANGED: Mapping[str, Draw] = {
    **{f"normal {number}": lambda rng, rows: rng.normal(0, 1, rows) for number in range(4)},
    **{f"price {number}": lambda rng, rows: rng.lognormal(0, 1, rows) for number in range(3)},
    "heavy tails": lambda rng, rows: rng.standard_t(2, rows),
    "many counts": lambda rng, rows: rng.poisson(200, rows),
    "few counts": lambda rng, rows: rng.poisson(3, rows),
    "dice": lambda rng, rows: rng.integers(1, 7, rows),
    "flag as number": lambda rng, rows: (rng.random(rows) < 0.3).astype(np.int64),
    "even flag": _flag(0.5),
    "flag": _flag(0.3),
    "rare flag": _flag(0.02),
    "constant": _categories([1.0]),
    "three values": _categories([0.6, 0.3, 0.1]),
    "six values": _categories(_WEIGHTS),
    "rare values": _categories([0.9, 0.04, 0.03, 0.02, 0.006, 0.004]),
    "many values": _categories(1 / np.arange(1, 301)),
}
_BEFORE: Mapping[str, Draw] = {
    "step": lambda rng, rows: rng.normal(0, 1, rows),
    "category shift": _categories(_WEIGHTS),
    "new category": _categories(_WEIGHTS),
    "boolean": _flag(0.3),
    "replaced codes": lambda rng, rows: rng.choice(_CODES, rows),
}


def _with_new_category(rng: np.random.Generator, rows: int) -> Values:
    values = _BEFORE["new category"](rng, rows)
    return np.where(rng.random(rows) < _NEW_SHARE, "new", values)


def _with_replaced_codes(rng: np.random.Generator, rows: int) -> Values:
    codes = rng.choice(_CODES, rows)
    return np.where(np.isin(codes, _CODES[::8]), codes + 1, codes)


_AFTER: Mapping[str, Draw] = {
    "step": lambda rng, rows: rng.normal(_STEP, 1, rows),
    "category shift": _categories(_SHIFTED_WEIGHTS),
    "new category": _with_new_category,
    "boolean": _flag(0.5),
    "replaced codes": _with_replaced_codes,
}


@dataclass(frozen=True)
class Day:
    """The values of each feature of one day."""

    number: int
    values: Mapping[str, Values]

    @property
    def profile(self) -> Profile:
        """The profile of the day, as a monitor stores it."""
        columns = {name: column_profile(name, values) for name, values in self.values.items()}
        rows = len(self.values["step"])
        window = Window(START + self.number * DAY, START + (self.number + 1) * DAY)
        return Profile(window, rows, 1, 1, columns, {})


def column_profile(name: str, values: Values) -> FeatureProfile:
    """Return the profile of values, as the statistics of a window define it."""
    rows = len(values)
    kind, dtype = {"b": ("boolean", "bool"), "U": ("text", "string"), "i": ("number", "int64")}.get(
        values.dtype.kind, ("number", "double")
    )
    counts = Counter(values.tolist()).most_common()
    quantiles: tuple[float, ...] = ()
    complete = len(counts) <= 100
    if not complete and kind == "number":
        quantiles = tuple(np.quantile(values.astype(float), GRID).tolist())
        counts = []
    elif not complete:
        counts = [(value, count) for value, count in counts if count > 1][:20]
    return FeatureProfile(
        name,
        dtype,
        kind,
        rows,
        0,
        rows,
        quantiles=quantiles,
        values=tuple(counts),
        complete=complete,
    )


def series(seed: int, rows: int, *, days: int = END) -> list[Day]:
    """Return consecutive days of all features, with the changes from day ``CHANGE`` on."""
    rng = np.random.default_rng([seed, rows])
    days_of_series = []
    for number in range(days):
        count = int(rng.poisson(rows))
        draws = {**UNCHANGED, **(_AFTER if number >= CHANGE else _BEFORE)}
        days_of_series.append(Day(number, {name: draw(rng, count) for name, draw in draws.items()}))
    return days_of_series


def monitor_alarms(days: Sequence[Day]) -> list[set[str]]:
    """Return the features with an alarm of each day from ``JUDGED`` on."""
    verdicts = judge_all(WATCHED, [day.profile for day in days], JUDGED)
    return [{finding.subject for finding in verdict.alarms} for verdict in verdicts]


def scipy_alarms(days: Sequence[Day], confirm: int = 2) -> list[set[str]]:
    """Return the features whose two consecutive windows are both significant, by scipy."""
    alpha = bounds.alpha_of(len(days[0].values), confirm)
    significant = []
    for number in range(JUDGED, len(days)):
        members = [days[index] for index in range(number - 56, number, 7)]
        names = days[number].values
        significant.append(
            {
                name
                for name in names
                if p_value(
                    np.concatenate([member.values[name] for member in members]),
                    days[number].values[name],
                )
                < alpha
            }
        )
    return [set(), *(before & now for before, now in pairwise(significant))]


def p_value(before: Values, now: Values) -> float:
    """Return the p-value of scipy: Kolmogorov-Smirnov for numbers, chi-squared for values."""
    distinct = np.unique(np.concatenate((before, now)))
    if now.dtype.kind == "f" or (now.dtype.kind == "i" and len(distinct) > 20):
        return float(stats.ks_2samp(before, now).pvalue)
    if len(distinct) == 1:
        return 1.0
    table = [[np.sum(values == value) for value in distinct] for values in (before, now)]
    return float(stats.chi2_contingency(np.array(table), correction=False).pvalue)


def detected_changes(alarms: Sequence[set[str]]) -> set[str]:
    """Return the changes with an alarm no later than their second window."""
    return set().union(*alarms[CHANGE - JUDGED :]) & {*CHANGES}


def false_alarms(alarms: Sequence[set[str]]) -> int:
    """Return the number of windows with an alarm of a feature that has not changed."""
    before = [bool(names) for names in alarms[: CHANGE - JUDGED]]
    return sum(before) + sum(bool(names - {*CHANGES}) for names in alarms[CHANGE - JUDGED :])


def detection_table(seeds: Iterable[int]) -> str:
    """Return the table of ``docs/how-to/watch.md``: detected changes by size, and false alarms."""
    seeds = list(seeds)
    lines = [
        f"| rows per day | test | {' | '.join(CHANGES)} | windows with a false alarm |",
        f"| --- | --- |{' --- |' * len(CHANGES)} --- |",
    ]
    for rows in SIZES:
        by_test: dict[str, list[list[set[str]]]] = {"monitor": [], "scipy": []}
        for seed in seeds:
            days = series(seed, rows)
            by_test["monitor"].append(monitor_alarms(days))
            by_test["scipy"].append(scipy_alarms(days))
        for test, alarms_of_series in by_test.items():
            counts = Counter(
                change for alarms in alarms_of_series for change in detected_changes(alarms)
            )
            cells = [f"{counts[change]} of {len(seeds)}" for change in CHANGES]
            total = len(seeds) * (END - JUDGED)
            cells.append(f"{sum(map(false_alarms, alarms_of_series))} of {total}")
            lines.append(f"| {rows:,} | {test} | {' | '.join(cells)} |")
    return "\n".join(lines)


def replace_table(page: str, table: str) -> str:
    """Return a page whose table of detections is replaced."""
    start = page.index(table.splitlines()[0])
    return page[:start] + table + page[page.index("\n\n", start) :]


if __name__ == "__main__":
    text = WATCH_PAGE.read_text()
    WATCH_PAGE.write_text(replace_table(text, detection_table(SEEDS)))
