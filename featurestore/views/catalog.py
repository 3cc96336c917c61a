"""Feature views of a store: made, found, removed."""

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
from featurestore.storage.publication import Publication, after_publication, make_directory
from featurestore.views.definition import check_label
from featurestore.views.retrieval import rows_of


def create(session: Session, spec: FeatureViewSpec, *, version: int | None) -> FeatureViewSpec:
    """Write a checked view as the next version, or the one asked for; return it.

    Its file appears under its name at once and whole, which is the moment of its publication.

    Raises:
        FeatureViewExists: The version exists, or another process is writing it.
    """
    if spec.labels is not None:
        check_label(spec, rows_of(session, spec).columns)
    with in_flight(session, kind=views.DEFINE, name=spec.name, version=version) as run:
        made = replace(spec, version=run.version)
        directory = session.paths.feature_view(made.name, made.version)
        staged = views.view_file(run.staging)
        files.write_atomically(staged, made.to_bytes())
        make_directory(os.path.dirname(directory))
        make_directory(directory)
        run.check_intent()
        with Publication() as publication:
            if not publication.link(staged, views.view_file(directory)):
                raise FeatureViewExists(
                    f"Version {made.version} of feature view {made.name!r} exists already.",
                    hint="leave version= out to make the next one",
                )
        run.committed_version = made.version
        with after_publication(f"Feature view {made.name!r} version {made.version}"):
            with session.registry.transaction() as connection:
                views.register(connection, made)
            run.registered = True
    return made


def get(session: Session, name: str, version: int | None) -> FeatureViewSpec:
    """Return a version of a view, None: the latest; FeatureViewNotFound lists what there is."""
    with session.registry.reading() as connection:
        found = feature_views.get(connection, name, version)
    return _read(session, *found)


def every(session: Session) -> list[FeatureViewSpec]:
    """Return every version of every view; a damaged one is left out with a warning."""
    with session.registry.reading() as connection:
        listed = feature_views.every(connection)
    found = []
    for name, version in listed:
        try:
            found.append(_read(session, name, version))
        except FeatureStoreError as error:
            warnings.warn(
                f"The feature view {name} version {version} is left out: {error.message}",
                stacklevel=2,
            )
    return found


def remove(session: Session, name: str, version: int) -> None:
    """Delete a version; training datasets that were made of it stay and remember its name."""
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
    """Return name and version of the training datasets that were made of a view."""
    with session.registry.reading() as connection:
        return feature_views.datasets_of(connection, name, version)


def _read(session: Session, name: str, version: int) -> FeatureViewSpec:
    return views.read(session.paths.feature_view(name, version), name, version)
