"""A dataset's transformations on any rows, where the rows are."""

from __future__ import annotations

from featurestore.errors import InvalidArgument
from featurestore.ingest import to_relation
from featurestore.plugins.engine import Relation
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.training.dataset import TrainingDataset
from featurestore.training.transformations import of_dataset
from featurestore.transform.batches import TransformBatch, check_frame
from featurestore.transform.fitted import Transformations


def transform_frame(
    session: Session, frame: object, dataset: TrainingDataset | Transformations
) -> FeatureFrame:
    """Return a frame with transformations applied; nothing is read yet.

    Raises:
        FeatureNotFound: Inputs are missing.
    """
    labels: list[str] = []
    fitted: Transformations | None
    if isinstance(dataset, TrainingDataset):
        fitted = of_dataset(dataset, True)
        labels = [name for name, role in dataset.roles.items() if role == "label"]
    elif isinstance(dataset, Transformations):
        fitted = dataset
    else:
        raise InvalidArgument(
            f"{dataset!r} is neither a training dataset nor fitted transformations.",
            hint="store.transform(frame, store.get_training_dataset('name'))",
        )
    assert fitted is not None
    given = frame
    if not isinstance(given, FeatureFrame):
        given = FeatureFrame(session, to_relation(frame, engine=session.engine))
    rows: FeatureFrame = given
    absent = [name for name in labels if name not in rows.columns]
    fitted = fitted.portable(without=absent)
    check_frame(fitted, rows.schema)
    schema, function = fitted.schema(rows.schema), TransformBatch(fitted)

    def relation() -> Relation:
        return session.engine.map_batches(rows.relation, function, schema=schema)

    return FeatureFrame(session, relation, schema=schema)
