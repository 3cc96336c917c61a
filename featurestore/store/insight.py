"""Calls that look into data: validation, statistics, pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.figure import Figure

    from featurestore.featuregroups.table import TableVersion
    from featurestore.model.statistics import Statistics
    from featurestore.model.validation import ValidationReport
    from featurestore.retrieval.conversions import DataframeType

__all__ = ["InsightCalls"]


class InsightCalls(StoreBase):
    """The calls on validation, statistics and pictures."""

    def validate_featuregroup(
        self, name: str, *, version: int | None = None, expectations: object = None
    ) -> ValidationReport:
        """Check the present rows of a feature group and return the report, which is kept.

        Args:
            name: The group.
            version: Its version; None: the latest.
            expectations: What to check; None: the group's own expectations.

        >>> limits = {"column": "temp", "max_value": 38}
        >>> hot = {"type": "expect_column_max_to_be_between", "kwargs": limits}
        >>> report = store.validate_featuregroup("weather", expectations=[hot])
        >>> (report.success, report.results[-1].expectation["type"])
        (False, 'expect_column_max_to_be_between')
        """
        from featurestore.featuregroups.quality import validate

        return validate(self._session, name, version=version, expectations=expectations)

    def get_validation_history(
        self, name: str, *, version: int | None = None, limit: int | None = None
    ) -> list[ValidationReport]:
        """Return the reports of a feature group's audits, refused writes among them, oldest first.

        Args:
            name: Name of the feature group.
            version: Its version; None: the newest.
            limit: Only the newest so many; None: all.

        >>> [report.success for report in store.get_validation_history("weather")]
        [True]
        """
        from featurestore.featuregroups.quality import validation_history

        return validation_history(self._session, name, version=version, limit=limit)

    def get_featuregroup_quarantine(
        self,
        name: str,
        *,
        version: int | None = None,
        dataframe_type: DataframeType | None = None,
    ) -> Any:
        """Return the rows in quarantine (``validation="quarantine"``), each with its ``reasons``.

        Args:
            name: The group.
            version: Its version; None: the latest.
            dataframe_type: None (FeatureFrame), "pandas", "polars", "arrow", "numpy", "python" or
                "spark".

        >>> lost = [{"tailnum": None, "seats": 5}]
        >>> _ = store.insert_into_featuregroup(lost, "planes", validation="quarantine")
        >>> store.get_featuregroup_quarantine("planes", dataframe_type="python")
        [{'tailnum': None, 'seats': 5, 'reasons': ["no_null_keys(columns=['tailnum'])"]}]
        """
        from featurestore.featuregroups.table import read_quarantine
        from featurestore.retrieval import check_dataframe_type, convert

        check_dataframe_type(dataframe_type)
        return convert(read_quarantine(self._session, name, version=version), dataframe_type)

    def get_featuregroup_statistics(
        self, name: str, *, version: int | None = None, delta_version: TableVersion | None = None
    ) -> Statistics:
        """Return the statistics of a feature group, computed now unless its commit stored them.

        >>> statistics = store.get_featuregroup_statistics("weather")
        >>> (statistics.rows, statistics.column("temp").mean)
        (4, 37.625)
        """
        from featurestore.featuregroups.quality import statistics_of

        return statistics_of(self._session, name, version=version, delta_version=delta_version)

    def update_featuregroup_statistics(
        self, name: str, *, version: int | None = None
    ) -> Statistics:
        """Count the statistics of a feature group anew, keep and return them.

        >>> store.update_featuregroup_statistics("planes").rows
        2
        """
        from featurestore.featuregroups.quality import statistics_of

        return statistics_of(self._session, name, version=version, recount=True)

    def visualize_featuregroup_correlations(
        self,
        name: str,
        *,
        version: int | None = None,
        compare_with: int | str | None = None,
        plot: bool = True,
        figsize: tuple[float, float] | None = None,
        cmap: str = "coolwarm",
        annot: bool | None = None,
        method: str = "pearson",
    ) -> Figure | None:
        """Draw a heatmap of a feature group's correlations, similar features side by side.

        Args:
            name: The group.
            version: Its version; None: the latest.
            compare_with: Another version, or another group, drawn next to it.
            plot: Show the picture and return None; False: return the matplotlib figure.
            figsize: Inches.
            cmap: A diverging color map of matplotlib.
            annot: Write the numbers into the cells; None: where they are readable.
            method: "pearson" (all rows; of more than 64 features the sample) or "spearman" (ranks
                within the sample).

        >>> figure = store.visualize_featuregroup_correlations("weather", plot=False)
        >>> figure.savefig("correlations.png")
        """
        from featurestore.featuregroups.quality import statistics_of, statistics_to_compare
        from featurestore.statistics import plots

        statistics = statistics_of(self._session, name, version=version)
        other_statistics = statistics_to_compare(self._session, name, compare_with)
        figure = plots.correlations(
            statistics,
            other=other_statistics,
            method=method,
            figsize=figsize,
            cmap=cmap,
            annot=annot,
        )
        return plots.shown(figure, plot=plot)

    def visualize_featuregroup_distributions(
        self,
        name: str,
        *,
        version: int | None = None,
        compare_with: int | str | None = None,
        columns: Sequence[str] | None = None,
        plot: bool = True,
        figsize: tuple[float, float] | None = None,
    ) -> Figure | None:
        """Draw the distribution of each feature of a group (arguments as for correlations).

        >>> figure = store.visualize_featuregroup_distributions("weather", plot=False)
        >>> len(figure.axes)
        2
        """
        from featurestore.featuregroups.quality import statistics_of, statistics_to_compare
        from featurestore.statistics import plots

        statistics = statistics_of(self._session, name, version=version)
        other_statistics = statistics_to_compare(self._session, name, compare_with)
        figure = plots.distributions(
            statistics, other=other_statistics, columns=columns, figsize=figsize
        )
        return plots.shown(figure, plot=plot)

    def visualize_featuregroup_clusters(
        self,
        name: str,
        *,
        version: int | None = None,
        clusters: int | None = None,
        plot: bool = True,
        figsize: tuple[float, float] | None = None,
    ) -> Figure | None:
        """Draw the clusters of a group's sampled rows: k-means on its scaled features.

        Without ``clusters`` as many as fit best.

        >>> figure = store.visualize_featuregroup_clusters("weather", plot=False)
        """
        from featurestore.featuregroups.quality import state_of, statistics_of
        from featurestore.statistics import plots
        from featurestore.statistics.clusters import find_clusters

        state = find_clusters(state_of(self._session, name, version=version), clusters=clusters)
        source = statistics_of(self._session, name, version=version).source
        figure = plots.clusters(state, source=source, figsize=figsize)
        return plots.shown(figure, plot=plot)

    def visualize_featuregroup_descriptive_stats(
        self, name: str, *, version: int | None = None
    ) -> pd.DataFrame:
        """Return the statistics of a feature group as a pandas frame, one row a feature.

        >>> store.visualize_featuregroup_descriptive_stats("weather").loc["temp", "mean"]
        37.625
        """
        from featurestore.featuregroups.quality import statistics_of
        from featurestore.statistics.summary import descriptive_stats

        return descriptive_stats(statistics_of(self._session, name, version=version))

    def visualize_training_dataset_correlations(
        self,
        name: str,
        *,
        version: int | None = None,
        split: str | None = None,
        compare_with: str | None = None,
        plot: bool = True,
        figsize: tuple[float, float] | None = None,
        cmap: str = "coolwarm",
        annot: bool | None = None,
        method: str = "pearson",
    ) -> Figure | None:
        """Draw a heatmap of the correlations of a split, next to those of ``compare_with``.

        Without ``split`` it is the first one.

        >>> figure = store.visualize_training_dataset_correlations("late_flights", plot=False)
        """
        from featurestore.statistics import plots
        from featurestore.training.catalog import get
        from featurestore.training.export.split_statistics import split_statistics

        dataset = get(self._session, name, version)
        statistics, other_statistics = split_statistics(dataset, split, compare_with)
        figure = plots.correlations(
            statistics,
            other=other_statistics,
            method=method,
            figsize=figsize,
            cmap=cmap,
            annot=annot,
        )
        return plots.shown(figure, plot=plot)

    def visualize_training_dataset_distributions(
        self,
        name: str,
        *,
        version: int | None = None,
        split: str | None = None,
        compare_with: str | None = None,
        columns: Sequence[str] | None = None,
        plot: bool = True,
        figsize: tuple[float, float] | None = None,
    ) -> Figure | None:
        """Draw the distribution of each column of a split, and over it those of another.

        Without ``split`` it is the first one.

        >>> figure = store.visualize_training_dataset_distributions("late_flights", plot=False)
        """
        from featurestore.statistics import plots
        from featurestore.training.catalog import get
        from featurestore.training.export.split_statistics import split_statistics

        dataset = get(self._session, name, version)
        statistics, other_statistics = split_statistics(dataset, split, compare_with)
        figure = plots.distributions(
            statistics, other=other_statistics, columns=columns, figsize=figsize
        )
        return plots.shown(figure, plot=plot)

    def visualize_training_dataset_clusters(
        self,
        name: str,
        *,
        version: int | None = None,
        split: str | None = None,
        clusters: int | None = None,
        plot: bool = True,
        figsize: tuple[float, float] | None = None,
    ) -> Figure | None:
        """Draw the clusters of the sampled rows of a split (None: the first).

        >>> figure = store.visualize_training_dataset_clusters("late_flights", plot=False)
        """
        from featurestore.statistics import plots
        from featurestore.statistics.clusters import find_clusters
        from featurestore.training.catalog import get
        from featurestore.training.export.split_statistics import cluster_sample

        dataset = get(self._session, name, version)
        sample, source = cluster_sample(dataset, split)
        figure = plots.clusters(
            find_clusters(sample, clusters=clusters), source=source, figsize=figsize
        )
        return plots.shown(figure, plot=plot)

    def visualize_training_dataset_descriptive_stats(
        self, name: str, *, version: int | None = None, split: str | None = None
    ) -> pd.DataFrame:
        """Return the statistics of a split (None: the first) as a pandas frame, one row a column.

        >>> store.visualize_training_dataset_descriptive_stats("late_flights").loc["seats", "mean"]
        150.0
        """
        from featurestore.statistics.summary import descriptive_stats
        from featurestore.training.catalog import get
        from featurestore.training.export.split_statistics import split_statistics

        statistics, _ = split_statistics(get(self._session, name, version), split)
        return descriptive_stats(statistics)
