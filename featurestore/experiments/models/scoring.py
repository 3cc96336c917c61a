"""score: features as of each label's time, through a model, as rows with predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.errors import ColumnConflict, FeatureNotFound, listing
from featurestore.experiments.models import loading, spark_ml
from featurestore.experiments.models.prediction import PredictBatch
from featurestore.featuregroups import Declaration, FeatureGroup, Write, create, insert
from featurestore.ingest import adopt_native, library_of, to_reader, to_relation
from featurestore.model.arrow_json import type_from_json
from featurestore.model.references import parse_group_reference
from featurestore.model.registered_model import (
    LABEL_TIME,
    MODEL_VERSION,
    ModelSpec,
    model_source,
)
from featurestore.model.times import to_micros
from featurestore.model.types import TIMESTAMP
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
    """Return labels with the features that a model needs, lazily.

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
    absent = [name for name in model.inputs if name not in frame.columns]
    if absent:
        raise FeatureNotFound(
            f"Model {spec.name!r} version {spec.version} takes {listing(absent)}, which the labels "
            f"do not bring; they have {listing(frame.columns, limit=30)}.",
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
    """Return the columns of the labels with predictions, lazily.

    Raises:
        UntrustedModel: Loading the model runs code, and ``trust`` is False.
        ColumnConflict: Labels have columns of the names of predictions.
    """
    session, spec = model.session, model.spec
    what = f"Model {spec.name!r} version {spec.version}"
    loading.check_trusted(model.artifact, spec.flavor, trust=trust, what=what)
    frame = features_of(model, labels=labels, label_time=label_time, as_of=as_of)
    fixed = None
    if frame.plan is not None and frame.plan.fixed_time is not None:
        fixed = to_micros(frame.plan.fixed_time)
    kept = _label_columns(frame, spec)
    fields = [frame.schema.field(name) for name in kept]
    for output in spec.outputs:
        fields.append(pa.field(output.name, type_from_json(output.type)))
    fields.append(pa.field(MODEL_VERSION, pa.int64()))
    if fixed is not None:
        fields.append(pa.field(LABEL_TIME, TIMESTAMP))
    schema = pa.schema(fields)
    inputs = [{"source": model_source(spec.name), "version": spec.version}, *frame.inputs]
    taken = [name for name in schema.names if schema.names.count(name) > 1]
    if taken:
        raise ColumnConflict(
            f"The labels have {listing(sorted(set(taken)))}, which predictions are called.",
            hint="rename these columns of the labels",
        )
    if spec.flavor == "spark":
        loading.check_files(model.path, spec)
        rows = session.engine.to_spark(frame.relation)
        answered = spark_ml.scored(model.artifact, spec, rows, kept=kept, label_time=fixed)
        adopted = adopt_native(answered, engine=session.engine)
        assert adopted is not None
        return FeatureFrame(session, adopted).made_of(*inputs)
    fitted = model.transformations
    if fitted is not None:
        fitted = fitted.portable(without=[n for n in spec.label if n not in model.inputs])
    function = PredictBatch(model.path, spec.to_bytes(), fitted, tuple(kept), schema, fixed)

    def relation() -> Relation:
        return session.engine.map_batches(frame.relation, function, schema=schema)

    return FeatureFrame(session, relation, schema=schema).made_of(*inputs)


def write_predictions(
    model: Model, scored: FeatureFrame, features: FeatureFrame, name: str, *, key: Sequence[str]
) -> None:
    """Write predictions into a group, which is made where there is none.

    A prediction for the same key and time takes the place of the one before.
    """
    session = model.session
    keys, time = tuple(key), None
    if features.plan is not None:
        keys = keys or features.plan.keys
        time = features.plan.time
    if LABEL_TIME in scored.columns:
        time = LABEL_TIME
    with session.registry.reading() as connection:
        known = featuregroups.find(connection, name, None)
    if known is not None:
        mode = "upsert" if known.spec.primary_key else "append"
        insert(session, scored, name, write=Write(mode=mode))
        return
    declared = Declaration(
        primary_key=keys,
        event_time=time,
        description=f"Predictions of model {model.name}",
        tags={"model": model.name},
    )
    create(session, scored, name, declared=declared)


def _input_types(spec: ModelSpec) -> dict[str, pa.DataType]:
    return {each.name: each.kind for each in spec.inputs}


def _rows_in_memory(
    session: Session, labels: object, types: Mapping[str, pa.DataType]
) -> FeatureFrame:
    """Return labels as a frame that can be read again and again."""
    adopted = adopt_native(labels, engine=session.engine)
    if adopted is not None:
        schema = typed_schema(adopted.schema, lambda _: types)
        return FeatureFrame(session, typed_relation(session.engine, adopted, schema))
    table = typed_table(to_reader(labels).read_all(), lambda _: types, library_of(labels))

    def relation() -> Relation:
        return to_relation(table, engine=session.engine)

    return FeatureFrame(session, relation, schema=relation().schema)


def _label_columns(frame: FeatureFrame, spec: ModelSpec) -> list[str]:
    """Return the columns that came with the labels."""
    features = {feature.name for feature in spec.features.features}
    features.update(each.name for each in spec.features.on_demand)
    return [name for name in frame.columns if name not in features]
