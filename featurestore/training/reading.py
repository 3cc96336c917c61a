"""Reading of training datasets in canonical order.

Rows are read as batches, as a FeatureFrame, or as in-memory arrays for tabular models.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore import _current
from featurestore.arrow.schemas import type_from_json
from featurestore.arrow.values import assign_rounded
from featurestore.errors import (
    DatasetDamaged,
    InvalidArgument,
    NullsInColumns,
    UnsupportedType,
    listing,
)
from featurestore.model.manifest import Manifest, ManifestColumn, ManifestShard
from featurestore.model.names import NamedColumn, cell_names, check_distinct_names
from featurestore.model.paths import TRAININGDATASETS
from featurestore.model.timestamp_inputs import refuse_timestamp_inputs
from featurestore.plugins.engine import Relation, find_engine
from featurestore.plugins.format import find_format
from featurestore.readers.class_weights import compute_balanced_weights
from featurestore.readers.columns import to_numpy, value_dtype_and_shape
from featurestore.readers.transformed import zero_based_label_codes
from featurestore.storage.shards import local_path

if TYPE_CHECKING:
    from featurestore.registry import Registry
    from featurestore.retrieval import FeatureFrame
    from featurestore.training.dataset import TrainingDataset
    from featurestore.transform.fitted import Transformations

READ_ROWS = 65_536


def dataset_schema(manifest: Manifest) -> pa.Schema:
    """Return the feature types of the dataset columns."""
    return pa.schema([(column.name, type_from_json(column.type)) for column in manifest.columns])


def split_batches(
    directory: str, manifest: Manifest, split: str, *, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of a split in canonical order.

    Raises:
        InvalidArgument: The layout does not support reading row by row (GZIP).
    """
    for shard in manifest.split(split).shards:
        yield from shard_batches(directory, manifest, shard, columns=columns)


