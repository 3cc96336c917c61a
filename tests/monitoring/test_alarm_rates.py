"""False alarm and detection rates of monitors on seeded series with a weekly season."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from featurestore.model.finding import Finding
from featurestore.model.monitor import MonitorSpec
from featurestore.monitoring import rules
from featurestore.monitoring.bounds import chance_unseen
from featurestore.monitoring.comparison import FixedReference
from featurestore.monitoring.missing_values import (
    MissingCount,
    MissingValues,
    is_jointly_out_of_bounds,
)
from tests.monitoring.series import (
    FAULTS,
    alarms,
    compared,
    day,
    is_found,
    number_profile,
    plain,
    series,
)

WATCHED = plain(MonitorSpec("series"))


@pytest.mark.slow
def test_unchanged_windows_alarm_at_most_one_percent() -> None:
    judged = alarmed = 0
    for seed in range(2):
        days = {number: day(series(seed), number) for number in range(156)}
        for _, actual in alarms(WATCHED, days, range(56, 156)):
            judged += 1
            alarmed += bool(actual)
    assert judged == 200
    assert alarmed <= judged / 100


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_detected_within_two_windows_95_percent(fault: str) -> None:
    actual = [is_found(WATCHED, series(seed), 61 + seed, fault) for seed in range(20)]
    assert sum(actual) >= 19


def test_drift_bounds_do_not_exceed_maximum_distance() -> None:
    few = replace(series(3), rows=4)
    days = {number: day(few, number) for number in range(57)}
    findings = rules.evaluate_rules(WATCHED, days[56], FixedReference(compared(days, 56))).findings
    drift = [
        finding for finding in findings if finding.kind == "drift" and finding.measure != "psi"
    ]
    assert {finding.measure for finding in drift} >= {"ks"}
    assert max(finding.high for finding in drift if finding.high is not None) == 1.0
    assert not any(finding.out for finding in drift)


def test_occasional_values_are_not_out_of_bounds() -> None:
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, 201)
    out = 0
    for _ in range(200):
        before = rng.multinomial(1400, weights / weights.sum())
        now = rng.multinomial(200, weights / weights.sum())
        share = now[before == 0].sum() / 200
        out += share > chance_unseen(before[before > 0].tolist(), 200, 0.005)
    assert out == 0
    assert chance_unseen([500, 300, 200], 200, 0.005) < 0.1


ROWS = 500
SHAPES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, number: rng.normal(number % 7, 1, ROWS),
    "heavy tails": lambda rng, _: rng.standard_cauchy(ROWS),
    "prices": lambda rng, _: rng.lognormal(3, 2, ROWS),
    "daily level": lambda rng, _: rng.normal(rng.normal(0, 2), 1, ROWS),
    "counter": lambda rng, number: np.arange(ROWS) + number * ROWS,
    "constant": lambda rng, _: np.full(ROWS, 3.0),
    "few numbers": lambda rng, _: rng.integers(0, 5, ROWS).astype(float),
}


def out_of_range(
    shape: str, seed: int, change: Callable[[np.ndarray], np.ndarray] | None = None
) -> Finding:
    """Return the finding about the range of the last of 57 days, whose values ``change`` changes."""
    rng = np.random.default_rng([seed, 5])
    days = {}
    for number in range(57):
        values = SHAPES[shape](rng, number)
        if number == 56 and change is not None:
            values = change(values)
        days[number] = number_profile(number, values)
    findings = rules.evaluate_rules(WATCHED, days[56], FixedReference(compared(days, 56))).findings
    return next(finding for finding in findings if finding.measure == "out_of_range")


@pytest.mark.parametrize("shape", SHAPES)
def test_out_of_range_is_rare_for_unchanged_values(shape: str) -> None:
    assert sum(out_of_range(shape, seed).out for seed in range(40)) <= 1


@pytest.mark.parametrize("shape", ["normal", "prices", "constant", "few numbers"])
@pytest.mark.parametrize("direction", [-1, 1])
def test_out_of_range_detects_a_share_of_extreme_values(shape: str, direction: int) -> None:
    def with_outliers(values: np.ndarray) -> np.ndarray:
        values[: ROWS // 10] = direction * 1e7
        return values

    for seed in range(20):
        finding = out_of_range(shape, seed, with_outliers)
        assert finding.out
        assert finding.value == pytest.approx(0.1, abs=0.021)


@pytest.mark.parametrize(("storm", "alarms"), [(0.0, True), (0.03, True), (0.06, False)])
def test_missing_values_as_in_baseline_peak_do_not_alarm(storm: float, alarms: bool) -> None:
    excess = {}
    for number in range(1, 57):
        share = 0.002 * (-1) ** number
        if number in (20, 21):
            share = storm
        excess[timedelta(days=number)] = MissingCount(share * 1000, 1000)
    now, before = MissingCount(80, 1000), MissingCount(20 * 56, 1000 * 56)
    day_of = MissingValues("x", now, before, 0.01, 0.005, 0.001, excess)
    assert is_jointly_out_of_bounds([day_of, day_of]) is alarms
