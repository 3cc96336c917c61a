"""Feature views of a store: creation, lookup and deletion."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace

from featurestore.errors import FeatureStoreError, FeatureViewExists, InvalidArgument
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.recovery import views
from featurestore.recovery.in_flight import in_flight
from featurestore.registry import feature_views
from featurestore.session import Session
from featurestore.storage import files
from featurestore.storage.failures import after_publication
from featurestore.storage.publication import Publication, make_directory
from featurestore.views.definition import check_label
from featurestore.views.retrieval import rows_of


def create(session: Session, spec: FeatureViewSpec, *, version: int | None) -> FeatureViewSpec:
    """Write a checked view as the next or the requested version; return it.

    Its file is linked atomically under its final name, which publishes the view.

    Raises:
        FeatureViewExists: The version exists, or another process is writing it.
    """
    if spec.labels is not None:
        check_label(spec, rows_of(session, spec).columns)
    with in_flight(session, kind=views.DEFINE, name=spec.name, version=version) as run:
        view = replace(spec, version=run.version)
        directory = session.paths.feature_view(view.name, view.version)
        staged = views.view_file(run.staging)
        files.write_atomically(staged, view.to_bytes())
        make_directory(os.path.dirname(directory))
        make_directory(directory)
        run.check_intent()
        with Publication() as publication:
            if not publication.link(staged, views.view_file(directory)):
                raise FeatureViewExists(
                    f"Version {view.version} of feature view {view.name!r} exists already.",
                    hint="leave version= out to make the next one",
                )
        run.committed_version = view.version
        with after_publication(f"Feature view {view.name!r} version {view.version}"):
            with session.registry.transaction() as connection:
                views.register(connection, view)
            run.registered = True
    return view


def get(session: Session, name: str, version: int | None) -> FeatureViewSpec:
    """Return a version of a view, None: the latest.

    Raises:
        FeatureViewNotFound: Lists the available views or versions.
    """
    with session.registry.reading() as connection:
        key = feature_views.get(connection, name, version)
    return _read(session, *key)


def every(session: Session) -> list[FeatureViewSpec]:
    """Return every version of every view; damaged ones are skipped with a warning."""
    with session.registry.reading() as connection:
        keys = feature_views.every(connection)
    views_read = []
    for name, version in keys:
        try:
            views_read.append(_read(session, name, version))
        except FeatureStoreError as error:
            warnings.warn(
                f"The feature view {name} version {version} is left out: {error.message}",
                stacklevel=2,
            )
    return views_read


def remove(session: Session, name: str, version: int) -> None:
    """Delete a version; training datasets made from it stay and keep its name."""
    if version is None:
        raise InvalidArgument("delete_feature_view needs a version.", hint="version=1")
    with session.registry.reading() as connection:
        feature_views.get(connection, name, version)
    with in_flight(session, kind=views.UNDEFINE, name=name, version=version) as run:
        with session.registry.transaction() as connection:
            views.forget(connection, name, version)
        views.remove_files(session.paths, name, version)
        run.registered = True


def datasets_of(session: Session, name: str, version: int) -> list[tuple[str, int]]:
    """Return name and version of the training datasets that were made from a view."""
    with session.registry.reading() as connection:
        return feature_views.datasets_of(connection, name, version)


def _read(session: Session, name: str, version: int) -> FeatureViewSpec:
    return views.read(session.paths.feature_view(name, version), name, version)
