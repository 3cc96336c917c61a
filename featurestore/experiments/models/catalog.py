"""Model catalog of a store: publish, list, describe and remove model versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_args

from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    ModelDamaged,
    ModelExists,
    did_you_mean,
    listing,
)
from featurestore.experiments.models import loading
from featurestore.model import display
from featurestore.model.arguments import suggest_arguments, warn_caller
from featurestore.model.featuregroup import check_tags
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.registered_model import (
    TRANSFORMATIONS_FILE,
    ModelAnnotations,
    ModelFile,
    ModelSpec,
    Stage,
)
from featurestore.recovery import models as directories
from featurestore.recovery.in_flight import in_flight
from featurestore.recovery.models import MODELS
from featurestore.registry.artifacts import models as index
from featurestore.session import Session
from featurestore.storage import files, storage_for
from featurestore.storage.failures import warn_after_publication
from featurestore.storage.publication import Publication
from featurestore.transform.fitted import Transformations

if TYPE_CHECKING:
    from featurestore.experiments.models.scoring import ModelServer
    from featurestore.retrieval import FeatureFrame
    from featurestore.session import Session
    from featurestore.training.dataset import TrainingDataset

ARTIFACT = "artifact"


@suggest_arguments
@dataclass(frozen=True)
class Model:
    """A version of a model: its files, training dataset and features."""

    session: Session = field(repr=False, compare=False)
    spec: ModelSpec = field(repr=False)

    def __repr__(self) -> str:
        return f"<Model {self.name!r} version {self.version}: {self.stage}>"

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.spec.name

    @property
    def version(self) -> int:
        """The version of the model."""
        return self.spec.version

    @property
    def path(self) -> str:
        """The directory of the version."""
        return self.session.paths.model(self.name, self.version)

    @property
    def artifact(self) -> str:
        """The path of the model file or folder."""
        return self.session.storage.resolve_inside(self.path, self.spec.artifact)

    @property
    def flavor(self) -> str:
        """The file format.

        "keras", "tf_keras", "tensorflow", "torch", "jax", "xgboost", "lightgbm", "spark", "pickle" or
        "joblib".
        """
        return self.spec.flavor

    @property
    def stage(self) -> str:
        """The stage: "development", "staging", "production" or "archived"."""
        return self._annotations.stage

    @property
    def description(self) -> str:
        """The purpose of the model."""
        return self._annotations.description

    @property
    def tags(self) -> dict[str, str]:
        """The tags."""
        return dict(self._annotations.tags)

    @property
    def features(self) -> list[str]:
        """The model's features, as references with group versions."""
        return [feature.reference for feature in self.spec.features.features]

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The required label columns: join keys, and inputs that no group provides."""
        return self.spec.label_columns

    @property
    def inputs(self) -> tuple[str, ...]:
        """The input columns of the model, in order."""
        return tuple(model_input.name for model_input in self.spec.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The prediction columns."""
        return tuple(output.name for output in self.spec.outputs)

    @property
    def label(self) -> tuple[str, ...]:
        """The label columns used in training."""
        return self.spec.label

    @property
    def run_id(self) -> str | None:
        """The id of the run that trained the model."""
        return self.spec.run

    @property
    def dataset(self) -> TrainingDataset:
        """The training dataset of the model.

        Raises:
            TrainingDatasetNotFound: The dataset was deleted with ``force``.
        """
        from featurestore.training import catalog as datasets

        return datasets.get(self.session, self.spec.dataset["name"], self.spec.dataset["version"])

    @property
    def transformations(self) -> Transformations | None:
        """The fitted transformations that are applied before the model, or None."""
        if self.spec.transformations is None:
            return None
        path = os.path.join(self.path, TRANSFORMATIONS_FILE)
        # Other transformations would change predictions without an error.
        if not self.session.storage.exists(path) or files.sha256(path) != self.spec.transformations:
            raise ModelDamaged(
                f"{path!r} differs from the registered file.", hint="restore it from a copy"
            )
        return Transformations.from_bytes(self.session.storage.read_bytes(path), path=path)

    def load(self, *, trust: bool = False) -> Any:
        """Load and return the model.

        Args:
            trust: Allow loading files that run code, such as SavedModel and pickles.

        Raises:
            UntrustedModel: The file contains code, and ``trust`` is False.
            ModelDamaged: A file differs from the registered one.
        """
        return loading.load_registered(self.path, self.spec, trust=trust)

    def server(self, *, online: str | None = None, trust: bool = False) -> ModelServer:
        """Return a server of predictions from the published view of the training dataset.

        Args:
            online: The name of the online store; None means the embedded store.
            trust: Allow loading files that run code, such as SavedModel and pickles.

        Raises:
            InvalidArgument: The training dataset was not created from a feature view.
            NotPublished: The view is not published to the online store.
            UntrustedModel: The file contains code, and ``trust`` is False.
        """
        from featurestore.experiments.models.scoring import ModelServer

        server = ModelServer(self, online=online, trust=trust)
        try:
            server.load()
        except BaseException:
            server.close()
            raise
        return server

    def get_features(
        self,
        *,
        labels: object,
        label_time: datetime | str | None = None,
        as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    ) -> FeatureFrame:
        """Return the model's features for the labels, as of each label's time.

        Raises:
            FeatureViewBroken: A group no longer has one of the model's features.
        """
        from featurestore.experiments.models.scoring import get_model_features
        from featurestore.model.requests import RowsRequest

        request = RowsRequest(labels=labels, label_time=label_time, as_of=as_of)
        return get_model_features(self, request)

    def update(
        self,
        *,
        stage: Stage | None = None,
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Model:
        """Update the stage, the description or the tags, which replace all existing tags."""
        fields: JsonDict = {}
        if stage is not None:
            fields["stage"] = check_stage(stage)
        if description is not None:
            fields["description"] = description
        if tags is not None:
            check_tags(tags)
            fields["tags"] = dict(tags)
        describe(self.session, self.spec, fields)
        return self

    def delete(self) -> None:
        """Delete the version. Its predictions remain, and its number is not reused."""
        remove(self.session, self.name, self.version)

    def to_json(self) -> JsonDict:
        """Return the version as a JSON object."""
        return {
            "name": self.name,
            "version": self.version,
            "stage": self.stage,
            "flavor": self.flavor,
            "run": self.run_id,
            "dataset": f"{self.spec.dataset['name']}@v{self.spec.dataset['version']}",
            "features": self.features,
            "label_columns": list(self.label_columns),
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "label": list(self.label),
            "description": self.description,
            "tags": self.tags,
            "created": self.spec.created,
            "path": self.path,
        }

    @property
    def _annotations(self) -> ModelAnnotations:
        return directories.read_annotations(self.path)

    def _repr_html_(self) -> str:
        return display.properties_table(
            self.to_json(), caption=f"Model {self.name} version {self.version}"
        )


def publish(
    session: Session,
    spec: ModelSpec,
    annotations: ModelAnnotations,
    *,
    artifact: str,
    fitted: bytes | None,
    version: int | None,
) -> ModelSpec:
    """Copy a model into the store and publish it as the requested or the next version.

    The version is published when ``model.json`` appears under its name, which is atomic.

    Args:
        session: The store.
        spec: The model without its version and files.
        annotations: Stage, description and tags.
        artifact: The file or folder to copy.
        fitted: The serialized transformations.
        version: The version to create; None for the next version.

    Raises:
        ModelExists: The version exists, or another process is writing it.
    """
    with in_flight(session, operation=MODELS.creation, name=spec.name, version=version) as run:
        directory = session.paths.model(spec.name, run.version)
        session.storage.make_directory(directory, durable=True)
        # All files are complete before ``model.json`` appears; a directory without it is not a
        # model.
        target = os.path.join(directory, ARTIFACT, os.path.basename(artifact))
        copied = _copy(artifact, target, directory)
        if fitted is not None:
            session.storage.write_atomically(os.path.join(directory, TRANSFORMATIONS_FILE), fitted)
        directories.write_annotations(directory, annotations)
        relative = os.path.relpath(target, directory)
        published_spec = replace(spec, version=run.version, artifact=relative, files=copied)
        staged = MODELS.published_file(run.staging)
        session.storage.write_atomically(staged, published_spec.to_bytes())
        # Another process may have considered this one dead and removed its files.
        run.check_intent()
        with Publication() as publication:
            # Creating the link fails if the file exists, so only one of two concurrent writers
            # succeeds.
            if not publication.link(staged, MODELS.published_file(directory)):
                raise ModelExists(
                    f"Version {published_spec.version} of model {published_spec.name!r} already exists."
                )
        run.committed_version = published_spec.version
        with warn_after_publication(
            f"Model {published_spec.name!r} version {published_spec.version}"
        ):
            with session.registry.transaction() as connection:
                index.add(connection, published_spec, annotations)
            run.registered = True
    return published_spec


def _copy(source: str, target: str, directory: str) -> tuple[ModelFile, ...]:
    """Copy a file or folder, and return the copied files."""
    storage = storage_for(source)
    pairs = [(source, target)]
    if storage.is_directory(source):
        paths = storage.walk(source)
        pairs = [(path, os.path.join(target, os.path.relpath(path, source))) for path in paths]
    copied = []
    for source_path, path in sorted(pairs):
        storage_for(path).write_atomically(path, storage_for(source_path).read_bytes(source_path))
        relative = os.path.relpath(path, directory)
        copied.append(ModelFile(relative, storage_for(path).size(path), files.sha256(path)))
    return tuple(copied)


def get(session: Session, name: str, version: int | None, *, stage: str | None = None) -> ModelSpec:
    """Return a model version; None for the latest."""
    with session.registry.reading() as connection:
        model_key = index.get(connection, name, version, stage=stage)
    session.record_read(index.object_kind, *model_key)
    return MODELS.read(session.paths.model(*model_key), *model_key)


def every(
    session: Session, *, name: str | None = None, limit: int | None = None, offset: int = 0
) -> list[ModelSpec]:
    """Return all versions of all models, or one page; skip damaged ones with a warning."""
    conditions = [] if name is None else [index.table.c.name == name]
    with session.registry.reading() as connection:
        model_keys = index.list_all(connection, *conditions, limit=limit, offset=offset)
    session.record_reads(index.object_kind, model_keys)
    specs = []
    for model_key in model_keys:
        try:
            specs.append(MODELS.read(session.paths.model(*model_key), *model_key))
        except FeatureStoreError as error:
            # A damaged version must not hide the others.
            message = f"The model {model_key[0]} version {model_key[1]} is skipped: {error.message}"
            warn_caller(message, UserWarning)
    return specs


def describe(session: Session, spec: ModelSpec, fields: JsonMapping) -> None:
    """Change fields of a version's annotations: first in the file, then in the registry."""
    session.registry.check_writable()
    directory = session.paths.model(spec.name, spec.version)
    directories.change_annotations(
        directory, lambda current: replace(current, **fields), below=session.location
    )
    subject = f"The annotations of model {spec.name!r} version {spec.version}"
    with warn_after_publication(subject), session.registry.transaction() as connection:
        MODELS.register_annotations(connection, directory, spec.name, spec.version)


def remove(session: Session, name: str, version: int) -> None:
    """Delete a version; its predictions remain."""
    with session.registry.reading() as connection:
        index.get(connection, name, version)
    with in_flight(session, operation=MODELS.removal, name=name, version=version) as run:
        with session.registry.transaction() as connection:
            # Remove the index entry first, so that no process finds a version whose files are being
            # deleted.
            MODELS.unregister(connection, name, version)
        MODELS.remove(session.paths, name, version)
        run.registered = True


def check_stage(stage: str) -> Stage:
    """Check the name of a stage and return it."""
    stages = get_args(Stage)
    if stage not in stages:
        raise InvalidArgument(
            f"Unknown stage {stage!r}. Available: {listing(stages)}.",
            hint=did_you_mean(stage, stages, write="stage={!r}"),
        )
    return stage  # type: ignore[return-value]
