"""Detection of changes of flags, categories and codes, beside scipy's tests at the same level."""

from __future__ import annotations

import re
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from featurestore.monitoring import bounds
from featurestore.monitoring.comparison import ComparedProfiles, measure_distances
from featurestore.monitoring.distances import Shares, chi_distance, measure_categories
from featurestore.store import FeatureStore
from tests.monitoring import detection
from tests.monitoring.conftest import DAY, NOW, START, Clock, Define


def test_changes_are_detected_within_two_windows_at_each_size(subtests: pytest.Subtests) -> None:
    for rows, changes in ((80, {"replaced codes"}), (200, {*detection.CHANGES})):
        with subtests.test(rows=rows):
            alarms = detection.monitor_alarms(detection.series(3, rows))
            assert detection.detected_changes(alarms) >= changes
            assert detection.false_alarms(alarms) == 0


@pytest.mark.soak
def test_table_of_detections_is_that_of_the_page_and_not_below_scipy(
    subtests: pytest.Subtests,
) -> None:
    table = detection.detection_table(detection.SEEDS)
    assert table in detection.WATCH_PAGE.read_text()
    rows = [re.findall(r"(\d+) of", line) for line in table.splitlines()[2:]]
    for monitor, by_scipy in zip(rows[::2], rows[1::2], strict=True):
        *detected, false_alarms = map(int, monitor)
        *detected_by_scipy, _ = map(int, by_scipy)
        with subtests.test(monitor):
            assert sum(detected) >= sum(detected_by_scipy)
            assert all(
                count >= scipy_count - 2
                for count, scipy_count in zip(detected, detected_by_scipy, strict=True)
            )
            assert false_alarms <= 1


@pytest.mark.soak
def test_207_series_without_change_raise_no_more_than_documented_alarms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(detection, "CHANGE", 1000)
    windows = [
        names
        for seed in range(69)
        for rows in detection.SIZES
        for names in detection.monitor_alarms(detection.series(seed + 500, rows))
    ]
    # One false alarm in 1,000 windows is documented.
    assert sum(map(bool, windows)) <= stats.poisson.ppf(0.999, len(windows) / 1000)


def compared_counts(before: np.ndarray, now: np.ndarray) -> Shares:
    """Return the shares of two samples without reference windows."""
    return Shares(
        before[np.newaxis] / before.sum(),
        now[np.newaxis] / now.sum(),
        np.array([float(before.sum())]),
        np.array([float(now.sum())]),
    )


@pytest.mark.parametrize("categories", [3, 6, 20])
def test_few_categories_are_out_of_bounds_exactly_by_chi_squared(categories: int) -> None:
    rng = np.random.default_rng(categories)
    decisions = set()
    for _ in range(200):
        shares = rng.dirichlet(np.full(categories, 5.0))
        changed = rng.dirichlet(200 * shares + 0.5)
        before = rng.multinomial(rng.integers(500, 5000), shares)
        now = rng.multinomial(rng.integers(300, 1500), changed)
        if stats.contingency.expected_freq([before, now]).min() < 5 or min(before) == 0:
            continue
        expected = stats.chi2_contingency([before, now], correction=False)
        compared = compared_counts(before, now)
        size = bounds.size_factor(before.sum(), now.sum())
        distance = chi_distance(compared.before, compared.now, compared.rows)[0]
        assert distance**2 / size == pytest.approx(expected.statistic)
        measured = measure_categories("tv", compared)
        # The approximation of the quantile is exact to three digits.
        if abs(expected.pvalue / 0.005 - 1) > 0.1:
            assert (measured.value > measured.limit(0.005)) == (expected.pvalue < 0.005)
            decisions.add(expected.pvalue < 0.005)
    assert decisions == {True, False}


def test_limit_of_few_expected_rows_is_rarely_exceeded() -> None:
    rng = np.random.default_rng(5)
    for weights in ([0.99, 0.01], [0.95, 0.03, 0.01, 0.01], np.full(30, 1 / 30)):
        out = 0
        for _ in range(2000):
            before, now = rng.multinomial(640, weights), rng.multinomial(80, weights)
            order = np.argsort(-before)
            counts = [np.append(each[order], 0) for each in (before, now)]
            measured = measure_categories("tv", compared_counts(*counts))
            out += measured.value > measured.limit(0.005)
        assert out <= 2000 * 0.005 + 3 * (2000 * 0.005) ** 0.5


def test_flag_is_out_of_bounds_as_boolean_wherever_it_is_as_integer() -> None:
    rng = np.random.default_rng(0)
    out = {"boolean": 0, "integer": 0}
    for _ in range(60):
        share, rows = rng.uniform(0.1, 0.9), int(rng.integers(50, 1500))
        changed = np.clip(share + rng.uniform(-0.3, 0.3), 0, 1)
        windows = [rng.random(rows) < share for _ in range(56)]
        now = rng.random(rows) < changed
        is_out = {}
        for name, dtype in (("boolean", np.bool_), ("integer", np.int64)):
            columns = [detection.column_profile("x", each.astype(dtype)) for each in windows]
            groups = [-number % 7 for number in range(-56, 0)]
            compared = ComparedProfiles(
                columns[::7], columns, detection.column_profile("x", now.astype(dtype)), groups
            )
            measured = measure_distances([compared])
            assert measured is not None
            distance = measured.distances["ks"]
            is_out[name] = distance.value > max(0.1, distance.limit(0.005))
            out[name] += is_out[name]
            assert distance.value == pytest.approx(
                abs(now.mean() - np.concatenate(windows[::7]).mean())
            )
        assert is_out["boolean"] >= is_out["integer"]
    assert out["boolean"] >= out["integer"] > 15


def flags(first: int, days: int, *, changed: bool = False) -> pa.Table:
    """Return 200 rows a day with a flag, the flag as an integer, a category and a code."""
    rng = np.random.default_rng([first, days])
    rows = 200 * days
    flag = rng.random(rows) < (0.5 if changed else 0.3)
    code = rng.choice(np.arange(1, 40, 2), rows)
    # Codes within the range are replaced, so that minimum, maximum and quantiles hardly change.
    code = np.where(changed & np.isin(code, (7, 15, 23)), code + 1, code)
    weights = [0.3, 0.3, 0.4] if changed else [0.5, 0.3, 0.2]
    event_times = [START + first * DAY + number * timedelta(minutes=7.2) for number in range(rows)]
    return pa.table(
        {
            "id": pa.array(range(first * 200, first * 200 + rows), pa.int64()),
            "at": pa.array(event_times, pa.timestamp("us", tz="UTC")),
            "flag": flag,
            "flag_number": flag.astype(np.int64),
            "code": code,
            "category": rng.choice(["a", "b", "c"], rows, p=weights),
        }
    )


def test_monitor_detects_changed_flag_category_and_codes(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    days = (NOW - START).days
    shop.create_featuregroup(flags(0, days), "sales", primary_key="id", event_time="at", version=2)
    define()
    shop.insert_into_featuregroup(flags(days, 2, changed=True), "sales")
    clock.now = NOW + 2 * DAY
    report = shop.check_monitor("watch")
    assert {(alarm.subject, alarm.measure) for alarm in report.alarms} >= {
        ("flag", "ks"),
        ("flag_number", "ks"),
        ("category", "tv"),
        ("code", "tv"),
        ("code", "new_values"),
    }