def shard_batches(
    directory: str,
    manifest: Manifest,
    shard: ManifestShard,
    *,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one shard."""
    _current.record_path_read(directory)
    dataset_format = find_format(manifest.data_format)
    refusal = dataset_format.refuse_reading(manifest.layout)
    if refusal is not None:
        raise InvalidArgument(refusal)
    if columns is None:
        columns = [column.name for column in manifest.columns]
    with local_path(directory, shard) as path:
        reader = dataset_format.open_shard(path, layout=manifest.layout)
    try:
        for start in range(0, shard.rows, READ_ROWS):
            yield reader.read(start, min(shard.rows, start + READ_ROWS), list(columns))
    finally:
        reader.close()


def has_readable_rows(manifest: Manifest) -> bool:
    """Return whether ``shard_batches_in_order`` can read a dataset."""
    return find_format(manifest.data_format).reads_in_order(manifest.layout)


def shard_batches_in_order(
    directory: str,
    manifest: Manifest,
    shard: ManifestShard,
    *,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one shard, also of layouts without random access to rows.

    Raises:
        InvalidArgument: The format cannot read such a layout.
        DatasetDamaged: The shard is damaged, or lacks rows.
    """
    dataset_format = find_format(manifest.data_format)
    if dataset_format.refuse_reading(manifest.layout) is None:
        yield from shard_batches(directory, manifest, shard, columns=columns)
        return
    _current.record_path_read(directory)
    if columns is None:
        columns = dataset_schema(manifest).names
    rows = 0
    with local_path(directory, shard) as path:
        for batch in dataset_format.read_in_order(path, layout=manifest.layout, columns=columns):
            rows += batch.num_rows
            yield batch
    if rows != shard.rows:
        raise DatasetDamaged(
            f"The shard {shard.path!r} has {rows:,} rows, but {shard.rows:,} in the manifest.",
            hint="featurestore td verify lists the damage",
        )


def split_frame(dataset: TrainingDataset, split: str) -> FeatureFrame:
    """Return the rows of a split as a frame; the embedded engine reads datasets opened by path."""
    from featurestore.retrieval import FeatureFrame

    # Checked here, because the relation is lazy and an unknown split should fail at the call.
    dataset.manifest.split(split)
    session = dataset.session
    if session is None:
        from featurestore.session import Session

        # Reading files needs no registry.
        registry = cast("Registry", None)
        session = Session(os.path.dirname(dataset.path), find_engine("duckdb"), registry)
    schema = dataset_schema(dataset.manifest)

    def relation() -> Relation:
        batches = split_batches(dataset.path, dataset.manifest, split)
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        return replace(session.engine.from_arrow(reader), schema=schema)

    frame = FeatureFrame(session, relation, schema=schema)
    if dataset.session is None:  # lineage is recorded in a store only
        return frame
    source = f"{TRAININGDATASETS}/{dataset.name}"
    return frame.made_of({"source": source, "version": dataset.version})


class Matrix(NamedTuple):
    """A split as arrays: float32 inputs ``x`` of (rows, inputs), labels ``y``, input ``names``."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[Any] | None
    names: tuple[str, ...]


def matrix(
    directory: str,
    manifest: Manifest,
    split: str,
    *,
    columns: Sequence[str] | None = None,
    transform: Transformations | None = None,
) -> Matrix:
    """Read a split as arrays, with rows in canonical order.

    Raises:
        UnsupportedType: Inputs are strings or times, which cannot be float32; the message lists
            these inputs.
        NullsInColumns: Labels or list items are null.
        InvalidArgument: A finite number is infinity in float32.
        ColumnConflict: An input has the name of an element of another input.
    """
    inputs = [
        _Input(column, _value_form(column, transform))
        for column in _input_columns(manifest, columns)
    ]
    _check_numeric(inputs, time=_time_column(manifest))
    _check_names(inputs)
    labels = [column for column in manifest.columns if column.role == "label"]
    rows = manifest.split(split).rows
    # One allocation of the final size: concatenating batches would need twice the memory.
    x = np.empty((rows, sum(input_column.cells for input_column in inputs)), dtype=np.float32)
    label_batches: dict[str, list[npt.NDArray[Any]]] = {label.name: [] for label in labels}
    column_names = [*(input_column.column.name for input_column in inputs), *label_batches]
    start = 0
    for batch in split_batches(directory, manifest, split, columns=column_names):
        stop = start + batch.num_rows
        _fill_inputs(x[start:stop], batch, inputs, transform)
        for name, values in label_batches.items():
            values.append(_label(batch.column(name), name, transform))
        start = stop
    names = [name for input_column in inputs for name in input_column.names]
    return Matrix(x, _stack_labels(list(label_batches.values())), tuple(names))


def matrix_names(
    manifest: Manifest, columns: Sequence[str] | None, transform: Transformations | None
) -> dict[str, list[str]]:
    """Return the names of the matrix columns of each input; a text or a list has its own name."""
    inputs = [
        _Input(column, _value_form(column, transform))
        for column in _input_columns(manifest, columns)
    ]
    return {
        input_column.column.name: input_column.names
        if input_column.is_number
        else [input_column.column.name]
        for input_column in inputs
    }


def check_reader_inputs(
    manifest: Manifest, columns: Sequence[str] | None, transform: Transformations | None
) -> None:
    """Refuse timestamps among the inputs that a reader yields.

    Keys, times and unused columns that ``columns`` names are not model inputs. Nor are the stored
    values of a dataset with transformations: they are inputs of its preprocessor.

    Raises:
        UnsupportedType: Inputs are timestamps; the message lists all such inputs.
    """
    if transform is None and manifest.transformations is not None:
        return
    inputs = {}
    for column in manifest.columns:
        if column.role == "feature" and (columns is None or column.name in columns):
            inputs[column.name] = type_from_json(column.type)
    refuse_timestamp_inputs(
        inputs,
        transformed=[name for name in inputs if transform is not None and name in transform],
        time=_time_column(manifest),
        without="columns",
    )


def _time_column(manifest: Manifest) -> str | None:
    return next((column.name for column in manifest.columns if column.role == "time"), None)


def class_weights(manifest: Manifest, transform: Transformations | None) -> dict[Any, Any]:
    """Return the balanced class weights of the training split, by label if there are several.

    Raises:
        InvalidArgument: The dataset has no label, or its label has too many values.
    """
    labels = [column.name for column in manifest.columns if column.role == "label"]
    if not labels:
        raise InvalidArgument(
            f"Training dataset {manifest.name!r} has no label.",
            hint="create_training_dataset(..., label='column')",
        )
    weights = {
        label: compute_balanced_weights(manifest, label, transform=transform) for label in labels
    }
    return weights[labels[0]] if len(labels) == 1 else weights


@dataclass(frozen=True)
class _Input:
    """An input column with the numpy type and shape of one value."""

    column: ManifestColumn
    form: tuple[np.dtype[Any], tuple[int, ...]]

    @property
    def cells(self) -> int:
        """The number of matrix columns for this input."""
        return int(np.prod(self.form[1], dtype=np.int64))

    @property
    def names(self) -> list[str]:
        """The names of the matrix columns for this input."""
        if not self.form[1]:
            return [self.column.name]
        return cell_names(self.column.name, self.cells)

    @property
    def is_number(self) -> bool:
        """Whether the values are numbers of a fixed shape."""
        dtype, shape = self.form
        return dtype.kind != "O" and -1 not in shape


def _value_form(
    column: ManifestColumn, transform: Transformations | None
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the numpy type and shape of a value; times have the type object."""
    data_type = type_from_json(column.type)
    transformed = None if transform is None else transform.form(column.name)
    if transformed is not None:
        return transformed
    dtype, shape = value_dtype_and_shape(data_type)
    while pat.is_fixed_size_list(data_type):
        data_type = data_type.value_type
    # Times are objects here, so that ``_check_numeric`` rejects them unless a transformation
    # converts them.
    return (np.dtype(object) if pat.is_timestamp(data_type) else dtype), shape


def _input_columns(manifest: Manifest, columns: Sequence[str] | None) -> list[ManifestColumn]:
    if columns is None:
        return [column for column in manifest.columns if column.role == "feature"]
    columns_by_name = {column.name: column for column in manifest.columns}
    unknown_names = [name for name in columns if name not in columns_by_name]
    if unknown_names or isinstance(columns, str):
        raise InvalidArgument(
            f"columns={columns!r}: unknown column {listing(unknown_names)}. Training dataset "
            f"{manifest.name!r} has {listing(columns_by_name, limit=50)}.",
            hint="columns=['name', ...]",
        )
    return [columns_by_name[name] for name in columns]


def _check_numeric(inputs: Sequence[_Input], *, time: str | None) -> None:
    """Reject strings, times and variable-length lists; the error lists all such inputs."""
    unsupported = [
        f"{input_column.column.name} ({type_from_json(input_column.column.type)})"
        for input_column in inputs
        if not input_column.is_number
    ]
    if unsupported:
        numeric_names = [
            input_column.column.name for input_column in inputs if input_column.is_number
        ]
        refuse_timestamp_inputs(
            {
                input_column.column.name: type_from_json(input_column.column.type)
                for input_column in inputs
            },
            transformed=numeric_names,
            time=time,
            without="columns",
        )
        raise UnsupportedType(
            f"A float32 matrix does not support {listing(unsupported, limit=50)}.",
            hint=f"matrix(split, columns={numeric_names}), or convert them to numbers: "
            f"transformations={{{unsupported[0].split(' ')[0]!r}: t.one_hot()}}",
        )


def _check_names(inputs: Sequence[_Input]) -> None:
    """Refuse an input that has the name of an element of another input."""
    # Single columns first, so that the error names the element.
    by_size = sorted(inputs, key=lambda input_column: bool(input_column.form[1]))
    columns = []
    for input_column in by_size:
        name = f"column {input_column.column.name!r}"
        for cell, cell_name in enumerate(input_column.names):
            description = f"element {cell} of {name}" if input_column.form[1] else name
            columns.append(NamedColumn(cell_name, description))

    def hint(conflict: NamedColumn) -> str:
        return f"{_matrix_without(conflict.name, inputs)}, or rename the column before the export"

    check_distinct_names(columns, hint=hint)


def _fill_inputs(
    x: npt.NDArray[np.float32],
    batch: Any,
    inputs: Sequence[_Input],
    transform: Transformations | None,
) -> None:
    """Write the inputs of a batch into matrix rows; nulls become NaN."""
    position = 0
    for input_column in inputs:
        name = input_column.column.name
        values, present = to_numpy(batch.column(name), name=name)
        if transform is not None and name in transform:
            values = transform.apply_chain(name, values, present)
            # A transformation that handles nulls has replaced them already.
            if name in transform.null_handling:
                present = None
        cells = values.reshape(len(values), -1)
        target = x[:, position : position + cells.shape[1]]
        # Assignment converts to float32 in place, without a float64 copy of the batch.
        too_large = assign_rounded(target, cells)
        if too_large is not None:
            raise InvalidArgument(
                f"The input {name!r} has the value {too_large!r}, which is infinity in a float32 "
                "matrix.",
                hint=f"{_matrix_without(name, inputs)}, or scale the column before the export",
            )
        if present is not None:
            target[~present] = np.nan
        position += cells.shape[1]


def _matrix_without(name: str, inputs: Sequence[_Input]) -> str:
    """Return the code that reads all inputs but one."""
    names = [input_column.column.name for input_column in inputs]
    return f"matrix(split, columns={[other for other in names if other.lower() != name.lower()]})"


def _label(array: Any, name: str, transform: Transformations | None) -> npt.NDArray[Any]:
    """Convert label values to numpy, with codes from 0 for a transformed label."""
    if array.null_count:
        raise NullsInColumns(
            f"The label {name!r} has nulls, and a matrix has no weights.",
            hint='create_training_dataset(..., missing_labels="drop")',
        )
    if transform is not None and name in transform:
        values = transform.apply_chain(name, to_numpy(array, name=name)[0], None)
        # Losses such as cross entropy expect classes from 0.
        return zero_based_label_codes(transform, name, values)
    if pat.is_string(array.type):
        return np.array(array.to_pylist(), dtype=object)
    return to_numpy(array, name=name)[0]


def _stack_labels(label_batches: list[list[npt.NDArray[Any]]]) -> npt.NDArray[Any] | None:
    """Concatenate one label to shape (rows,), or several labels to shape (rows, labels)."""
    columns = [np.concatenate(batches) for batches in label_batches if batches]
    if not columns:
        return None
    if len(columns) == 1:
        return columns[0]
    return np.stack(columns, axis=1)
