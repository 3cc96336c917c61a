"""Models of a store: published, found, described, removed."""

from __future__ import annotations

import os
from dataclasses import replace

from featurestore.errors import FeatureStoreError, ModelExists
from featurestore.model.callers import warn_caller
from featurestore.model.registered_model import (
    TRANSFORMATIONS_FILE,
    ModelDescribed,
    ModelFile,
    ModelSpec,
)
from featurestore.recovery import models as directories
from featurestore.recovery.in_flight import in_flight
from featurestore.registry import models as index
from featurestore.session import Session
from featurestore.storage import files
from featurestore.storage.publication import Publication, after_publication, make_directory

ARTIFACT = "artifact"


def publish(
    session: Session,
    spec: ModelSpec,
    said: ModelDescribed,
    *,
    artifact: str,
    fitted: bytes | None,
    version: int | None,
) -> ModelSpec:
    """Copy a model into the store and publish it as the next version, or the one asked for.

    ``model.json`` appears under its name at once and whole, which is the moment of publication.

    Args:
        session: The store.
        spec: The model without its version and files.
        said: Stage, description and tags.
        artifact: The file or folder to copy.
        fitted: Content of the file of its transformations.
        version: None: the next one.

    Raises:
        ModelExists: The version exists, or another process is writing it.
    """
    with in_flight(session, kind=directories.ENTER, name=spec.name, version=version) as run:
        directory = session.paths.model(spec.name, run.version)
        make_directory(directory)
        target = os.path.join(directory, ARTIFACT, os.path.basename(artifact))
        copied = _copy(artifact, target, directory)
        if fitted is not None:
            files.write_atomically(os.path.join(directory, TRANSFORMATIONS_FILE), fitted)
        directories.write_described(directory, said)
        relative = os.path.relpath(target, directory)
        made = replace(spec, version=run.version, artifact=relative, files=copied)
        staged = directories.model_file(run.staging)
        files.write_atomically(staged, made.to_bytes())
        run.check_held()
        with Publication() as publication:
            if not publication.link(staged, directories.model_file(directory)):
                raise ModelExists(f"Version {made.version} of model {made.name!r} exists already.")
        run.landed = made.version
        with after_publication(f"Model {made.name!r} version {made.version}"):
            with session.registry.transaction() as connection:
                index.add(connection, made, said)
            run.registered = True
    return made


def _copy(source: str, target: str, directory: str) -> tuple[ModelFile, ...]:
    """Copy a file, or a folder with all in it, and return what was copied."""
    pairs = [(source, target)]
    if files.is_directory(source):
        pairs = []
        for path in files.walk(source):
            pairs.append((path, os.path.join(target, os.path.relpath(path, source))))
    copied = []
    for found, path in sorted(pairs):
        files.write_atomically(path, files.read_bytes(found))
        relative = os.path.relpath(path, directory)
        copied.append(ModelFile(relative, files.size(path), files.sha256(path)))
    return tuple(copied)


def get(session: Session, name: str, version: int | None, *, stage: str | None = None) -> ModelSpec:
    """Return a version of a model, None: the latest; ModelNotFound lists what there is."""
    with session.registry.reading() as connection:
        found = index.get(connection, name, version, stage=stage)
    return directories.read(session.paths.model(*found), *found)


def every(session: Session, *, name: str | None = None) -> list[ModelSpec]:
    """Return every version of every model; a damaged one is left out with a warning."""
    with session.registry.reading() as connection:
        listed = index.every(connection, name=name)
    found = []
    for each in listed:
        try:
            found.append(directories.read(session.paths.model(*each), *each))
        except FeatureStoreError as error:
            told = f"The model {each[0]} version {each[1]} is left out: {error.message}"
            warn_caller(told, UserWarning)
    return found


def describe(session: Session, spec: ModelSpec, said: ModelDescribed) -> None:
    """Change what is said about a version: its file, then the registry."""
    directories.write_described(session.paths.model(spec.name, spec.version), said)
    told = f"What is said of model {spec.name!r} version {spec.version}"
    with after_publication(told), session.registry.transaction() as connection:
        index.add(connection, spec, said)


def remove(session: Session, name: str, version: int) -> None:
    """Delete a version; predictions that were made with it stay."""
    with session.registry.reading() as connection:
        index.get(connection, name, version)
    with in_flight(session, kind=directories.LEAVE, name=name, version=version) as run:
        with session.registry.transaction() as connection:
            directories.forget(connection, name, version)
        directories.remove_files(session.paths, name, version)
        run.registered = True
