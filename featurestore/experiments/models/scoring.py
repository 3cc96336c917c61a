"""Scoring: predict the features of labels as of each label's time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.arrow.arrow_json import type_from_json
from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import ColumnConflict, FeatureNotFound, listing
from featurestore.experiments.models import loading, spark_ml
from featurestore.experiments.models.prediction import PredictBatch
from featurestore.featuregroups import Declaration, FeatureGroup, Write, create, insert
from featurestore.ingest import adopt_native, library_of, to_reader, to_relation
from featurestore.model.references import parse_group_reference
from featurestore.model.registered_model import (
    LABEL_TIME,
    MODEL_VERSION,
    ModelSpec,
    model_source,
)
from featurestore.model.times import to_micros
from featurestore.plugins.engine import Relation
from featurestore.registry import featuregroups
from featurestore.retrieval import FeatureFrame
from featurestore.retrieval.untyped_rows import typed_relation, typed_schema, typed_table
from featurestore.views.retrieval import rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from featurestore.experiments.models.handle import Model
    from featurestore.retrieval.catalog import AsOfArgument
    from featurestore.session import Session


def features_of(
    model: Model,
    *,
    labels: object,
    label_time: datetime | str | None = None,
    as_of: AsOfArgument | None = None,
) -> FeatureFrame:
    """Return labels with the features of a model, lazily.

    Raises:
        FeatureNotFound: The labels lack inputs that no group has.
    """
    session, spec = model.session, model.spec
    if spec.features.steps:
        frame = rows_of(
            session,
            spec.features,
            labels=labels,
            label_time=label_time,
            as_of=as_of,
            label_types=_input_types(spec),
        )
    elif isinstance(labels, FeatureFrame):
        frame = labels
    elif isinstance(labels, str):
        name, version = parse_group_reference(labels)
        frame = FeatureGroup.find(session, name, version).read()
    else:
        frame = _rows_in_memory(session, labels, _input_types(spec))
    missing_inputs = [name for name in model.inputs if name not in frame.columns]
    if missing_inputs:
        raise FeatureNotFound(
            f"Model {spec.name!r} version {spec.version} needs the missing columns "
            f"{listing(missing_inputs)}. Columns of the labels: {listing(frame.columns, limit=30)}.",
            hint=f"labels need the columns {list(spec.label_columns)}",
        )
    return frame


def score(
    model: Model,
    *,
    labels: object,
    label_time: datetime | str | None = None,
    as_of: AsOfArgument | None = None,
    trust: bool = False,
) -> FeatureFrame:
    """Return the label columns with predictions, lazily.

    Raises:
        UntrustedModel: Loading the model runs code, and ``trust`` is False.
        ColumnConflict: Labels have columns with the names of predictions.
    """
    session, spec = model.session, model.spec
    description = f"Model {spec.name!r} version {spec.version}"
    loading.check_trusted(model.artifact, spec.flavor, trust=trust, description=description)
    frame = features_of(model, labels=labels, label_time=label_time, as_of=as_of)
    fixed_label_time = None
    if frame.plan is not None and frame.plan.fixed_time is not None:
        fixed_label_time = to_micros(frame.plan.fixed_time)
    label_columns = _label_columns(frame, spec)
    fields = [frame.schema.field(name) for name in label_columns]
    for output in spec.outputs:
        fields.append(pa.field(output.name, type_from_json(output.type)))
    fields.append(pa.field(MODEL_VERSION, pa.int64()))
    if fixed_label_time is not None:
        fields.append(pa.field(LABEL_TIME, TIMESTAMP))
    schema = pa.schema(fields)
    inputs = [{"source": model_source(spec.name), "version": spec.version}, *frame.inputs]
    duplicate_names = [name for name in schema.names if schema.names.count(name) > 1]
    if duplicate_names:
        raise ColumnConflict(
            f"The label columns {listing(sorted(set(duplicate_names)))} have the names of predictions.",
            hint="rename these columns of the labels",
        )
    if spec.flavor == "spark":
        loading.check_files(model.path, spec)
        rows = session.engine.to_spark(frame.relation)
        scored_rows = spark_ml.score_rows(
            model.artifact, spec, rows, label_columns=label_columns, label_time=fixed_label_time
        )
        adopted = adopt_native(scored_rows, engine=session.engine)
        assert adopted is not None
        return FeatureFrame(session, adopted).made_of(*inputs)
    fitted = model.transformations
    if fitted is not None:
        fitted = fitted.portable(without=[n for n in spec.label if n not in model.inputs])
    function = PredictBatch(
        model.path, spec.to_bytes(), fitted, tuple(label_columns), schema, fixed_label_time
    )

    def relation() -> Relation:
        return session.engine.map_batches(frame.relation, function, schema=schema)

    return FeatureFrame(session, relation, schema=schema).made_of(*inputs)


def write_predictions(
    model: Model, scored: FeatureFrame, features: FeatureFrame, name: str, *, key: Sequence[str]
) -> None:
    """Write predictions into a group, which is created if missing.

    A prediction replaces an earlier one of the same key and time.
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
        insert(session, scored, name, write=Write(mode=mode))
        return
    declaration = Declaration(
        primary_key=keys,
        event_time=time,
        description=f"Predictions of model {model.name}",
        tags={"model": model.name},
    )
    create(session, scored, name, declared=declaration)


def _input_types(spec: ModelSpec) -> dict[str, pa.DataType]:
    return {each.name: each.kind for each in spec.inputs}


def _rows_in_memory(
    session: Session, labels: object, types: Mapping[str, pa.DataType]
) -> FeatureFrame:
    """Return labels as a frame that can be read repeatedly."""
    adopted = adopt_native(labels, engine=session.engine)
    if adopted is not None:
        schema = typed_schema(adopted.schema, lambda _: types)
        return FeatureFrame(session, typed_relation(session.engine, adopted, schema))
    table = typed_table(to_reader(labels).read_all(), lambda _: types, library_of(labels))

    def relation() -> Relation:
        return to_relation(table, engine=session.engine)

    return FeatureFrame(session, relation, schema=relation().schema)


def _label_columns(frame: FeatureFrame, spec: ModelSpec) -> list[str]:
    """Return the columns of the labels, without the features."""
    features = {feature.name for feature in spec.features.features}
    features.update(each.name for each in spec.features.on_demand)
    return [name for name in frame.columns if name not in features]
