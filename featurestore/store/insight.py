"""Methods for validation, statistics and plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from featurestore.featuregroups.table import TableVersion
    from featurestore.model.statistics import Statistics
    from featurestore.model.validation import ValidationReport
    from featurestore.retrieval.conversions import DataframeType

__all__ = ["InsightCalls"]


class InsightCalls(StoreBase):
    """Methods for validation, statistics and plots."""

    def validate_featuregroup(
        self, name: str, *, version: int | None = None, expectations: object = None
    ) -> ValidationReport:
        """Validate the current rows of a feature group; store and return the report.

        Args:
            name: Name of the feature group.
            version: The group version; None: the latest.
            expectations: The expectations to check; None: those of the group.

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
        """List the validation reports of a feature group, including refused writes, oldest first.

        Args:
            name: Name of the feature group.
            version: The group version; None: the latest.
            limit: The number of newest reports to return; None: all.

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
        """Return the quarantined rows (``validation="quarantine"``) with their ``reasons``.

        Args:
            name: Name of the feature group.
            version: The group version; None: the latest.
            dataframe_type: None (FeatureFrame), "pandas", "polars", "arrow", "numpy", "python" or
                "spark".

        >>> lost = [{"tailnum": None, "seats": 5}]
        >>> _ = store.insert_into_featuregroup(lost, "planes", validation="quarantine")
        >>> store.get_featuregroup_quarantine("planes", dataframe_type="python")
        [{'tailnum': None, 'seats': 5, 'reasons': ["no_null_keys(columns=['tailnum'])"]}]
        """
        from featurestore.featuregroups.frames import read_quarantine
        from featurestore.retrieval import check_dataframe_type, convert

        check_dataframe_type(dataframe_type)
        return convert(read_quarantine(self._session, name, version=version), dataframe_type)

    def get_featuregroup_statistics(
        self, name: str, *, version: int | None = None, delta_version: TableVersion | None = None
    ) -> Statistics:
        """Return the statistics of a feature group; compute them if the commit did not store any.

        >>> statistics = store.get_featuregroup_statistics("weather")
        >>> (statistics.rows, statistics.column("temp").mean)
        (4, 37.625)
        """
        from featurestore.featuregroups.quality import load_statistics

        return load_statistics(self._session, name, version=version, delta_version=delta_version)

    def update_featuregroup_statistics(
        self, name: str, *, version: int | None = None
    ) -> Statistics:
        """Recompute the statistics of a feature group; store and return them.

        >>> store.update_featuregroup_statistics("planes").rows
        2
        """
        from featurestore.featuregroups.quality import load_statistics

        return load_statistics(self._session, name, version=version, recount=True)

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
        """Plot a heatmap of the correlations in a feature group, similar features side by side.

        Args:
            name: Name of the feature group.
            version: The group version; None: the latest.
            compare_with: Another version, or another group, that is plotted next to it.
            plot: Show the plot and return None; False: return the matplotlib figure.
            figsize: Width and height in inches.
            cmap: A diverging matplotlib color map.
            annot: Write numbers into the cells; None: if they are readable.
            method: "pearson" (over all rows, or the sample for more than 64 features) or "spearman"
                (ranks within the sample).

        >>> figure = store.visualize_featuregroup_correlations("weather", plot=False)
        >>> figure.savefig("correlations.png")
        """
        from featurestore.featuregroups.quality import load_statistics, load_statistics_to_compare
        from featurestore.statistics import plots

        statistics = load_statistics(self._session, name, version=version)
        other_statistics = load_statistics_to_compare(self._session, name, compare_with)
        figure = plots.correlations(
            statistics,
            other=other_statistics,
            method=method,
            figsize=figsize,
            cmap=cmap,
            annot=annot,
        )
        return plots.show_or_return(figure, plot=plot)

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
        """Plot the distribution of each feature in a group (arguments as for correlations).

        >>> figure = store.visualize_featuregroup_distributions("weather", plot=False)
        >>> len(figure.axes)
        2
        """
        from featurestore.featuregroups.quality import load_statistics, load_statistics_to_compare
        from featurestore.statistics import plots

        statistics = load_statistics(self._session, name, version=version)
        other_statistics = load_statistics_to_compare(self._session, name, compare_with)
        figure = plots.distributions(
            statistics, other=other_statistics, columns=columns, figsize=figsize
        )
        return plots.show_or_return(figure, plot=plot)

    def visualize_featuregroup_clusters(
        self,
        name: str,
        *,
        version: int | None = None,
        clusters: int | None = None,
        plot: bool = True,
        figsize: tuple[float, float] | None = None,
    ) -> Figure | None:
        """Plot the k-means clusters of sampled rows in a group, computed on scaled features.

        If ``clusters`` is None, the number that fits best is used.

        >>> figure = store.visualize_featuregroup_clusters("weather", plot=False)
        """
        from featurestore.featuregroups.quality import load_statistics, load_statistics_state
        from featurestore.statistics import plots
        from featurestore.statistics.clusters import find_clusters

        state = find_clusters(
            load_statistics_state(self._session, name, version=version), clusters=clusters
        )
        source = load_statistics(self._session, name, version=version).source
        figure = plots.clusters(state, source=source, figsize=figsize)
        return plots.show_or_return(figure, plot=plot)

    def visualize_featuregroup_descriptive_stats(
        self, name: str, *, version: int | None = None, plot: bool = False
    ) -> Any:
        """Return the statistics of a feature group as a pandas dataframe with one row per feature.

        ``plot=True`` displays the table and returns None, as the other ``visualize`` calls do.

        >>> store.visualize_featuregroup_descriptive_stats("weather").loc["temp", "mean"]
        37.625
        """
        from featurestore.featuregroups.quality import load_statistics
        from featurestore.statistics.summary import descriptive_stats, show_or_return_table

        table = descriptive_stats(load_statistics(self._session, name, version=version))
        return show_or_return_table(table, plot=plot)

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
        """Plot a heatmap of the correlations in a split, next to the split ``compare_with``.

        ``split`` defaults to the first split.

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
        return plots.show_or_return(figure, plot=plot)

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
        """Plot the distribution of each column in a split, over that of ``compare_with``.

        ``split`` defaults to the first split.

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
        return plots.show_or_return(figure, plot=plot)

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
        """Plot the clusters of sampled rows in a split (None: the first).

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
        return plots.show_or_return(figure, plot=plot)

    def visualize_training_dataset_descriptive_stats(
        self,
        name: str,
        *,
        version: int | None = None,
        split: str | None = None,
        plot: bool = False,
    ) -> Any:
        """Return the statistics of a split (None: the first) as a dataframe with a row per column.

        ``plot=True`` displays the table and returns None.

        >>> store.visualize_training_dataset_descriptive_stats("late_flights").loc["seats", "mean"]
        150.0
        """
        from featurestore.statistics.summary import descriptive_stats, show_or_return_table
        from featurestore.training.catalog import get
        from featurestore.training.export.split_statistics import split_statistics

        statistics, _ = split_statistics(get(self._session, name, version), split)
        return show_or_return_table(descriptive_stats(statistics), plot=plot)
