"""Calls that retrieve features, explain a retrieval and look for leaks, and on feature views."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from featurestore.model.featuregroup import normalize_tags
from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from featurestore.model.on_demand import OnDemandFeature
    from featurestore.model.plan import FeaturePlan
    from featurestore.model.window_features import WindowFeature
    from featurestore.retrieval import FeatureFrame, LeakReport
    from featurestore.retrieval.conversions import DataframeType
    from featurestore.retrieval.resolve import JoinKey
    from featurestore.transform import Chain
    from featurestore.views import FeatureView


class FeatureCalls(StoreBase):
    """The calls on features."""

    def get_feature(self, feature: str, *, dataframe_type: DataframeType | None = None) -> Any:
        """Return one feature, a value for each row of its group.

        Args:
            feature: A reference: ``f``, ``group.f`` or ``group@v2.f``.
            dataframe_type: As in ``get_features``.

        >>> store.get_feature("planes.seats", dataframe_type="python")
        [{'seats': 100}, {'seats': 200}]
        """
        from featurestore.retrieval import check_dataframe_type, convert, get_feature

        check_dataframe_type(dataframe_type)
        return convert(get_feature(self._session, feature), dataframe_type)

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
    ) -> Any:
        """Return features joined to labels as of each label's time, one row for every label row.

        Args:
            features: References: ``f`` (searched in the latest version of every group),
                ``group.f``, ``group@v2.f``, ``group.*``, each with ``as name`` where it is to be
                called otherwise; and what ``featurestore.window`` and ``featurestore.feature``
                give.
            labels: The left side: a dataframe, a FeatureFrame or the name of a group; its columns
                come first. None: the group of the first feature.
            label_time: The labels' time column, or one time for all rows. Found by itself where
                the labels have one time column, or are a group with an event time.
            versions: ``{group: version}`` for references without one.
            join_key: Where label columns are not called like the key: a name, a list, ``{left
                column: key column}``, or ``{group: one of these}``.
            join: "left" keeps every label; "inner" drops labels that lack a row in some group.
            as_of: Read the store as it was at a time, or ``{group: Delta version or time}``.
            include_keys: Without labels: return the first group's primary key and event time, too.
            created_time_filter: Use a row only from its created time on, where its group declares
                one.
            dataframe_type: None (FeatureFrame), "pandas", "polars", "arrow", "numpy", "python" or
                "spark".

        Raises:
            FeatureNotFound: No such feature.
            AmbiguousFeature: A plain name is in several groups.
            NoJoinKey: A group's primary key is not in the columns of the left side.
            LabelTimeRequired: The time column of the labels is ambiguous or missing.
            ColumnConflict: Two columns of the result would have one name.

        >>> features = ["weather.temp", "planes.seats as plane_seats"]
        >>> store.get_features(features, labels="questions").filter("temp > 38.7").show()
        +-------+------+-------------------+----+----+-----------+
        |tailnum|origin|           asked_at|late|temp|plane_seats|
        +-------+------+-------------------+----+----+-----------+
        |    N20|   JFK|2013-01-01 07:30:00|true|39.0|        200|
        +-------+------+-------------------+----+----+-----------+
        """
        from featurestore.retrieval import check_dataframe_type, convert, get_features

        check_dataframe_type(dataframe_type)
        frame = get_features(
            self._session,
            features,
            labels=labels,
            label_time=label_time,
            versions=versions,
            join_key=join_key,
            join=join,
            as_of=as_of,
            include_keys=include_keys,
            created_time_filter=created_time_filter,
        )
        return convert(frame, dataframe_type)

    def sql(
        self,
        query: str,
        *,
        as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
        dataframe_type: DataframeType | None = None,
    ) -> Any:
        """Return the rows of a query over feature groups, lazily: data or labels of every call.

        The query is one SELECT in DuckDB's SQL, on any engine, over groups by their names:
        ``weather`` (its latest version) or ``"weather@v2"`` in double quotes. It reads groups and
        nothing else, and its joins are plain SQL joins, as of a time only with an explicit condition.

        Args:
            query: The query; every column of its result has a name of its own.
            as_of: Read the groups as they were at a time, or ``{group: Delta version or time}``.
            dataframe_type: As in ``get_features``.

        Raises:
            InvalidSql: It is not a single SELECT over groups, reads files or the clock, or uses an
                expression with another meaning on the engine.
            FeatureGroupNotFound: It reads a group that does not exist.

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
        """Write the plan of ``get_features`` to standard output and return it; nothing is run.

        It names sources, Delta versions, keys, join rules, and expected rows, bytes and memory.

        >>> plan = store.explain_features(["weather.temp"], labels="questions")
        columns    tailnum, origin, asked_at, late, temp
        rows       4 expected (one for each label row)
        ...
        join 1     weather@v1 at Delta version 1: 4 rows
                   on origin = origin
                   the latest by measured_at with measured_at <= asked_at
                   features: temp
        >>> [source.spec.name for source in plan.sources]
        ['questions', 'weather']
        """
        from featurestore.retrieval import explain_features

        plan = explain_features(
            self._session,
            features,
            labels=labels,
            label_time=label_time,
            versions=versions,
            join_key=join_key,
            join=join,
            as_of=as_of,
            include_keys=include_keys,
            created_time_filter=created_time_filter,
        )
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
        """Return which values of a sample change when all that is later than each label is removed.

        Args:
            frame: What ``get_features`` returned.
            sample: How many label rows to look at.
            seed: Which ones.
            recompute: For computed groups ``{group: function}``: called with a time, the function
                returns the group's rows made from inputs up to that time. Without it stored rows
                are taken as they are.

        >>> frame = store.get_features(["weather.temp"], labels="questions")
        >>> store.check_leakage(frame).ok
        True
        """
        from featurestore.retrieval import check_leakage

        return check_leakage(frame, sample=sample, seed=seed, recompute=recompute)


