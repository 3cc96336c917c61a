"""Drift is detected for different distributions, and not for samples of the same one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from featurestore.cli import app
from featurestore.errors import InvalidArgument
from featurestore.model.statistics import Statistics
from featurestore.statistics import DriftReport, DriftThresholds, compare_statistics
from featurestore.statistics.drift import cumulative
from tests.statistics.example_tables import statistics_of, varied_table

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

ROWS = 20_000


def random(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def stats_of(values: object, **options: object) -> Statistics:
    result: Statistics = statistics_of(pa.table({"x": values}), **options)
    return result


def test_drift_of_same_table_is_zero() -> None:
    statistics = statistics_of(varied_table(2_000))
    report = compare_statistics(statistics, statistics)
    assert report.ok
    assert all(
        (feature.psi or 0.0) == 0.0 and (feature.ks or 0.0) == 0.0 for feature in report.features
    )


@pytest.mark.parametrize("rows", [30, 300, 3_000])
@pytest.mark.parametrize("seed", range(5))
def test_drift_of_two_samples_of_one_distribution_is_ok(rows: int, seed: int) -> None:
    tables = [
        pa.table(
            {
                "normal": random(seed * 2 + side).normal(size=rows),
                "counts": random(seed * 2 + side).poisson(3, rows),
                "word": random(seed * 2 + side).choice(["a", "b", "c"], rows),
            }
        )
        for side in (0, 1)
    ]
    report = compare_statistics(statistics_of(tables[0]), statistics_of(tables[1]))
    assert not report.drifted, str(report)


@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0, 3.0])
def test_drift_ks_equals_scipy(shift: float) -> None:
    from scipy.stats import ks_2samp

    a, b = random(1).normal(size=ROWS), random(2).normal(size=ROWS) * 1.5 + shift
    report = compare_statistics(stats_of(a), stats_of(b))
    expected = ks_2samp(a, b).statistic
    assert report.feature("x").ks == pytest.approx(expected, abs=0.006)


def test_drift_ks_of_few_values_is_exact() -> None:
    from scipy.stats import ks_2samp

    a, b = random(1).poisson(2, ROWS), random(2).poisson(3, ROWS)
    report = compare_statistics(stats_of(a), stats_of(b))
    assert report.feature("x").ks == pytest.approx(ks_2samp(a, b).statistic, abs=1e-12)


def test_drift_psi_uses_deciles_of_first_table() -> None:
    a, b = random(3).normal(size=ROWS), random(4).normal(0.5, 1.2, ROWS)
    edges = np.quantile(a, np.linspace(0, 1, 11))[1:-1]
    p, q = (
        np.bincount(np.searchsorted(edges, values, side="left"), minlength=10) / ROWS
        for values in (a, b)
    )
    expected = float(((q - p) * np.log(q / p)).sum())
    statistics = compare_statistics(stats_of(a), stats_of(b)).feature("x")
    assert statistics.psi == pytest.approx(expected, rel=0.02)
    assert statistics.drifted
    assert statistics.reasons[0].startswith("PSI")


def test_drift_reports_new_categories() -> None:
    a = random(1).choice(["a", "b"], ROWS)
    b = random(2).choice(["a", "b", "c"], ROWS, p=[0.45, 0.45, 0.1])
    statistics = compare_statistics(stats_of(a), stats_of(b)).feature("x")
    assert statistics.new_values == ("c",)
    assert statistics.new_share == pytest.approx(0.1, abs=0.01)
    assert any("new values" in reason for reason in statistics.reasons)
    assert compare_statistics(stats_of(b), stats_of(a)).feature("x").gone_values == ("c",)


def test_drift_reports_new_missing_values() -> None:
    values = random(1).normal(size=ROWS)
    holed = pa.array(values, mask=random(2).random(ROWS) < 0.2)
    statistics = compare_statistics(stats_of(values), stats_of(holed)).feature("x")
    assert statistics.missing_before == 0.0
    assert statistics.missing_after == pytest.approx(0.2, abs=0.01)
    assert statistics.reasons == (f"missing 0.0% -> {statistics.missing_after:.1%}",)


def test_drift_thresholds_are_configurable() -> None:
    a, b = stats_of(random(1).normal(size=ROWS)), stats_of(random(2).normal(0.3, 1, ROWS))
    assert compare_statistics(a, b).feature("x").drifted
    relaxed = DriftThresholds(psi=1.0, ks=0.9)
    assert not compare_statistics(a, b, thresholds=relaxed).feature("x").drifted


def test_drift_reports_added_removed_and_retyped_columns() -> None:
    before = statistics_of(pa.table({"a": [1, 2], "b": [1, 2], "c": [1, 2]}))
    after = statistics_of(pa.table({"a": [1, 2], "c": ["x", "y"], "d": [1, 2]}))
    report = compare_statistics(before, after)
    assert (report.added, report.removed, report.retyped) == (("d",), ("b",), ("c",))
    assert not report.ok


def test_drift_of_constant_and_empty_columns() -> None:
    table = pa.table({"constant": np.full(100, 2.0), "empty": pa.nulls(100, pa.float64())})
    changed_table = pa.table(
        {"constant": np.full(100, 3.0), "empty": pa.array([None] * 50 + [1.0] * 50)}
    )
    report = compare_statistics(statistics_of(table), statistics_of(changed_table))
    assert report.feature("constant").ks == 1.0
    assert report.feature("empty").psi is None
    assert report.feature("empty").drifted


def test_drift_of_samples_above_limit_compares_shares() -> None:
    words = [f"w{index}" for index in range(40)]
    a = stats_of(random(1).choice(words, ROWS), limit=1_000)
    b = stats_of(random(2).choice(words, ROWS), limit=1_000)
    assert not compare_statistics(a, b).drifted


def test_drift_report_json_and_text_roundtrip() -> None:
    report = compare_statistics(
        stats_of(random(1).normal(size=ROWS)), stats_of(random(2).normal(1, 1, ROWS))
    )
    assert (
        DriftReport.from_json(json.loads(json.dumps(report.to_json(), allow_nan=False))) == report
    )
    assert "x: PSI" in str(report)
    assert "1 of 1 features drifted" in str(report)


def test_drift_command_compares_groups_versions_and_delta_versions(
    empty_store: FeatureStore,
) -> None:
    for seed, mean in ((1, 0.0), (2, 3.0)):
        table = pa.table({"id": range(500), "x": random(seed).normal(mean, 1, 500)})
        empty_store.create_featuregroup(table, "sensor", primary_key=["id"])
    empty_store.create_featuregroup(table, "other", primary_key=["id"])
    empty_store.insert_into_featuregroup(
        table.set_column(1, "x", [[9.0] * 500]), "other", mode="overwrite"
    )

    def compare(before: str, after: str) -> DriftReport:
        words = [
            "--location",
            empty_store.location,
            "--output",
            "json",
            "fg",
            "compare",
            before,
            after,
        ]
        call = CliRunner().invoke(app, words)
        assert call.exit_code == 0, call.output
        return DriftReport.from_json(json.loads(call.stdout))

    assert compare("sensor@v1", "sensor@v2").feature("x").drifted
    assert compare("sensor@v2", "other#1").ok
    assert compare("other#1", "other#2").feature("x").ks == 1.0
    assert compare("sensor", "other").before == {
        "featuregroup": "sensor",
        "version": 2,
        "delta_version": 1,
    }


def test_drift_of_training_dataset_splits(empty_store: FeatureStore) -> None:
    table = pa.table({"id": range(2_000), "x": random(1).normal(size=2_000)})
    options: dict[str, Any] = {"data_format": "parquet", "key": ["id"]}
    even = empty_store.create_training_dataset(
        table, "even", splits={"train": 0.5, "test": 0.5}, **options
    )
    assert (
        compare_statistics(even.statistics("train"), even.statistics("test")).feature("x").drifted
        is False
    )
    moved = table.set_column(1, "x", [random(2).normal(4, 1, 2_000)])
    moved_dataset = empty_store.create_training_dataset(moved, "moved", **options)
    assert (
        compare_statistics(even.statistics("train"), moved_dataset.statistics("train"))
        .feature("x")
        .drifted
    )


def test_compare_statistics_invalid_argument_raises() -> None:
    with pytest.raises(InvalidArgument, match="before='weather'"):
        compare_statistics("weather", stats_of([1.0]))  # type: ignore[arg-type]


def test_distribution_function_rises_from_zero_to_one() -> None:
    for values in (
        random(1).normal(size=500),
        np.repeat([1.0, 2.0, 2.5], [3, 5, 2]),
        random(1).integers(0, 300, 2_000),
    ):
        function = cumulative(stats_of(values).column("x"))
        assert function is not None
        grid = np.linspace(min(values) - 1, max(values) + 1, 300)
        shares = function.share_up_to(grid)
        assert shares[0] == 0.0
        assert shares[-1] == 1.0
        assert np.all(np.diff(shares) >= 0)
        exact = np.searchsorted(np.sort(values), grid, side="right") / len(values)
        assert np.abs(shares - exact).max() < 0.012


def test_drift_of_many_texts_is_marked_incomplete() -> None:
    few = pa.table({"x": ["a", "b"] * 500, "n": range(1_000)})
    many = pa.table({"x": [f"name {number % 400}" for number in range(1_000)], "n": range(1_000)})
    for before, after, complete in ((few, few, True), (few, many, False), (many, many, False)):
        report = compare_statistics(statistics_of(before), statistics_of(after))
        assert report.feature("x").values_complete is complete
        assert report.feature("n").values_complete
        assert DriftReport.from_json(report.to_json()) == report
        assert ("most frequent" in report._repr_html_()) is not complete
