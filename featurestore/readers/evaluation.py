"""What a model says of a split, row by row: without padding, each row once, and whose row it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidArgument, ReaderConfigError, listing
from featurestore.readers.order import PADDING, Rows

if TYPE_CHECKING:
    import pyarrow as pa

    from featurestore.readers.reader import Reader


def reading_order(reader: Reader, epoch: int) -> Rows:
    """Return the canonical rows of an epoch as one worker reads them, padding among them."""
    order = reader.order.epoch(epoch)
    return order.batches(0, reader.steps_per_epoch).reshape(-1)


def unpad(reader: Reader, predictions: Any, *, epoch: int) -> npt.NDArray[Any]:
    """Return the predictions of rows: those of padding are taken out."""
    if hasattr(predictions, "detach"):  # a tensor of PyTorch, with its gradient or on a device
        predictions = predictions.detach().cpu()
    array = np.asarray(predictions)
    rows = reading_order(reader, epoch)
    real = rows != PADDING
    count = int(real.sum())
    if array.ndim and len(array) == count:
        return array
    if not array.ndim or len(array) != len(rows):
        raise InvalidArgument(
            f"predictions of shape {array.shape} are not those of an epoch: it has {count:,} rows"
            f"{f', {len(rows):,} with padding' if len(rows) > count else ''}.",
            hint="reader.unpad(model.predict(reader.tf_dataset()))",
        )
    return array[real]


def keys(reader: Reader, *, epoch: int) -> pa.Table:
    """Return the key columns of the rows of an epoch, in the order in which they are read."""
    rows = reading_order(reader, epoch)
    names = list(reader.manifest.key) or [column.name for column in reader.manifest.columns]
    stored = reader.files()
    try:
        table = stored.read(np.array([0]), np.array([reader.order.rows]), names)
    finally:
        stored.close()
    return table.select(names).take(rows[rows != PADDING])


def evaluate(reader: Reader, model: Any, **options: Any) -> dict[str, float]:
    """Return the metrics of a compiled Keras model over every row once."""
    if not hasattr(model, "evaluate"):
        raise InvalidArgument(
            f"evaluate() takes a compiled Keras model; {type(model).__name__} has no evaluate().",
            hint='reader(..., remainder="keep") reads every row once: '
            "for features, label in reader.torch_loader(): ...",
        )
    whole = replace(
        reader,
        order=replace(reader.order, remainder="keep"),
        settings={**reader.settings, "remainder": "keep"},
    )
    result = model.evaluate(whole.tf_dataset(), return_dict=True, **{"verbose": 0, **options})
    return {name: float(value) for name, value in result.items()}


def refuse_metrics_over_padding(reader: Reader, model: Any) -> None:
    """Refuse a model whose metrics would count the padding of a reader.

    Keras gives weights to the loss and to ``weighted_metrics=``, not to ``metrics=``.
    """
    names = []
    for attribute in ("_compile_metrics", "compiled_metrics"):
        for each in getattr(getattr(model, attribute, None), "_user_metrics", None) or ():
            names.append(getattr(each, "name", each))
    if reader.order.remainder == "pad" and names:
        raise ReaderConfigError(
            f'metrics= of the model ({listing(names)}) would count the padding of remainder="pad".',
            hint=f"model.compile(..., weighted_metrics=[{', '.join(map(repr, names))}])",
        )
