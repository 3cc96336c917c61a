"""Plots of statistics.

Figures without an engine, readable labels, the scale fixed, missing drawn as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import FeatureNotFound, InvalidArgument, StatisticsNotFound
from featurestore.model.statistics import Statistics
from featurestore.statistics import StatisticsState, compare_statistics, finish, plots
from featurestore.statistics.clusters import (
    find_clusters,
    rows_from_bytes,
    rows_to_bytes,
    select_cluster_rows,
)
from featurestore.statistics.plots.heatmap import clustered_order
from featurestore.statistics.summary import descriptive_stats
from featurestore.training import TrainingDataset
from tests.statistics.example_tables import accumulator_of, count, statistics_of, varied_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from featurestore.store import FeatureStore

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quiet_backend() -> Iterator[None]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield
    assert not plt.get_fignums(), "a picture was left open in pyplot"


def table_of(columns: int, rows: int = 400) -> pa.Table:
    random = np.random.default_rng(columns)
    base = random.normal(size=(rows, max(2, columns // 5)))
    data = {
        f"feature_{index}": base[:, index % base.shape[1]] * (-1) ** index
        + random.normal(size=rows)
        for index in range(columns)
    }
    return pa.table(data)


def statistics_of_columns(columns: int) -> Statistics:
    result: Statistics = statistics_of(table_of(columns))
    return result


def pixels(figure: Figure) -> Any:
    """Return the rendered figure as an array (rows, columns, 4)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


@pytest.mark.parametrize("columns", [2, 60, 150])
def test_correlations_plot_fits_any_number_of_columns(columns: int) -> None:
    figure = plots.correlations(statistics_of_columns(columns))
    heatmap = figure.axes[0].collections[0]
    assert heatmap.get_clim() == (-1.0, 1.0)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == (columns if columns <= 120 else 0)
    assert pixels(figure).std() > 1
    texts = " ".join(text.get_text() for axis in figure.axes for text in axis.texts)
    assert ("Strongest pairs" in texts) == (columns > 25)


def test_correlations_plot_annotates_small_heatmaps_only() -> None:
    def count_texts(figure: Figure) -> int:
        return len(figure.axes[0].texts)

    assert count_texts(plots.correlations(statistics_of_columns(5))) == 25
    assert count_texts(plots.correlations(statistics_of_columns(20))) == 0
    assert count_texts(plots.correlations(statistics_of_columns(5), annot=False)) == 0


def test_correlations_plot_missing_values_hatched_and_last() -> None:
    table = table_of(3).append_column("constant", pa.array(np.ones(400)))
    figure = plots.correlations(statistics_of(table))
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()][-1] == "constant"
    assert len(axis.patches) == 7
    assert all(patch.get_hatch() for patch in axis.patches)


def test_correlations_plot_two_versions_share_column_order() -> None:
    figure = plots.correlations(
        statistics_of_columns(6), other=statistics_of_columns(5), method="spearman"
    )
    left_axis, right_axis = figure.axes[0], figure.axes[1]
    assert [label.get_text() for label in left_axis.get_yticklabels()] == [
        label.get_text() for label in right_axis.get_yticklabels()
    ]
    assert len(left_axis.get_yticklabels()) == 5


def test_correlations_plot_orders_similar_columns_together() -> None:
    random = np.random.default_rng(0)
    base = random.normal(size=(500, 3))
    groups = random.permutation(np.repeat([0, 1, 2], 4))
    matrix = np.corrcoef(
        np.stack([base[:, group] + 0.3 * random.normal(size=500) for group in groups])
    )
    order = clustered_order(matrix)
    assert sorted(order) == list(range(12))
    assert np.count_nonzero(np.diff(groups[order])) == 2


@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_plot_text_contrasts_in_light_and_dark_style(style: str) -> None:
    from matplotlib import pyplot as plt
    from matplotlib.colors import to_rgb

    with plt.style.context(style):
        actual = statistics_of_columns(5)
        for figure in (plots.correlations(actual), plots.distributions(actual)):
            background = np.mean(to_rgb(figure.get_facecolor()))
            assert figure.get_facecolor()[3] == 1.0
            for label in figure.axes[0].get_yticklabels():
                assert abs(np.mean(to_rgb(label.get_color())) - background) > 0.5


