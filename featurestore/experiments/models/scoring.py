"""Predictions of registered models: for labels, and for entities of a published feature view.

Scoring predicts from the features as of each label's time, in the engine's batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.arrow.casts import cast_batch
from featurestore.arrow.schemas import type_from_json
from featurestore.arrow.types import TIMESTAMP
from featurestore.arrow.values import to_scalar
from featurestore.errors import FeatureNotFound, InvalidArgument, listing
from featurestore.experiments.models import loading, spark_pipelines
from featurestore.experiments.models.conversion import check_input_types, convert_outputs
from featurestore.experiments.models.input_rows import to_model_input
from featurestore.experiments.models.loading import load_predictor
from featurestore.experiments.models.predictors import Predict
from featurestore.featuregroups import FeatureGroup, WriteRequest, create, insert
from featurestore.ingest import adopt_native, to_reader, to_relation
from featurestore.model.group_options import GroupOptions
from featurestore.model.json_object import JsonDict
from featurestore.model.names import NamedColumn, check_distinct_names, parse_group_reference
from featurestore.model.registered_model import (
    LABEL_TIME,
    MODEL_VERSION,
    ModelSpec,
    model_lineage_name,
)
from featurestore.model.requests import RowsRequest
from featurestore.model.runtime import ForkSafeLock
from featurestore.model.times import from_micros, to_micros
from featurestore.plugins.engine import Relation
from featurestore.registry import featuregroups
from featurestore.retrieval import FeatureFrame
from featurestore.retrieval.labels import typed_relation, typed_schema, typed_table
from featurestore.retrieval.view_rows import retrieve_rows
from featurestore.serving.published import PublishedVectors
from featurestore.serving.stores import open_online_store
from featurestore.serving.vectors import Entities, Status, VectorForm, entity_rows
from featurestore.transform.fitted import Transformations
from featurestore.views import definition

if TYPE_CHECKING:
    from featurestore.experiments.models.catalog import Model
    from featurestore.session import Session


@dataclass(frozen=True)
class PredictBatch:
    """Batch function that replaces features with predictions; engines pickle it for their workers.

    ``content`` is the model's ``model.json``. ``label_time`` (microseconds since 1970) is the time
    of rows without a time column. ``trust`` allows code in the files of the model.
    """

    directory: str
    content: bytes
    fitted: Transformations | None
    label_columns: tuple[str, ...]
    schema: pa.Schema
    label_time: int | None = None
    trust: bool = False

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the label columns with predictions and the model version."""
        spec = ModelSpec.from_bytes(self.content, path=self.directory)
        columns = {name: batch.column(name) for name in self.label_columns}
        columns.update(self._predictions(spec, batch))
        columns[MODEL_VERSION] = pa.repeat(to_scalar(spec.version, pa.int64()), batch.num_rows)
        if self.label_time is not None:
            label_time = to_scalar(from_micros(self.label_time), TIMESTAMP)
            columns[LABEL_TIME] = pa.repeat(label_time, batch.num_rows)
        arrays = [columns[name] for name in self.schema.names]
        return cast_batch(pa.RecordBatch.from_arrays(arrays, self.schema.names), self.schema)

    def _predictions(self, spec: ModelSpec, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the prediction columns of a batch."""
        if not batch.num_rows:
            types = {output.name: type_from_json(output.type) for output in spec.outputs}
            return {name: pa.nulls(0, dtype) for name, dtype in types.items()}
        # Loaded once per process: engines call this object for many batches.
        predict = load_predictor(self.directory, self.content, trust=self.trust)
        model_outputs = predict(to_model_input(spec, self.fitted, batch))
        return convert_outputs(spec, model_outputs, batch.num_rows)


def get_model_features(model: Model, request: RowsRequest) -> FeatureFrame:
    """Return the labels with the model's features, lazily.

    Raises:
        FeatureNotFound: The labels lack inputs that no group provides.
        InvalidArgument: An input has a type whose values do not fit.
    """
    session, spec, labels = model.session, model.spec, request.labels
    if spec.features.steps:
        frame = retrieve_rows(session, spec.features, request, label_types=_input_types(spec))
    elif isinstance(labels, FeatureFrame):
        frame = labels
    elif isinstance(labels, str):
        name, version = parse_group_reference(labels)
        frame = FeatureGroup.find(session, name, version).read()
    else:
        frame = _to_readable_frame(session, labels, _input_types(spec))
    missing_inputs = [name for name in model.inputs if name not in frame.columns]
    if missing_inputs:
        raise FeatureNotFound(
            f"Model {spec.name!r} version {spec.version} requires columns that the labels lack: "
            f"{listing(missing_inputs)}. Columns of the labels: {listing(frame.columns, limit=30)}.",
            hint=f"labels need the columns {list(spec.label_columns)}",
        )
    check_input_types(spec, frame.schema)
    return frame


def score(model: Model, request: RowsRequest, *, trust: bool = False) -> FeatureFrame:
    """Return the label columns with predictions, lazily.

    Raises:
        UntrustedModel: Loading the model runs code, and ``trust`` is False.
        ColumnConflict: The labels have columns with the names of predictions.
    """
    session, spec = model.session, model.spec
    description = f"Model {spec.name!r} version {spec.version}"
    loading.check_trusted(model.artifact, spec.flavor, trust=trust, description=description)
    frame = get_model_features(model, request)
    fixed_label_time = None
    if frame.plan is not None and frame.plan.fixed_time is not None:
        fixed_label_time = to_micros(frame.plan.fixed_time)
    features = {feature.name for feature in spec.features.features}
    features |= {feature.name for feature in spec.features.on_demand}
    label_columns = [name for name in frame.columns if name not in features]
    fields = [frame.schema.field(name) for name in label_columns]
    for output in spec.outputs:
        fields.append(pa.field(output.name, type_from_json(output.type)))
    fields.append(pa.field(MODEL_VERSION, pa.int64()))
    if fixed_label_time is not None:
        fields.append(pa.field(LABEL_TIME, TIMESTAMP))
    schema = pa.schema(fields)
    inputs = [{"source": model_lineage_name(spec.name), "version": spec.version}, *frame.inputs]
    columns = [NamedColumn(name, f"the label column {name!r}") for name in label_columns]
    columns += [
        NamedColumn(field.name, "a column of the predictions") for field in fields[len(columns) :]
    ]
    check_distinct_names(columns, hint=lambda column: f"rename the label column {column.name!r}")
    if spec.flavor == "spark":
        # Spark loads the files itself; for other formats ``load_predictor`` compares their hashes.
        loading.check_files(model.path, spec)
        rows = session.engine.to_spark(frame.relation)
        scored_rows = spark_pipelines.score_rows(
            model.artifact, spec, rows, label_columns=label_columns, label_time=fixed_label_time
        )
        adopted = adopt_native(scored_rows, engine=session.engine)
        assert adopted is not None
        return FeatureFrame(session, adopted).made_of(*inputs)
    fitted = model.transformations
    if fitted is not None:
        # Engines pickle the function for their workers. Transformations of labels are not needed
        # there.
        fitted = fitted.portable(without=[n for n in spec.label if n not in model.inputs])
    function = PredictBatch(
        model.path, spec.to_bytes(), fitted, tuple(label_columns), schema, fixed_label_time, trust
    )

    def relation() -> Relation:
        return session.engine.map_batches(frame.relation, function, schema=schema)

    return FeatureFrame(session, relation, schema=schema).made_of(*inputs)


def write_predictions(
    model: Model, scored: FeatureFrame, features: FeatureFrame, name: str, *, key: Sequence[str]
) -> None:
    """Write predictions into a group, and create the group if it is missing.

    A prediction replaces an earlier prediction with the same key and time.
    """
    session = model.session
    keys, time = tuple(key), None
    if features.plan is not None:
        keys = keys or features.plan.keys
        time = features.plan.time
    if LABEL_TIME in scored.columns:
        time = LABEL_TIME
    with session.registry.reading() as connection:
        existing_group = featuregroups.find(connection, name, None)
    if existing_group is not None:
        mode = "upsert" if existing_group.spec.primary_key else "append"
        insert(session, scored, WriteRequest(name, mode=mode))
        return
    options = GroupOptions(
        primary_key=keys,
        event_time=time,
        description=f"Predictions of model {model.name}",
        tags={"model": model.name},
    )
    create(session, scored, WriteRequest(name, options=options))


def _input_types(spec: ModelSpec) -> dict[str, pa.DataType]:
    return {model_input.name: model_input.kind for model_input in spec.inputs}


def _to_readable_frame(
    session: Session, labels: object, types: Mapping[str, pa.DataType]
) -> FeatureFrame:
    """Return the labels as a frame that can be read repeatedly."""
    adopted = adopt_native(labels, engine=session.engine)
    if adopted is not None:
        schema = typed_schema(adopted.schema, lambda _: types)
        return FeatureFrame(session, typed_relation(session.engine, adopted, schema))
    # Read everything, since a stream of batches can be read only once.
    table = typed_table(to_reader(labels).read_all(), lambda _: types, labels)

    def relation() -> Relation:
        return to_relation(table, engine=session.engine)

    return FeatureFrame(session, relation, schema=relation().schema)


@dataclass(frozen=True)
class Predictions:
    """The predictions for some entities, in their order, with the origin of their vectors.

    ``table`` has the output columns with one row for each entity; ``delta_versions`` are the
    published Delta versions by feature group.
    """

    model: str
    model_version: int
    view: str
    view_version: int
    table: pa.Table
    statuses: Sequence[Status]
    delta_versions: Mapping[str, int]

    @property
    def rows(self) -> list[JsonDict]:
        """The output columns of each entity as a dict."""
        rows: list[JsonDict] = self.table.to_pylist()
        return rows

    @property
    def origin(self) -> JsonDict:
        """The versions of the model, the view and the groups, and the statuses of the vectors."""
        return {name: value for name, value in vars(self).items() if name != "table"}


class ModelServer:
    """A model that predicts from the published view of its training dataset; thread-safe.

    The model and its transformations are loaded once. Predictions equal those of
    ``store.score`` for the same entities and time.
    """

    def __init__(self, model: Model, *, online: str | None, trust: bool) -> None:
        spec = model.spec
        view = model.dataset.manifest.view
        if spec.flavor == "spark" or view is None:
            reason = "was not created from a feature view" if view is None else "has a Spark model"
            raise InvalidArgument(
                f"Model {spec.name!r} version {spec.version} cannot be served: its training dataset "
                f"{reason}.",
                hint="view.create_training_dataset(...), and train a model of another library",
            )
        self._spec, self._model, self._trust = spec, model, trust
        self._fitted = model.transformations
        self._loading = ForkSafeLock()
        self._predict: Predict | None = None
        self._view = definition.get(model.session, view["name"], view["version"])
        form = VectorForm(
            pa.schema([(model_input.name, model_input.kind) for model_input in spec.inputs])
        )
        store = open_online_store(model.session, online)
        self.vectors = PublishedVectors(model.session, self._view, store, form)

    def load(self) -> Predict:
        """Return the function that predicts; other threads wait only for the first load."""
        with self._loading:
            if self._predict is None:
                self._predict = loading.load_predictor(
                    self._model.path, self._spec.to_bytes(), trust=self._trust
                )
            return self._predict

    def predict(self, entities: Entities) -> Predictions:
        """Return the predictions for entities, from one read of the online store.

        Raises:
            InvalidArgument: There are no entities, an entity lacks a column, or a value has the
                wrong type.
            NullsInColumns: An entity has no value of an input that must not be null.
        """
        rows = entity_rows(entities)
        if not rows:
            raise InvalidArgument("predict needs at least one entity.", hint="predict([{...}])")
        predict = self.load()
        served = self.vectors.read_batch(rows)
        outputs = predict(to_model_input(self._spec, self._fitted, served.batch))
        table = pa.table(convert_outputs(self._spec, outputs, served.batch.num_rows))
        return Predictions(
            model=self._spec.name,
            model_version=self._spec.version,
            view=self._view.name,
            view_version=self._view.version,
            table=table,
            statuses=served.statuses,
            delta_versions=served.delta_versions,
        )

    def close(self) -> None:
        """Close the connections to the online store."""
        self.vectors.close()
