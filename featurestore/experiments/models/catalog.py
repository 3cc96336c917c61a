"""Model catalog of a store: publish, list, describe and remove versions."""

from __future__ import annotations

import os
from dataclasses import replace

from featurestore.errors import FeatureStoreError, ModelExists
from featurestore.model.callers import warn_caller
from featurestore.model.registered_model import (
    TRANSFORMATIONS_FILE,
    ModelAnnotations,
    ModelFile,
    ModelSpec,
)
from featurestore.recovery import models as directories
from featurestore.recovery.in_flight import in_flight
from featurestore.registry import models as index
from featurestore.session import Session
from featurestore.storage import files
from featurestore.storage.failures import after_publication
from featurestore.storage.publication import Publication, make_directory

ARTIFACT = "artifact"


def publish(
    session: Session,
    spec: ModelSpec,
    annotations: ModelAnnotations,
    *,
    artifact: str,
    fitted: bytes | None,
    version: int | None,
) -> ModelSpec:
    """Copy a model into the store and publish it as the next or the requested version.

    The version is published when ``model.json`` appears under its name, which is atomic.

    Args:
        session: The store.
        spec: The model without its version and files.
        annotations: Stage, description and tags.
        artifact: The file or folder to copy.
        fitted: The serialized transformations.
        version: None: the next one.

    Raises:
        ModelExists: The version exists, or another process is writing it.
    """
    with in_flight(session, kind=directories.REGISTER, name=spec.name, version=version) as run:
        directory = session.paths.model(spec.name, run.version)
        make_directory(directory)
        target = os.path.join(directory, ARTIFACT, os.path.basename(artifact))
        copied = _copy(artifact, target, directory)
        if fitted is not None:
            files.write_atomically(os.path.join(directory, TRANSFORMATIONS_FILE), fitted)
        directories.write_annotations(directory, annotations)
        relative = os.path.relpath(target, directory)
        published_spec = replace(spec, version=run.version, artifact=relative, files=copied)
        staged = directories.model_file(run.staging)
        files.write_atomically(staged, published_spec.to_bytes())
        run.check_intent()
        with Publication() as publication:
            if not publication.link(staged, directories.model_file(directory)):
                raise ModelExists(
                    f"Version {published_spec.version} of model {published_spec.name!r} exists already."
                )
        run.committed_version = published_spec.version
        with after_publication(f"Model {published_spec.name!r} version {published_spec.version}"):
            with session.registry.transaction() as connection:
                index.add(connection, published_spec, annotations)
            run.registered = True
    return published_spec


def _copy(source: str, target: str, directory: str) -> tuple[ModelFile, ...]:
    """Copy a file or a folder, and return the copied files."""
    pairs = [(source, target)]
    if files.is_directory(source):
        paths = files.walk(source)
        pairs = [(path, os.path.join(target, os.path.relpath(path, source))) for path in paths]
    copied = []
    for source_path, path in sorted(pairs):
        files.write_atomically(path, files.read_bytes(source_path))
        relative = os.path.relpath(path, directory)
        copied.append(ModelFile(relative, files.size(path), files.sha256(path)))
    return tuple(copied)


def get(session: Session, name: str, version: int | None, *, stage: str | None = None) -> ModelSpec:
    """Return a version of a model, None: the latest."""
    with session.registry.reading() as connection:
        model_key = index.get(connection, name, version, stage=stage)
    return directories.read(session.paths.model(*model_key), *model_key)


def every(session: Session, *, name: str | None = None) -> list[ModelSpec]:
    """Return every version of every model; skip damaged ones with a warning."""
    with session.registry.reading() as connection:
        model_keys = index.every(connection, name=name)
    specs = []
    for model_key in model_keys:
        try:
            specs.append(directories.read(session.paths.model(*model_key), *model_key))
        except FeatureStoreError as error:
            message = f"The model {model_key[0]} version {model_key[1]} is skipped: {error.message}"
            warn_caller(message, UserWarning)
    return specs


def describe(session: Session, spec: ModelSpec, annotations: ModelAnnotations) -> None:
    """Change the annotations of a version: its file, then the registry."""
    directories.write_annotations(session.paths.model(spec.name, spec.version), annotations)
    subject = f"The annotations of model {spec.name!r} version {spec.version}"
    with after_publication(subject), session.registry.transaction() as connection:
        index.add(connection, spec, annotations)


def remove(session: Session, name: str, version: int) -> None:
    """Delete a version; its predictions remain."""
    with session.registry.reading() as connection:
        index.get(connection, name, version)
    with in_flight(session, kind=directories.REMOVE, name=name, version=version) as run:
        with session.registry.transaction() as connection:
            directories.forget(connection, name, version)
        directories.remove_files(session.paths, name, version)
        run.registered = True