class FeatureViewCalls(StoreBase):
    """The calls on feature views."""

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

        References are pinned to the versions of groups of now, and ``group.*`` to the columns of
        now. A second role of a group (the weather at the destination and at the origin) is another
        join: an object with its features and its join key after the references.

        Args:
            name: ``[a-z][a-z0-9_]{0,62}``.
            features: References, aggregates and on-demand features as in ``get_features``; behind
                them one object for each further join:
                ``{"features": ["weather.temp as dest_temp"], "join_key": {"dest": "origin"}}``
                (and ``"join": "inner"``).
            labels: The group on the label side; None: labels come with each call.
            label: The label column or columns of training datasets.
            label_time: The time column of the label side.
            transformations: ``{column: chain of featurestore.transform}``, fitted anew by each
                training dataset that is made of the view.
            version: The version to make; None: the next one.
            description: The purpose of the view.
            tags: Texts to find it by.

        Raises:
            FeatureViewExists: The version exists.
            FeatureNotFound: A feature or the label does not exist.
            NoJoinKey: A group's key is not among the columns of the label side.

        >>> features = ["weather.temp", "planes.seats as plane_seats"]
        >>> view = store.create_feature_view(
        ...     "delays", features=features, labels="questions", label="late"
        ... )
        >>> (view.version, view.featuregroups)
        (1, ['questions@v1', 'weather@v1', 'planes@v1'])
        """
        from featurestore.views import FeatureView, definition
        from featurestore.views.definition import define

        spec = define(
            self._session,
            name,
            features=features,
            labels=labels,
            label=label,
            label_time=label_time,
            description=description,
            tags=normalize_tags(tags),
            transformations=transformations or {},
        )
        return FeatureView(self._session, definition.create(self._session, spec, version=version))

    def get_feature_view(self, name: str, *, version: int | None = None) -> FeatureView:
        """Return a feature view; ``version=None`` takes the latest.

        >>> store.get_feature_view("late_flights").version
        1
        """
        from featurestore.views import FeatureView, definition

        return FeatureView(self._session, definition.get(self._session, name, version))

    def get_feature_views(self) -> list[FeatureView]:
        """Return every version of every feature view, by name and version.

        >>> [view.name for view in store.get_feature_views()]
        ['late_flights']
        """
        from featurestore.views import FeatureView, definition

        return [FeatureView(self._session, spec) for spec in definition.every(self._session)]

    def delete_feature_view(self, name: str, *, version: int) -> None:
        """Delete one version of a feature view; training datasets made from it stay.

        >>> store.delete_feature_view("late_flights", version=1)
        >>> store.get_feature_views()
        []
        """
        from featurestore.views import definition

        definition.remove(self._session, name, version)