def test_distributions_plot_draws_every_kind_of_column() -> None:
    statistics = statistics_of(varied_table(300))
    figure = plots.distributions(statistics, other=statistics_of(varied_table(200, seed=1)))
    titles = [axis.get_title() for axis in figure.axes if axis.axison]
    assert any(title.startswith("holed") and "missing" in title for title in titles)
    assert "empty  (100 % missing)" in titles
    assert not any(title.startswith("list") for title in titles)
    assert len(plots.distributions(statistics, columns=["word"]).axes[0].patches) == 4
    with pytest.raises(FeatureNotFound):
        plots.distributions(statistics, columns=["absent"])


def panel(column: pa.Array, *, second_column: pa.Array | None = None) -> Any:
    """Return the rendered panel of one column."""
    second = None
    if second_column is not None:
        second = statistics_of(pa.table({"x": second_column}))
    figure = plots.distributions(statistics_of(pa.table({"x": column})), other=second)
    assert pixels(figure).std() > 1
    return figure.axes[0]


def bar_lengths(axis: Any) -> list[float]:
    return [max(bar.get_width(), 0.0) for bar in axis.patches]


@pytest.mark.parametrize(
    ("draw", "pattern"),
    [
        (lambda random: random.lognormal(10, 2, 5_000), r"^log scale"),
        (lambda random: random.standard_t(1.2, 5_000), r"% below, from -.*\n.*% above, to "),
        (lambda random: np.append(random.normal(5, 1, 999), 58_900), r"^0.5 % above, to 58.9 k$"),
        (lambda random: np.append(random.poisson(9, 4_950), range(200, 250)), r"% above, to "),
        (lambda random: random.normal(0, 1, 5_000), r"^$"),
        (lambda random: random.exponential(1, 5_000), r"^$"),
        (lambda random: np.append(np.zeros(4_999), 1_000), r"^$"),
    ],
    ids=["lognormal", "both tails", "outlier", "counts", "normal", "exponential", "constant"],
)
def test_distributions_plot_truncated_tail_is_labelled(draw: Any, pattern: str) -> None:
    axis = panel(pa.array(draw(np.random.default_rng(0))))
    assert re.search(pattern, axis.get_xlabel())
    assert (axis.get_xscale() == "log") == ("log scale" in axis.get_xlabel())
    if pattern != r"^$":
        heights = sorted(bar.get_height() for bar in axis.patches)
        assert 0.9 < sum(heights) <= 1.0 + 1e-9
        assert heights[-1] < 0.7, "one bar and an empty picture"


def test_distributions_plot_sentinel_time_is_truncated() -> None:
    days = pd.date_range("2020-01-01", periods=980, freq="D").tolist()
    times = pa.array([*days, *[pd.Timestamp("2200-01-01")] * 20], pa.timestamp("us", "UTC"))
    assert panel(times).get_xlabel().endswith("above, to 2200-01")


def test_distributions_plot_shifted_table_with_long_tail_is_complete() -> None:
    random = np.random.default_rng(0)
    values = np.append(random.normal(0, 1, 999), 1e6)
    axis = panel(pa.array(values), second_column=pa.array(values + 50))
    line = axis.patches[-1].get_data().values
    assert sum(line) > 0.99


def test_distributions_plot_ticks_and_units() -> None:
    random = np.random.default_rng(0)
    tables = [random.integers(0, 300_000, 5_000), random.normal(0, 1, 333), np.arange(100) % 7]
    for values in tables:
        axis = panel(pa.array(values))
        for tick, label in zip(axis.get_yticks(), axis.get_yticklabels(), strict=True):
            number = label.get_text().replace("\N{MINUS SIGN}", "-").removesuffix(" %")
            assert float(number) == pytest.approx(100 * tick)
    axis = panel(pa.array(tables[0]))
    assert "100 k" in [label.get_text() for label in axis.get_xticklabels()]
    years = panel(pa.array(random.integers(1990, 2021, 500)))
    assert "2000" in [label.get_text() for label in years.get_xticklabels()]


@pytest.mark.parametrize("classes", [3, 12, 3_000])
def test_distributions_plot_combines_rare_texts_as_others(classes: int) -> None:
    random = np.random.default_rng(0)
    words = [f"class {number}" for number in random.integers(0, classes, 20_000)]
    axis = panel(pa.array(words))
    assert sum(bar_lengths(axis)) == pytest.approx(1.0)
    names = [label.get_text() for label in axis.get_yticklabels()]
    labels = statistics_of(pa.table({"x": words})).column("x").distinct
    assert (names[-1] == f"{labels - 8:,} others") == (classes > 8)


