"""The serving methods of feature views, and the lag of published views."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from featurestore.delta import log
from featurestore.delta.history import commit_at
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.names import format_group_reference
from featurestore.model.times import utc_now
from featurestore.registry.origins import VIEW, Object
from featurestore.retrieval.catalog import RegisteredSpecs
from featurestore.serving.ownership import read_server_state
from featurestore.session import Session

if TYPE_CHECKING:
    from featurestore.serving.server import VectorServer
    from featurestore.serving.verification import OnlineReport
    from featurestore.training.dataset import TrainingDataset


@dataclass(frozen=True)
class GroupLag:
    """The lag of one feature group of a published view.

    ``published`` and ``latest`` are Delta versions. ``behind`` is the age of the oldest commit that
    is not published; None if all are. With ``is_uncertain``, the server was restarted, emptied or
    replaced since the publication, and may have lost values: no commit counts as published, and
    ``behind`` is the time since the publication. The next publication writes all values.
    """

    view: str
    version: int
    featuregroup: str
    published: int
    latest: int
    published_at: datetime
    behind: timedelta | None
    is_uncertain: bool = False

    @property
    def commits(self) -> int:
        """The number of commits that are not published."""
        return self.latest - (-1 if self.is_uncertain else self.published)

    def exceeds(self, limit: timedelta) -> bool:
        """Return whether a commit is not published and older than a limit."""
        return self.behind is not None and self.behind > limit


def measure_lag(
    session: Session, spec: FeatureViewSpec, *, online: str | None = None
) -> list[GroupLag]:
    """Return the lag of each group of a published view; see ``FeatureView.online_lag``."""
    state, is_uncertain = read_server_state(session, spec, online)
    now = utc_now()
    registered = RegisteredSpecs(session)
    lags = []
    for (name, version), group in state.groups.items():
        if registered[name][version].external is not None:
            continue
        path = session.featuregroup_path(name, version)
        latest, behind = log.latest_version(path), None
        if latest > group.delta_version:
            behind = max(now - commit_at(path, group.delta_version + 1).time, timedelta(0))
        if is_uncertain:
            behind = max(now - group.published_at, behind or timedelta(0))
        lags.append(
            GroupLag(
                view=spec.name,
                version=spec.version,
                featuregroup=format_group_reference(name, version),
                published=group.delta_version,
                latest=latest,
                published_at=group.published_at,
                behind=behind,
                is_uncertain=is_uncertain,
            )
        )
    return lags


class ServedView:
    """The methods of a feature view that read an online store."""

    _session: Session
    _spec: FeatureViewSpec

    def server(
        self,
        *,
        online: str | None = None,
        dataset: TrainingDataset | None = None,
        log_vectors: str | None = None,
        log_sample: float = 0.01,
    ) -> VectorServer:
        """Return a server of the published view, which reads feature vectors by key.

        Args:
            online: The name of the online store; None means the embedded store.
            dataset: A training dataset of the view; vectors then have its model inputs, with its
                transformations and in its order.
            log_vectors: A feature group to which a sample of the vectors is written in the
                background, with the column ``served_at``; it is created if it does not exist. Close
                the server before the store, so that the last vectors are written.
            log_sample: The fraction of vectors that are logged.

        Raises:
            NotPublished: The view is not published to the online store.
            InvalidArgument: The dataset was created from another view.
            DefinitionMismatch: The feature group of ``log_vectors`` has other columns.

        >>> store.get_feature_view("late_flights").server()
        Traceback (most recent call last):
            ...
        featurestore.errors.NotPublished: Feature view 'late_flights' version 1 is not published \
to the online store 'embedded'.
            Hint: store.publish('late_flights', version=1, to='embedded')
        """
        from featurestore.serving.server import open_server
        from featurestore.serving.vector_log import VectorLog

        log = None
        if log_vectors is not None:
            view = Object(VIEW, self._spec.name, self._spec.version)
            log = VectorLog(self._session, log_vectors, view=view, sample=log_sample)
        return open_server(self._session, self._spec, online=online, dataset=dataset, log=log)

    def verify_online(
        self, *, online: str | None = None, sample: int = 1000, at: datetime | str | None = None
    ) -> OnlineReport:
        """Compare served vectors with ``get_features`` for the same entities at the same instant.

        Args:
            online: The name of the online store; None means the embedded store.
            sample: The number of entities: labels of the view, or else keys of its groups.
            at: The instant, at or after the last publication; None means now.

        Raises:
            NotPublished: The view is not published to the online store.

        >>> view = store.get_feature_view("late_flights")
        >>> publication = store.publish("late_flights")
        >>> view.verify_online().ok
        True
        """
        from featurestore.serving.verification import verify

        return verify(self._session, self._spec, online=online, sample=sample, at=at)

    def online_lag(self, *, online: str | None = None) -> list[GroupLag]:
        """Return the commits of each feature group that an online store does not yet have.

        External groups have no commits, and are not in the result.

        Args:
            online: The name of the online store; None means the embedded store.

        Raises:
            NotPublished: The view is not published to the online store.

        >>> view = store.get_feature_view("late_flights")
        >>> publication = store.publish("late_flights")
        >>> _ = store.insert_into_featuregroup([{"tailnum": "N30", "seats": 9}], "planes")
        >>> [(lag.featuregroup, lag.commits) for lag in view.online_lag()]
        [('weather@v1', 0), ('planes@v1', 1)]
        """
        return measure_lag(self._session, self._spec, online=online)
