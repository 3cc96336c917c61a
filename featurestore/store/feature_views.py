"""Calls on feature views: made, found, deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurestore.model.featuregroup import normalize_tags
from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from featurestore.model.on_demand import OnDemandFeature
    from featurestore.model.window_features import WindowFeature
    from featurestore.transform import Chain
    from featurestore.views import FeatureView

__all__ = ["FeatureViewCalls"]


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