def test_distributions_plot_sampled_text_shares_sum_to_one() -> None:
    words = np.array(["a", "b"])[np.arange(40_000) % 2]
    table = pa.table({"x": words, "n": np.arange(40_000)})
    figure = plots.distributions(statistics_of(table, limit=2_000), columns=["x"])
    assert sum(bar_lengths(figure.axes[0])) == pytest.approx(1.0)


def test_plots_count_omitted_features_and_accept_columns() -> None:
    statistics = statistics_of(table_of(200, rows=50))
    title = plots.distributions(statistics).get_suptitle()
    assert "the first 60 of 200 features; choose with columns=[...]" in title
    assert "of 200" not in plots.distributions(statistics, columns=["feature_199"]).get_suptitle()
    axes = plots.correlations(statistics).axes
    texts = [*axes[-1].texts, *axes[1].texts]
    assert any("200 columns: no names above 120" in text.get_text() for text in texts)
    table = table_of(200, rows=50)
    grouped = find_clusters(count(accumulator_of(table), table.to_batches()), clusters=2)
    right = plots.clusters(grouped).axes[1]
    assert "the 40 of 200 features that differ most" in right.get_title()
    report = compare_statistics(statistics, statistics)
    assert (
        "the first 30 of 200 features"
        in plots.drift(report, statistics, statistics).axes[0].get_title()
    )


def test_drift_plot_is_drawn() -> None:
    before, after = statistics_of_columns(5), statistics_of(table_of(5, rows=900))
    report = compare_statistics(before, after)
    assert pixels(plots.drift(report, before, after)).std() > 1


def clustered_state() -> StatisticsState:
    random = np.random.default_rng(0)
    centers = np.array([[0, 0, 0], [8, 8, 0], [-8, 8, 5]])
    rows = np.concatenate(
        [
            random.normal(center, 1, (size, 3))
            for center, size in zip(centers, (300, 200, 100), strict=True)
        ]
    )
    table = pa.table({name: rows[:, index] for index, name in enumerate("abc")})
    table = table.append_column("constant", pa.array(np.ones(600))).append_column(
        "holed", pa.array(np.ones(600), mask=np.arange(600) % 2 == 0)
    )
    return count(accumulator_of(table), table.to_batches(max_chunksize=100))


def test_clusters_are_named_by_size() -> None:
    matches = find_clusters(clustered_state())
    assert np.bincount(matches.labels).tolist() == [300, 200, 100]
    assert matches.columns == ("a", "b", "c")
    assert matches.left_out == ("constant", "holed")
    assert matches.centers.shape == (3, 3)
    again = find_clusters(clustered_state())
    assert np.array_equal(matches.labels, again.labels)
    assert len(find_clusters(clustered_state(), clusters=5).centers) == 5
    assert plots.clusters(matches).axes[0].get_aspect() == 1.0, "distances are as they are"
    assert pixels(plots.clusters(matches)).std() > 1


def test_clusters_of_stored_rows_equal_clusters_of_state() -> None:
    state = clustered_state()
    expected, actual = (
        find_clusters(state),
        find_clusters(rows_from_bytes(rows_to_bytes(select_cluster_rows(state)))),
    )
    assert np.array_equal(expected.labels, actual.labels)
    assert (expected.columns, expected.left_out) == (actual.columns, actual.left_out)


@pytest.mark.parametrize("scale", [1e150, 1e300, 1.7e308])
def test_clusters_of_values_near_float64_limit(scale: float) -> None:
    random = np.random.default_rng(0)
    sides = np.repeat([-0.9, 0.9], 40)
    table = pa.table({name: (sides + random.uniform(-0.05, 0.05, 80)) * scale for name in "ab"})
    matches = find_clusters(count(accumulator_of(table), table.to_batches()), clusters=2)
    assert np.bincount(matches.labels).tolist() == [40, 40]
    np.testing.assert_allclose(np.abs(matches.centers), 1.0, atol=0.05)
    assert (
        pixels(plots.distributions(finish(count(accumulator_of(table), table.to_batches())))).std()
        > 1
    )


def test_clusters_of_one_feature_raise() -> None:
    table = pa.table({"a": [1.0, 2.0, 3.0]})
    with pytest.raises(StatisticsNotFound, match="two numeric features"):
        find_clusters(count(accumulator_of(table), table.to_batches()))


