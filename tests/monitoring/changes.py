"""Daily series with a planted change, evaluated window by window like a monitor.

Ten scenarios: two without a change (``none``, ``seasonal``), seven with a change that lasts, and
one burst of three days. The change starts on day ``CHANGE``; the 56 days before fill the baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import numpy.typing as npt

from featurestore.jobs.monitors.baselines import Baselines, History
from featurestore.model.finding import Finding
from featurestore.model.monitor import Baseline, MonitorSpec
from featurestore.model.times import Window
from featurestore.monitoring import rules
from featurestore.monitoring.profile import FeatureProfile, Profile
from tests.monitoring.series import DAY, GRID, START, Series, _number, _values, series

KINDS = (
    "none",
    "step",
    "ramp",
    "seasonal",
    "step in seasonality",
    "dried-up source",
    "doubled nulls",
    "new categories",
    "outlier burst",
    "variance change",
)
SIZES = (200, 2_000, 20_000)
UNCHANGED = ("none", "seasonal")
# Evaluated from the first full baseline on; the change comes later, so that false alarms are counted
# in the same series before it.
JUDGED, CHANGE, END = 56, 70, 110
BURST_DAYS = 3
RAMP_A_DAY, RAMP_DAYS = 0.1, 30
# A ramp counts as begun when it has moved as far as the step.
RAMP_VISIBLE = 5


def begin(scenario: str) -> int:
    """Return the first day on which a monitor should detect a change."""
    return CHANGE + RAMP_VISIBLE if scenario == "ramp" else CHANGE


def end(scenario: str) -> int:
    """Return the day after the last one with the change."""
    return CHANGE + BURST_DAYS if scenario == "outlier burst" else END


def source(scenario: str, seed: int, rows: int) -> Series:
    """Return the parameters of a series; ``seasonal`` scenarios have a strong weekly season."""
    parameters = replace(series(seed), rows=float(rows))
    if scenario in ("seasonal", "step in seasonality"):
        rng = np.random.default_rng([seed, 7])
        means = rng.permutation(np.linspace(-1.0, 1.0, 7))
        return replace(parameters, means=means, of_week=rng.uniform(0.4, 1.0, 7))
    return parameters


@dataclass(frozen=True)
class Day:
    """The rows of a day: present numbers, missing numbers, and counts of strings."""

    values: npt.NDArray[np.float64]
    nulls: int
    texts: dict[str, int]


def day_of(scenario: str, parameters: Series, number: int) -> Day:
    """Return the rows of a day of a scenario."""
    rng = np.random.default_rng([parameters.seed, number])
    days = number - CHANGE
    changed = days >= 0 and number < end(scenario)
    weekday = number % 7
    if changed and scenario == "step in seasonality":
        weekday = (weekday + 3) % 7
    expected = parameters.rows * parameters.of_week[weekday] * rng.lognormal(0.0, parameters.wobble)
    share = parameters.null_share * rng.lognormal(0.0, parameters.wobble)
    if changed and scenario == "doubled nulls":
        share *= 2
    rows = int(rng.poisson(expected))
    if changed and scenario == "dried-up source":
        rows = 0
    nulls = int(rng.binomial(rows, min(share, 1.0)))
    values = _values(parameters, rng, rows - nulls)
    deviation = values.std() if rows > nulls else 1.0
    middle = values.mean() if rows > nulls else 0.0
    if changed and scenario == "variance change":
        values = middle + 2 * (values - middle)
    values = values + (parameters.means[weekday] + parameters.wobble * rng.normal()) * deviation
    if changed and scenario == "step":
        values = values + 0.5 * deviation
    if changed and scenario == "ramp":
        values = values + RAMP_A_DAY * min(days + 1, RAMP_DAYS) * deviation
    if changed and scenario == "outlier burst":
        values[rng.random(len(values)) < 0.2] += 20 * deviation
    counts = rng.multinomial(rows, np.array([5, 4, 3, 2, 1, 1]) / 16)
    texts = {name: int(count) for name, count in zip("abcdef", counts, strict=True) if count}
    if changed and scenario == "new categories" and rows:
        texts["new"] = int(rng.binomial(rows, 0.05))
    return Day(values, nulls, texts)


def profile(scenario: str, parameters: Series, number: int) -> Profile:
    """Return the profile of a day of a scenario."""
    day = day_of(scenario, parameters, number)
    rows = sum(day.texts.values())
    texts = FeatureProfile(
        "kind", "string", "text", rows, 0, rows, values=tuple(day.texts.items()), complete=True
    )
    columns = {"x": _number("x", day.values, day.nulls), "kind": texts}
    types = {"x": "double", "kind": "string"}
    return Profile(window_of(number), len(day.values) + day.nulls, 1, 1, columns, types)


def window_of(number: int) -> Window:
    """Return the window of a day."""
    return Window(START + number * DAY, START + (number + 1) * DAY)


@dataclass(frozen=True)
class Verdict:
    """The alarms of a day, and whether an incident is open afterwards."""

    number: int
    alarms: tuple[Finding, ...]
    in_alarm: bool


def judge_all(
    watched: MonitorSpec, profiles: Sequence[Profile], first: int, *, frozen: bool = True
) -> list[Verdict]:
    """Evaluate days in order, like the runs of a monitor.

    Args:
        watched: What the monitor watches.
        profiles: The days, from day 0 on.
        first: The first day to judge.
        frozen: False lets days out of bounds enter the baseline, for comparison.
    """
    by_window = {profile.window: profile for profile in profiles}
    history = History(lambda window: [Window(window.start - DAY, window.start)])

    def load(windows: Iterable[Window]) -> list[Profile]:
        return [by_window[window] for window in windows if window in by_window]

    baselines = Baselines(watched.baseline, None, history, load, first=_start(profiles))
    verdicts: list[Verdict] = []
    judged: list[rules.RuleResult] = []
    in_alarm = False
    within = 0
    for number in range(first, len(profiles)):
        now = profiles[number]
        assert now.window is not None
        judged.append(rules.evaluate_rules(watched, now, baselines.for_window(now.window)))
        findings = rules.confirm_findings(judged, watched.confirm)
        if frozen:
            history.record(now.window, findings)
        alarms = tuple(finding for finding in findings if finding.alarm)
        within = 0 if any(finding.out for finding in findings) else within + 1
        in_alarm = bool(alarms) or (in_alarm and within < watched.confirm)
        verdicts.append(Verdict(number, alarms, in_alarm))
    return verdicts


def _start(profiles: Sequence[Profile]) -> datetime:
    window = profiles[0].window
    assert window is not None
    return window.start


def watched_by(last_days: int | None = None) -> MonitorSpec:
    """Return a monitor of a series with the default baseline or the last days."""
    watched = MonitorSpec("series", schema=False)
    if last_days is None:
        return watched
    return replace(watched, baseline=Baseline(last=last_days * DAY))


__all__ = ["GRID", "KINDS", "SIZES", "judge_all", "profile", "source", "watched_by"]
