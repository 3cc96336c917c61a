"""Series with a weekly season as window profiles, and planted faults.

A series has one number, one text and missing values; its rows, its mean and its share of missing
values differ by weekday and from day to day, as those of real sources do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np

from featurestore.model.finding import Finding
from featurestore.model.monitor import MonitorSpec
from featurestore.model.times import Window
from featurestore.monitoring import rules
from featurestore.monitoring.comparison import FixedReference, ReferenceWindows
from featurestore.monitoring.profile import FeatureProfile, Profile

START = datetime(2023, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
GRID = np.linspace(0.0, 1.0, 101)
FAULTS = ("shift", "nulls", "half", "stopped")
_CATEGORIES = ("a", "b", "c", "d", "e", "f")


@dataclass(frozen=True)
class Series:
    """Parameters of a series: rows per day, weekly factors, and day-to-day variation."""

    seed: int
    shape: str
    rows: float
    of_week: np.ndarray
    means: np.ndarray
    null_share: float
    wobble: float


def series(seed: int) -> Series:
    rng = np.random.default_rng(seed)
    season = rng.uniform(0.0, 1.0)
    return Series(
        seed=seed,
        shape=str(rng.choice(["normal", "lognormal", "exponential", "student"])),
        rows=float(rng.uniform(400, 3000)),
        of_week=1 - 0.5 * season * rng.uniform(0, 1, 7),
        means=0.3 * season * rng.uniform(-1, 1, 7),
        null_share=float(rng.uniform(0.02, 0.2)),
        wobble=float(rng.uniform(0.0, 0.1)),
    )


def day(parameters: Series, number: int, *, fault: str | None = None) -> Profile:
    """Return the profile of one day; it is deterministic except for the fault."""
    rng = np.random.default_rng([parameters.seed, number])
    weekday = number % 7
    expected = parameters.rows * parameters.of_week[weekday] * rng.lognormal(0.0, parameters.wobble)
    share = parameters.null_share * rng.lognormal(0.0, parameters.wobble)
    if fault == "half":
        expected /= 2
    if fault == "nulls":
        share *= 2
    rows = int(rng.poisson(expected))
    if fault == "stopped":
        rows = 0
    nulls = int(rng.binomial(rows, min(share, 1.0)))
    values = _values(parameters, rng, rows - nulls)
    deviation = values.std() if rows > nulls else 1.0
    mean = parameters.means[weekday] + parameters.wobble * rng.normal()
    values = values + mean * deviation
    if fault == "shift":
        values = values + 0.5 * deviation
    weights = np.array([5, 4, 3, 2, 1, 1]) / 16
    counts = rng.multinomial(rows, weights)
    window = Window(START + number * DAY, START + (number + 1) * DAY)
    columns = {"x": _number("x", values, nulls), "kind": _text("kind", counts)}
    return Profile(window, rows, 1, 1, columns, {"x": "double", "kind": "string"})


def number_profile(number: int, values: np.ndarray) -> Profile:
    """Return the profile of a day with a single numeric feature."""
    window = Window(START + number * DAY, START + (number + 1) * DAY)
    columns = {"x": _number("x", values, 0)}
    return Profile(window, len(values), 1, 1, columns, {"x": "double"})


def _values(parameters: Series, rng: np.random.Generator, rows: int) -> np.ndarray:
    if parameters.shape == "lognormal":
        return rng.lognormal(0.0, 0.7, rows)
    if parameters.shape == "exponential":
        return rng.exponential(1.0, rows)
    if parameters.shape == "student":
        return rng.standard_t(4, rows)
    return rng.normal(0.0, 1.0, rows)


def _number(name: str, values: np.ndarray, nulls: int) -> FeatureProfile:
    quantiles: tuple[float, ...] = ()
    if len(values):
        quantiles = tuple(np.quantile(values, GRID).tolist())
    return FeatureProfile(
        name, "double", "number", len(values), nulls, len(values), quantiles=quantiles
    )


def _text(name: str, counts: np.ndarray) -> FeatureProfile:
    values = tuple((category, int(n)) for category, n in zip(_CATEGORIES, counts, strict=True) if n)
    rows = int(counts.sum())
    return FeatureProfile(name, "string", "text", rows, 0, rows, values=values, complete=True)


def compared(days: dict[int, Profile], number: int) -> ReferenceWindows:
    previous_days = [days[index] for index in range(number - 56, number)]
    groups = [(number - index) % 7 for index in range(number - 56, number)]
    same_weekday = [days[index] for index in range(number - 56, number, 7)]
    return ReferenceWindows(same_weekday, previous_days, groups, 8, same_weekday, previous_days)


def alarms(
    watched: MonitorSpec, days: dict[int, Profile], numbers: range
) -> Iterator[tuple[int, list[Finding]]]:
    """Yield the alarms of each of consecutive days."""
    judged = []
    for number in numbers:
        judged.append(
            rules.evaluate_rules(watched, days[number], FixedReference(compared(days, number)))
        )
        findings = rules.confirm_findings(judged, watched.confirm)
        yield number, [finding for finding in findings if finding.alarm]


def is_found(watched: MonitorSpec, parameters: Series, number: int, fault: str) -> bool:
    """Return whether a fault that starts on a day is detected within two windows."""
    days = {day_number: day(parameters, day_number) for day_number in range(number - 57, number)}
    for day_number in (number, number + 1):
        days[day_number] = day(parameters, day_number, fault=fault)
    expected = {"shift": "drift", "nulls": "nulls", "half": "volume", "stopped": "volume"}[fault]
    for day_number, result in alarms(watched, days, range(number - 1, number + 2)):
        if day_number >= number and any(finding.kind == expected for finding in result):
            return True
    return False


def plain(watched: MonitorSpec) -> MonitorSpec:
    """Return the monitored quantities without those that a series lacks."""
    return replace(watched, schema=False)