def test_descriptive_stats_frame_keeps_missing_values() -> None:
    frame = descriptive_stats(statistics_of(varied_table(300)))
    assert list(frame.index[:2]) == ["plain", "related"]
    assert frame.loc["empty", "count"] == 0
    for name in ("mean", "std", "min", "50%", "sum", "length_min"):
        assert pd.isna(frame.loc["empty", name])
    assert frame.loc["word", "length_max"] == 7
    assert descriptive_stats(finish(count(accumulator_of(varied_table(1)), []))).shape[0] == 19


def test_plots_without_drawable_data_raise() -> None:
    words = statistics_of(pa.table({"a": ["x", "y"], "n": [1, 2]}))
    with pytest.raises(StatisticsNotFound, match="two numeric features"):
        plots.correlations(words)
    with pytest.raises(InvalidArgument, match="method='kendall'"):
        plots.correlations(statistics_of_columns(3), method="kendall")
    with pytest.raises(StatisticsNotFound):
        plots.distributions(statistics_of(pa.table({"l": [[1]]})))


# -- the calls of the talk ----------------------------------------------------------------------------------------


def test_module_level_visualize_functions_draw_groups(empty_store: FeatureStore) -> None:
    featurestore.create_featuregroup(np.random.default_rng(0).random((20, 10)), "eit_school")
    assert featurestore.visualize_featuregroup_correlations("eit_school") is None
    for draw in (
        featurestore.visualize_featuregroup_correlations,
        featurestore.visualize_featuregroup_distributions,
        featurestore.visualize_featuregroup_clusters,
    ):
        figure = draw("eit_school", plot=False, figsize=(6, 5))
        assert figure.get_size_inches().tolist() == [6, 5]
        assert pixels(figure).std() > 1
    assert len(featurestore.visualize_featuregroup_descriptive_stats("eit_school")) == 10


def test_plot_without_display_logs_how_to_save(
    flights_store: FeatureStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert flights_store.visualize_featuregroup_correlations("weather") is None
    assert "plot=False and save the figure: figure.savefig('figure.png')" in caplog.text
    caplog.clear()
    flights_store.visualize_featuregroup_correlations("weather", plot=False)
    assert not caplog.text


def test_group_plots_need_no_engine(
    flights_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = type(flights_store.session.engine)
    for name in ("read_table", "aggregate", "stream"):
        monkeypatch.setattr(engine, name, None)
    assert flights_store.visualize_featuregroup_correlations("weather", plot=False) is not None
    assert flights_store.visualize_featuregroup_distributions("weather", plot=False) is not None
    assert flights_store.visualize_featuregroup_clusters("weather", plot=False) is not None


def test_correlations_plot_compares_two_group_versions(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(table_of(4), "things")
    empty_store.create_featuregroup(table_of(4, rows=500), "things")
    figure = empty_store.visualize_featuregroup_correlations(
        "things", version=1, compare_with=2, plot=False
    )
    assert figure is not None
    assert [axis.get_title() for axis in figure.axes[:2]] == [
        "things v1 (Delta 1) Pearson correlation",
        "things v2 (Delta 1) Pearson correlation",
    ]


def test_training_dataset_plots_by_split_need_no_engine(
    empty_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_store.create_training_dataset(
        table_of(4), "things", data_format="parquet", splits={"train": 0.7, "test": 0.3}
    )
    engine = type(empty_store.session.engine)
    for name in ("read_files", "read_table", "aggregate", "stream"):
        monkeypatch.setattr(engine, name, None)
    monkeypatch.setattr(TrainingDataset, "read", None)
    calls = (
        empty_store.visualize_training_dataset_correlations,
        empty_store.visualize_training_dataset_distributions,
        empty_store.visualize_training_dataset_clusters,
    )
    for draw in calls:
        assert draw("things", split="test", plot=False) is not None
    for sample in Path(empty_store.get_training_dataset("things").path, "_statistics").iterdir():
        content = sample.read_bytes()
        sample.write_bytes(content[:-1] + b"?")
        assert [
            problem.file for problem in empty_store.get_training_dataset("things").verify().problems
        ] == [f"_statistics/{sample.name}"]
        sample.write_bytes(content)
    compared = empty_store.visualize_training_dataset_correlations(
        "things", compare_with="test", plot=False
    )
    assert compared is not None
    assert (
        len(empty_store.visualize_training_dataset_descriptive_stats("things", split="train")) == 4
    )
