"""Methods for features and feature views: retrieval, explanation and leakage checks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from featurestore.errors import InvalidArgument
from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from featurestore.model.on_demand import OnDemandFeature
    from featurestore.model.plan import FeaturePlan
    from featurestore.model.requests import JoinKey, RetrievalRequest
    from featurestore.model.window_features import WindowFeature
    from featurestore.retrieval import FeatureFrame, LeakReport
    from featurestore.retrieval.conversions import DataframeType
    from featurestore.serving.publication import Publication
    from featurestore.transform import Chain
    from featurestore.views import FeatureView


class FeatureCalls(StoreBase):
    """Methods for features."""

    def get_feature(self, feature: str, *, dataframe_type: DataframeType | None = None) -> Any:
        """Return one feature, with one value per row of its group.

        Args:
            feature: A reference: ``f``, ``group.f`` or ``group@v2.f``.
            dataframe_type: As in ``get_features``.

        >>> store.get_feature("planes.seats", dataframe_type="python")
        [{'seats': 100}, {'seats': 200}]
        """
        if not isinstance(feature, str):
            raise InvalidArgument(
                f"get_feature accepts a single reference, not {feature!r}.",
                hint="get_features([...]) accepts several references",
            )
        return self.get_features(feature, dataframe_type=dataframe_type)

    def get_features(
        self,
        features: str
        | WindowFeature
        | OnDemandFeature
        | Sequence[str | WindowFeature | OnDemandFeature],
        *,
        labels: object | None = None,
        label_time: datetime | str | None = None,
        versions: Mapping[str, int] | None = None,
        join_key: JoinKey | None = None,
        join: Literal["left", "inner"] = "left",
        as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
        include_keys: bool = False,
        created_time_filter: bool = True,
        dataframe_type: DataframeType | None = None,
        verify: Literal["sample", "all"] | None = None,
    ) -> Any:
        """Join features to labels as of each label's time; the result has one row per label.

        Args:
            features: References: ``f`` (searched in the latest version of every group),
                ``group.f``, ``group@v2.f`` or ``group.*``, each optionally renamed with ``as
                name``; and the results of ``featurestore.window`` and ``featurestore.feature``.
            labels: The left side of the join: a dataframe, a FeatureFrame or the name of a group;
                its columns come first. None: the group of the first feature.
            label_time: The time column of the labels, or one time for all rows. It can be omitted
                if the labels have a single time column, or are a group with an event time.
            versions: ``{group: version}`` for references without one.
            join_key: Needed if label columns have other names than the key columns: a name, a list,
                ``{left column: key column}``, or ``{group: one of these}``.
            join: "left" keeps all labels; "inner" drops labels without a match in some group.
            as_of: Read the store as it was at a time, or ``{group: Delta version or time}``.
            include_keys: Without labels: also return the first group's primary key and event time.
            created_time_filter: Use a row only after its created time, if its group declares one.
            dataframe_type: None (FeatureFrame), "pandas", "polars", "arrow", "numpy", "python" or
                "spark".
            verify: "sample" compares random data files of each group (at most 4, 32 MiB) with their
                checksums at the call, "all" compares all data files.

        Raises:
            FeatureNotFound: A feature does not exist.
            AmbiguousFeature: A feature name without a group exists in several groups.
            NoJoinKey: The primary key of a group is not among the columns of the left side.
            LabelTimeRequired: The time column of the labels is ambiguous or missing.
            ColumnConflict: Two columns of the result would have the same name.

        >>> features = ["weather.temp", "planes.seats as plane_seats"]
        >>> store.get_features(features, labels="questions").filter("temp > 38.7").show()
        +-------+------+-------------------+----+----+-----------+
        |tailnum|origin|           asked_at|late|temp|plane_seats|
        +-------+------+-------------------+----+----+-----------+
        |    N20|   JFK|2013-01-01 07:30:00|true|39.0|        200|
        +-------+------+-------------------+----+----+-----------+
        """
        from featurestore.model.requests import RetrievalRequest
        from featurestore.retrieval import check_dataframe_type, convert

        check_dataframe_type(dataframe_type)
        request = RetrievalRequest(
            features=features,
            labels=labels,
            label_time=label_time,
            versions=versions,
            join_key=join_key,
            join=join,
            as_of=as_of,
            include_keys=include_keys,
            created_time_filter=created_time_filter,
        )
        return convert(self._retrieve(request, verify=verify), dataframe_type)

    def _retrieve(self, request: RetrievalRequest, *, verify: str | None) -> FeatureFrame:
        from featurestore.retrieval.catalog import check_sources, check_verify
        from featurestore.retrieval.features import get_features

        check_verify(verify)
        frame = get_features(self._session, request)
        check_sources(frame.plan, verify=verify)
        return frame

    def sql(
        self,
        query: str,
        *,
        as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
        dataframe_type: DataframeType | None = None,
    ) -> Any:
        """Return the lazy result of a SQL query over feature groups, to use as data or labels.

        The query is one SELECT in DuckDB SQL, on all engines. It refers to groups by name:
        ``weather`` (the latest version) or ``"weather@v2"`` in double quotes. It can read only
        groups. Its joins are ordinary SQL joins, not as-of joins unless the query contains such a
        condition.

        Args:
            query: The query; the columns of its result must have unique names.
            as_of: Read the groups as they were at a time, or ``{group: Delta version or time}``.
            dataframe_type: As in ``get_features``.

        Raises:
            InvalidSql: The query is not a single SELECT over groups, reads files or the clock, or
                uses an expression with another meaning on the engine.
            FeatureGroupNotFound: The query reads a group that does not exist.

        >>> store.sql("select origin, max(temp) as warmest from weather group by origin").columns
        ['origin', 'warmest']
        >>> late = store.sql("select tailnum, origin, asked_at from questions where late")
        >>> store.get_features("weather.temp", labels=late).count()
        2
        """
        from featurestore.retrieval import check_dataframe_type, convert, query_frame

        check_dataframe_type(dataframe_type)
        frame = query_frame(self._session, query, as_of=as_of)
        return convert(frame, dataframe_type)

    def explain_features(
        self,
        features: str
        | WindowFeature
        | OnDemandFeature
        | Sequence[str | WindowFeature | OnDemandFeature],
        *,
        labels: object | None = None,
        label_time: datetime | str | None = None,
        versions: Mapping[str, int] | None = None,
        join_key: JoinKey | None = None,
        join: Literal["left", "inner"] = "left",
        as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
        include_keys: bool = False,
        created_time_filter: bool = True,
    ) -> FeaturePlan:
        """Print the plan of ``get_features`` and return it, without executing it.

        The plan contains sources, Delta versions, keys, join rules, and estimated rows, bytes and
        memory.

        >>> plan = store.explain_features(["weather.temp"], labels="questions")
        columns    tailnum, origin, asked_at, late, temp
        rows       4 expected (one for each row of questions)
        ...
        join 1     weather@v1 at Delta version 1: 4 rows
                   on origin = origin
                   the latest by measured_at with measured_at <= asked_at
                   features: temp
        >>> [source.spec.name for source in plan.sources]
        ['questions', 'weather']
        """
        from featurestore.model.requests import RetrievalRequest
        from featurestore.retrieval.features import explain_features

        request = RetrievalRequest(
            features=features,
            labels=labels,
            label_time=label_time,
            versions=versions,
            join_key=join_key,
            join=join,
            as_of=as_of,
            include_keys=include_keys,
            created_time_filter=created_time_filter,
        )
        plan = explain_features(self._session, request)
        sys.stdout.write(str(plan))
        return plan

    def check_leakage(
        self,
        frame: FeatureFrame,
        *,
        sample: int = 1000,
        seed: int = 0,
        recompute: Mapping[str, Callable[[datetime], object]] | None = None,
    ) -> LeakReport:
        """Recompute sampled features without data later than each label; report changed values.

        Args:
            frame: The result of ``get_features``.
            sample: The number of label rows in the sample.
            seed: The seed of the sample.
            recompute: For computed groups, ``{group: function}``: the function takes a time and
                returns the group's rows, computed from inputs up to that time. Without it the
                stored rows are used.

        >>> frame = store.get_features(["weather.temp"], labels="questions")
        >>> store.check_leakage(frame).ok
        True
        """
        from featurestore.retrieval import check_leakage

        return check_leakage(frame, sample=sample, seed=seed, recompute=recompute)


class FeatureViewCalls(StoreBase):
    """Methods for feature views."""

    def create_feature_view(
        self,
        name: str,
        *,
        features: str
        | WindowFeature
        | OnDemandFeature
        | Sequence[str | WindowFeature | OnDemandFeature | Mapping[str, Any]],
        labels: str | None = None,
        label: str | Sequence[str] | None = None,
        label_time: str | None = None,
        transformations: Mapping[str, Chain] | None = None,
        version: int | None = None,
        description: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> FeatureView:
        """Store a retrieval under a name, so that training and scoring use the same features.

        References are pinned to the current group versions, and ``group.*`` to the current columns.
        To join a group a second time (the weather at the destination and at the origin), add an
        object with its features and join key after the references.

        Args:
            name: ``[a-z][a-z0-9_]{0,62}``.
            features: References, aggregates and on-demand features as in ``get_features``, followed
                by one object for each additional join: ``{"features": ["weather.temp as
                dest_temp"], "join_key": {"dest": "origin"}}`` (and optionally ``"join": "inner"``).
            labels: The group with the labels; None: labels are passed with each call.
            label: The label column or columns of training datasets.
            label_time: The time column of the labels.
            transformations: ``{column: chain of featurestore.transform}``; they are fitted for each
                training dataset that is created from the view.
            version: The version to create; None: the next one.
            description: The purpose of the view.
            tags: Tags, which can be searched.

        Raises:
            FeatureViewExists: The version already exists.
            FeatureNotFound: A feature or the label does not exist.
            NoJoinKey: The key of a group is not among the label columns.

        >>> features = ["weather.temp", "planes.seats as plane_seats"]
        >>> view = store.create_feature_view(
        ...     "delays", features=features, labels="questions", label="late"
        ... )
        >>> (view.version, view.featuregroups)
        (1, ['questions@v1', 'weather@v1', 'planes@v1'])
        """
        from featurestore.model.requests import ViewRequest
        from featurestore.views import FeatureView, definition

        request = ViewRequest(
            name=name,
            features=features,
            labels=labels,
            label=label,
            label_time=label_time,
            transformations=transformations,
            description=description,
            tags=tags,
        )
        spec = definition.define(self._session, request)
        return FeatureView(self._session, definition.create(self._session, spec, version=version))

    def get_feature_view(self, name: str, *, version: int | None = None) -> FeatureView:
        """Return a feature view, by default its latest version.

        >>> store.get_feature_view("late_flights").version
        1
        """
        from featurestore.views import FeatureView, definition

        return FeatureView(self._session, definition.get(self._session, name, version))

    def get_feature_views(self, *, limit: int | None = None, offset: int = 0) -> list[FeatureView]:
        """List all versions of all feature views, ordered by name and version.

        Args:
            limit: The maximum number of results; None: all.
            offset: The number of results to skip.

        >>> [view.name for view in store.get_feature_views()]
        ['late_flights']
        """
        from featurestore.views import FeatureView, definition

        specs = definition.list_views(self._session, limit=limit, offset=offset)
        return [FeatureView(self._session, spec) for spec in specs]

    def delete_feature_view(self, name: str, *, version: int) -> None:
        """Delete a version of a feature view; its training datasets are not deleted.

        >>> store.delete_feature_view("late_flights", version=1)
        >>> store.get_feature_views()
        []
        """
        from featurestore.views import definition

        definition.remove(self._session, name, version)

    def publish(
        self,
        view: str | FeatureView,
        *,
        to: str | None = None,
        version: int | None = None,
        full: bool = False,
    ) -> Publication:
        """Publish a feature view to an online store, so that services can read its vectors.

        For each entity of each feature group of the view, the row that ``get_features`` returns now
        is published, and the rows that become eligible later. The call waits while another process
        publishes the view. Readers never see missing values during a publication.

        Args:
            view: The view, or its name.
            to: The name of the online store; None: the embedded one of a local store.
            version: The version of the view; None: the latest.
            full: Write all values again.

        Raises:
            InvalidArgument: The view has window aggregates, or a group without primary key.
            OnlineStoreError: The online store cannot be used.

        >>> publication = store.publish("late_flights")
        >>> publication.mode, dict(publication.rows)
        ('full', {'weather@v1': 2, 'planes@v1': 2})
        """
        from featurestore.serving.publication import publish
        from featurestore.views import definition

        if isinstance(view, str):
            spec = definition.get(self._session, view, version)
        else:
            spec = view.spec
        return publish(self._session, spec, to=to, full=full)
