"""Application of a dataset's transformations to other rows, inside the engine."""

from __future__ import annotations

from featurestore.arrow.schemas import type_from_json
from featurestore.errors import InvalidArgument
from featurestore.ingest import to_relation
from featurestore.model.paths import TRAININGDATASETS
from featurestore.plugins.engine import Relation
from featurestore.retrieval import FeatureFrame
from featurestore.retrieval.labels import typed_relation, typed_schema
from featurestore.session import Session
from featurestore.training.dataset import TrainingDataset
from featurestore.training.metadata import DatasetMetadata
from featurestore.training.transformations import resolve_transformations
from featurestore.transform.apply import TransformBatch, check_frame
from featurestore.transform.fitted import Transformations


def transform_frame(
    session: Session, frame: object, dataset: TrainingDataset | Transformations
) -> FeatureFrame:
    """Apply transformations to a frame lazily.

    Raises:
        FeatureNotFound: Inputs are missing.
    """
    labels: list[str] = []
    fitted: Transformations | None
    if isinstance(dataset, DatasetMetadata):
        fitted = resolve_transformations(dataset, True)
        labels = [name for name, role in dataset.roles.items() if role == "label"]
        types = dict(zip(dataset.schema.names, dataset.schema.types, strict=True))
    elif isinstance(dataset, Transformations):
        fitted = dataset
        types = {column.name: type_from_json(column.type) for column in dataset.columns}
    else:
        raise InvalidArgument(
            f"{dataset!r} is neither a training dataset nor fitted transformations.",
            hint="store.transform(frame, store.get_training_dataset('name'))",
        )
    assert fitted is not None
    if isinstance(frame, FeatureFrame):
        rows = frame
    else:
        # A dataframe may lack type information, for example of nulls; the dataset supplies the
        # types.
        loose_rows = to_relation(frame, engine=session.engine)
        schema = typed_schema(loose_rows.schema, lambda _: types)
        rows = FeatureFrame(session, typed_relation(session.engine, loose_rows, schema))
    # Rows to score usually have no label.
    absent = [name for name in labels if name not in rows.columns]
    fitted = fitted.portable(without=absent)
    check_frame(fitted, rows.schema)
    output_schema, transform_batch = fitted.schema(rows.schema), TransformBatch(fitted)

    def relation() -> Relation:
        return session.engine.map_batches(rows.relation, transform_batch, schema=output_schema)

    inputs = list(rows.inputs)
    if isinstance(dataset, DatasetMetadata):
        inputs.append({"source": f"{TRAININGDATASETS}/{dataset.name}", "version": dataset.version})
    return FeatureFrame(session, relation, schema=output_schema).made_of(*inputs)
