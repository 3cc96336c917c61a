"""FeatureView: the handle of one version of a feature view."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from featurestore.model.arguments import suggest_arguments
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.names import format_group_reference
from featurestore.model.requests import RowsRequest, TrainingRequest
from featurestore.progress import show_progress
from featurestore.retrieval.catalog import RegisteredSpecs
from featurestore.retrieval.conversions import check_dataframe_type
from featurestore.retrieval.frame import convert
from featurestore.retrieval.view_rows import find_problems, retrieve_rows
from featurestore.serving.view_calls import ServedView
from featurestore.session import Session
from featurestore.views import definition
from featurestore.views.definition import check_label

if TYPE_CHECKING:
    from featurestore.model.plan import FeaturePlan
    from featurestore.model.requests import TimeSplit
    from featurestore.retrieval.conversions import DataframeType
    from featurestore.training import TrainingDataset
    from featurestore.transform import Chain


@show_progress
@suggest_arguments
class FeatureView(ServedView):
    """One version of a feature view: a retrieval that training and scoring share.

    A view is immutable. It refers to group versions and not to Delta versions, so its definition is
    fixed but its rows are the current rows of the groups.

    >>> view = store.get_feature_view("late_flights")
    >>> (view.name, view.version, view.labels, view.label)
    ('late_flights', 1, 'questions@v1', ('late',))
    >>> view.features
    ['weather@v1.temp', 'planes@v1.seats']
    """

    def __init__(self, session: Session, spec: FeatureViewSpec) -> None:
        self._session = session
        self._spec = spec

    @property
    def name(self) -> str:
        """The name."""
        return self._spec.name

    @property
    def version(self) -> int:
        """The version."""
        return self._spec.version

    @property
    def spec(self) -> FeatureViewSpec:
        """The definition."""
        return self._spec

    @property
    def features(self) -> list[str]:
        """The feature references, each with its group version."""
        return [feature.reference for feature in self._spec.features]

    @property
    def on_demand(self) -> dict[str, str]:
        """The on-demand features, which are computed from each row, with their expressions.

        >>> store.get_feature_view("late_flights").on_demand
        {}
        """
        return {feature.name: feature.sql for feature in self._spec.on_demand}

    @property
    def labels(self) -> str | None:
        """The group with the labels, if the view has one."""
        return self._spec.labels

    @property
    def label(self) -> tuple[str, ...]:
        """The label columns of training datasets."""
        return self._spec.label

    @property
    def label_time(self) -> str | None:
        """The time column of the labels, if the view names one."""
        return self._spec.label_time

    @property
    def transformations(self) -> dict[str, Chain]:
        """The transformations of columns in training datasets of the view.

        >>> from featurestore import transform as t
        >>> view = store.create_feature_view(
        ...     "scaled", features=["planes.seats"], transformations={"seats": t.min_max()}
        ... )
        >>> store.get_feature_view("scaled").transformations
        {'seats': min_max(low=0.0, high=1.0)}
        """
        from featurestore.transform.fit import chains_from_json

        return chains_from_json(self._spec.transformations, view=self.name)

    @property
    def description(self) -> str:
        """The description."""
        return self._spec.description

    @property
    def tags(self) -> dict[str, str]:
        """The tags."""
        return dict(self._spec.tags)

    @property
    def featuregroups(self) -> list[str]:
        """The group versions that the view reads; the label group comes first."""
        return [format_group_reference(*group) for group in self._spec.groups]

    @property
    def problems(self) -> list[str]:
        """The features that the groups no longer have; empty if the view is valid.

        >>> store.get_feature_view("late_flights").problems
        []
        """
        return find_problems(self._spec, RegisteredSpecs(self._session))

    def get_features(
        self,
        *,
        labels: object | None = None,
        label_time: datetime | str | None = None,
        as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
        dataframe_type: DataframeType | None = None,
    ) -> Any:
        """Return the features for the labels of the view, or for other rows to score.

        Args:
            labels: A dataframe, a FeatureFrame or a group name; None means the view's labels.
            label_time: The time column of the labels, or one time for all rows; None means the
                view's label time.
            as_of: Read the store as it was at a time, or ``{group: Delta version or time}``.
            dataframe_type: None (FeatureFrame), "pandas", "polars", "arrow", "numpy", "python" or
                "spark".

        Raises:
            FeatureViewBroken: A group no longer has a feature of the view.

        >>> view = store.get_feature_view("late_flights")
        >>> view.get_features().columns
        ['tailnum', 'origin', 'asked_at', 'late', 'temp', 'seats']
        >>> questions = [{"tailnum": "N10", "origin": "JFK"}]
        >>> rows = view.get_features(labels=questions, label_time=hour(7)).to_arrow()
        >>> rows.column("temp").to_pylist()
        [39.0]
        >>> view.get_features(dataframe_type="pandas").shape
        (4, 6)
        """
        check_dataframe_type(dataframe_type)
        request = RowsRequest(labels=labels, label_time=label_time, as_of=as_of)
        return convert(retrieve_rows(self._session, self._spec, request), dataframe_type)

    def explain(
        self,
        *,
        labels: object | None = None,
        label_time: datetime | str | None = None,
        as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    ) -> FeaturePlan:
        """Write the plan of ``get_features`` to standard output and return it without running it.

        >>> plan = store.get_feature_view("late_flights").explain()
        columns    tailnum, origin, asked_at, late, temp, seats
        ...
        """
        request = RowsRequest(labels=labels, label_time=label_time, as_of=as_of)
        plan = retrieve_rows(self._session, self._spec, request).plan
        assert plan is not None
        sys.stdout.write(str(plan))
        return plan

    def create_training_dataset(
        self,
        name: str,
        *,
        labels: object | None = None,
        label_time: datetime | str | None = None,
        as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
        features: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
        weight: str | None = None,
        data_format: str = "tfrecord",
        splits: Mapping[str, float] | TimeSplit | None = None,
        split_by: str | Sequence[str] | None = None,
        stratify: str | Sequence[str] | None = None,
        seed: int = 0,
        key: str | Sequence[str] | None = None,
        shards: int | None = None,
        rows_per_shard: int | None = None,
        block_rows: int | None = None,
        version: int | None = None,
        compression: str | None = None,
        max_lengths: Mapping[str, int] | None = None,
        description: str = "",
        tags: Mapping[str, str] | None = None,
        expectations: object = None,
        validation: str = "strict",
        statistics: bool = True,
        transformations: Mapping[str, Chain] | None = None,
        fit_on: str = "train",
        missing_labels: str = "error",
        progress: bool | Callable[[str, int, int], None] | None = None,
    ) -> TrainingDataset:
        """Export the rows of the view as a training dataset whose manifest names the view.

        ``get_features`` describes ``labels``, ``label_time`` and ``as_of``;
        ``FeatureStore.create_training_dataset`` describes the other arguments. The view determines
        the label, and by default the transformations. Rows without label are refused, unless
        ``missing_labels`` is "drop" or "weight_zero".

        >>> view = store.get_feature_view("late_flights")
        >>> dataset = view.create_training_dataset("delays", progress=False)
        >>> dataset.manifest.view
        {'name': 'late_flights', 'version': 1}
        """
        # Writing is imported here: reading a view needs no export code.
        from featurestore.training.create import create

        # A dataset may override the transformations of the view; {} means none.
        if transformations is None:
            transformations = self.transformations
        request = TrainingRequest(
            name=name,
            label=self._spec.label or None,
            features=features,
            exclude=exclude,
            weight=weight,
            data_format=data_format,
            splits=splits,
            split_by=split_by,
            stratify=stratify,
            seed=seed,
            key=key,
            shards=shards,
            rows_per_shard=rows_per_shard,
            block_rows=block_rows,
            version=version,
            compression=compression,
            max_lengths=max_lengths,
            description=description,
            tags=tags,
            expectations=expectations,
            validation=validation,
            statistics=statistics,
            transformations=transformations,
            fit_on=fit_on,
            missing_labels=missing_labels,
        )
        rows = RowsRequest(labels=labels, label_time=label_time, as_of=as_of)
        frame = retrieve_rows(self._session, self._spec, rows)
        # Labels of the caller may lack the label column of the view.
        check_label(self._spec, frame.columns)
        return create(self._session, frame, request, progress=progress)

    def training_datasets(self) -> list[tuple[str, int]]:
        """Return the name and version of each training dataset created from the view.

        >>> store.get_feature_view("late_flights").training_datasets()
        []
        """
        return definition.list_datasets(self._session, self.name, self.version)

    def __repr__(self) -> str:
        return f"FeatureView({self.name!r}, version={self.version})"

    def __eq__(self, view: object) -> bool:
        if not isinstance(view, FeatureView):
            return NotImplemented
        # Two connections to the same location read the same view.
        identity = (self._session.location, self.name, self.version)
        return identity == (view._session.location, view.name, view.version)

    def __hash__(self) -> int:
        return hash((self._session.location, self.name, self.version))
