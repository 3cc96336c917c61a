"""What a user hands over: a native frame that the engine adopts, or a stream of feature types.

The frame itself is never changed and never copied as a whole; streams stay streams.
Conversions are those of ``model.types``; what they mean for values:

* times without zone are taken as UTC, with one warning a call; finer than microseconds is refused;
* dictionaries (categories) become their values; null columns take the type that the group has, else
are refused;
* a pandas index without name is dropped, a named one (after ``groupby``, ``set_index``) becomes
columns;
* 2-D arrays and rows without names have the columns ``col_0``, ``col_1``, ...
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidName, UnsupportedDataframe, UnsupportedType
from featurestore.model.fixed_bytes import cast_bytes
from featurestore.model.names import check_feature_names
from featurestore.model.times import NaiveTimeWarning
from featurestore.model.types import feature_schema, is_nested, widens

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine, Relation

_BATCH_ROWS = 65_536
_KINDS = (
    "pandas or polars DataFrame, pyarrow Table or RecordBatchReader, anything with "
    "__arrow_c_stream__, "
    "2-D numpy array, list of rows or of dicts, iterator of record batches, Spark DataFrame, "
    "DuckDB relation, "
    "FeatureFrame"
)


def to_relation(df: object, *, engine: Engine, like: pa.Schema | None = None) -> Relation:
    """Return a dataframe argument as a relation of feature types.

    Args:
        df: Any of the kinds that API lists as a dataframe argument.
        engine: Adopts its own native frames without copying; takes everything else as an Arrow
        stream.
        like: Types to give where values allow it: null columns, and columns that widen into them.

    Raises:
        UnsupportedDataframe: Not a dataframe.
        UnsupportedType: Lists every column that cannot be stored.
        InvalidName: Lists every column whose name is no feature name.
    """
    adopted = _adopted(df, engine)
    if adopted is not None:
        return adopted
    return engine.from_arrow(to_reader(df, like=like))


@contextmanager
def handed_over(df: object, *, engine: Engine, like: pa.Schema | None = None) -> Iterator[Relation]:
    """Give a dataframe argument as a relation for as long as one call reads it.

    Arguments as in ``to_relation``.

    What the engine parks of a stream is removed at the end, so nothing that is read later may be
    made of it.
    """
    adopted = _adopted(df, engine)
    if adopted is not None:
        yield adopted
        return
    shipped = engine.from_arrow(to_reader(df, like=like))
    try:
        yield shipped
    finally:
        engine.release(shipped)


def schema_of(df: object, *, engine: Engine, like: pa.Schema | None = None) -> pa.Schema:
    """Return the feature types of a dataframe argument, none of whose rows is read.

    Arguments as in ``to_relation``.
    """
    adopted = _adopted(df, engine)
    if adopted is not None:
        return adopted.schema
    return to_reader(df, like=like).schema


def _adopted(df: object, engine: Engine) -> Relation | None:
    """Return a frame that is the engine's own as a relation, None for any other."""
    lazy: Relation | None = getattr(df, "relation", None)
    if lazy is not None and getattr(lazy, "engine", None) == engine.name:
        return lazy
    adopted = engine.adopt(df)
    if adopted is not None:
        _check_names(adopted.schema)
    return adopted


def _check_names(schema: pa.Schema) -> None:
    if not schema.names:
        raise UnsupportedDataframe(
            "The dataframe has no columns.", hint="give one with a column for each feature"
        )
    check_feature_names(schema.names)


def to_reader(df: object, *, like: pa.Schema | None = None) -> pa.RecordBatchReader:
    """Return a dataframe argument as an Arrow stream of feature types.

    Arguments as in ``to_relation``.
    """
    reader = open_stream(df)
    _check_names(reader.schema)
    target = _target(reader.schema, like)
    naive = _naive_columns(reader.schema)
    if naive:
        listed = ", ".join(map(repr, naive))
        warnings.warn(
            f"times without a zone are taken as UTC: {listed}",
            NaiveTimeWarning,
            stacklevel=_depth(),
        )
    if target.equals(reader.schema, check_metadata=True):
        return reader
    return pa.RecordBatchReader.from_batches(target, _converted(reader, target))


def open_stream(df: object) -> pa.RecordBatchReader:
    """Return a dataframe argument as an Arrow stream with the types that it was given with."""
    if isinstance(df, pa.RecordBatchReader):
        return df
    if isinstance(df, pa.RecordBatch):
        return _reader(pa.Table.from_batches([df]))
    if isinstance(df, pa.Table):
        return _reader(df)
    module = type(df).__module__.split(".")[0]
    opener = {
        "pandas": _from_pandas,
        "polars": _from_polars,
        "numpy": _from_numpy,
        "pyspark": _from_spark,
    }.get(module)
    if opener is not None:
        return opener(df)
    if module.endswith("duckdb") and hasattr(df, "fetch_arrow_reader"):
        # The other name came with DuckDB 1.4, which deprecates the first one.
        return getattr(df, "to_arrow_reader", df.fetch_arrow_reader)(_BATCH_ROWS)
    if hasattr(df, "__arrow_c_stream__"):
        return _from_capsule(df)
    if hasattr(df, "scanner"):
        return df.scanner().to_reader()  # a pyarrow dataset of an older pyarrow
    if isinstance(df, list | tuple):
        return _reader(_rows_to_table(df))
    if isinstance(df, Iterator):
        return _from_iterator(df)
    raise _not_a_dataframe(df)


# -- kinds ----------------------------------------------------------------------------------


def _from_pandas(df: Any) -> pa.RecordBatchReader:
    if not hasattr(df, "columns"):
        raise UnsupportedDataframe(
            f"A pandas {type(df).__name__} is not a dataframe.", hint="series.to_frame() makes one"
        )
    if set(df.index.names) != {None}:
        df = df.reset_index()
    wrong = []
    for name in df.columns:
        if not isinstance(name, str):
            wrong.append(name)
    if wrong:
        raise InvalidName(
            f"Column names must be texts; these are not: {', '.join(map(repr, wrong[:20]))}.",
            hint=_renaming(wrong[:20]),
        )
    try:
        return _reader(pa.Table.from_pandas(df, preserve_index=False).replace_schema_metadata(None))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise UnsupportedType(
            f"The dataframe cannot be converted: {'; '.join(map(str, error.args))}.",
            hint="give the column one type, for example df[name].astype(str)",
        ) from error
    except ValueError as error:  # two columns of one name
        raise InvalidName(
            f"The dataframe cannot be converted: {error}.", hint="rename the columns"
        ) from error


def _renaming(names: list[Any]) -> str:
    """Return what to write so that columns have texts as names."""
    renames: dict[Any, str] = {}
    for name in names:
        if isinstance(name, int):
            renames[name] = f"col_{name}"
        elif isinstance(name, tuple):
            renames[name] = "_".join(map(str, name))
    if not renames:
        return "rename the columns"
    return f"df.rename(columns={renames!r})"


def _from_polars(df: Any) -> pa.RecordBatchReader:
    if hasattr(df, "collect"):
        raise UnsupportedDataframe("A polars LazyFrame has no rows yet.", hint="frame.collect()")
    if not hasattr(df, "columns"):
        raise UnsupportedDataframe(
            f"A polars {type(df).__name__} is not a dataframe.", hint="series.to_frame()"
        )
    # Its own stream would use string views, which pyarrow reads from version 16 on only.
    return _reader(df.to_arrow())


def _from_numpy(array: Any) -> pa.RecordBatchReader:
    import numpy as np

    if array.ndim != 2 or array.dtype.names is not None:
        raise UnsupportedDataframe(
            f"A numpy array of shape {array.shape} is not a dataframe; arrays have two "
            "dimensions, (rows, columns).",
            hint="array.reshape(len(array), -1)",
        )
    if array.dtype.kind not in "biufUSM":
        raise UnsupportedType(
            f"A numpy array of {array.dtype} cannot be stored.", hint="array.astype('float64')"
        )
    masks: Any = None
    if isinstance(array, np.ma.MaskedArray):
        masks = np.ma.getmaskarray(array)  # type: ignore[no-untyped-call]
    plain = np.asarray(array)
    if plain.dtype == np.float16:
        plain = plain.astype(np.float32)
    columns = {}
    for index in range(plain.shape[1]):
        mask = None
        if masks is not None:
            mask = masks[:, index]
        columns[f"col_{index}"] = pa.array(np.ascontiguousarray(plain[:, index]), mask=mask)
    if not columns:
        raise UnsupportedDataframe(f"A numpy array of shape {array.shape} has no columns.")
    return _reader(pa.table(columns))


def _from_spark(df: Any) -> pa.RecordBatchReader:
    if not hasattr(df, "toArrow"):
        raise UnsupportedDataframe(
            f"A {type(df).__name__} of pyspark is not a dataframe.", hint="df.toDF(...)"
        )
    return _reader(df.toArrow())


def _from_capsule(df: Any) -> pa.RecordBatchReader:
    if hasattr(pa.RecordBatchReader, "from_stream"):
        return pa.RecordBatchReader.from_stream(df)
    try:
        return pa.RecordBatchReader._import_from_c_capsule(df.__arrow_c_stream__())
    except pa.ArrowInvalid as error:
        raise UnsupportedDataframe(
            f"pyarrow {pa.__version__} cannot read the Arrow stream of a {type(df).__name__}: "
            f"{error}.",
            hint="hand over a pyarrow Table, or use pyarrow 16 or newer",
        ) from error


def _rows_to_table(rows: list[Any] | tuple[Any, ...]) -> pa.Table:
    if not rows:
        raise UnsupportedDataframe(
            "A list without rows has no columns.",
            hint="hand over an empty pyarrow Table or pandas DataFrame with types",
        )
    columns: dict[Any, list[Any]]
    if all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(itertools.chain.from_iterable(rows))
        columns = {}
        for name in names:
            columns[name] = [row.get(name) for row in rows]
    elif all(isinstance(row, list | tuple) or hasattr(row, "tolist") for row in rows):
        columns = _columns_of_rows(rows)
    else:
        kinds = ", ".join(sorted({type(row).__name__ for row in rows}))
        raise UnsupportedDataframe(
            f"A list of {kinds} is not a dataframe.",
            hint="give a list of dicts, or of rows: [[1, 2.0], [3, 4.0]]",
        )
    arrays = {}
    for title, values in columns.items():
        arrays[title] = _column(title, values)
    return pa.table(arrays)


def _columns_of_rows(rows: Iterable[Any]) -> dict[str, list[Any]]:
    plain = []
    for row in rows:
        if hasattr(row, "tolist"):
            row = row.tolist()
        plain.append(row)
    lengths = sorted(set(map(len, plain)))
    if len(lengths) != 1:
        raise UnsupportedDataframe(
            f"The rows have different lengths: {', '.join(map(str, lengths))}.",
            hint="give every row the same columns",
        )
    names = getattr(plain[0], "_fields", None) or getattr(plain[0], "__fields__", None)
    if not names:
        names = [f"col_{index}" for index in range(lengths[0])]
    columns = {}
    for index, title in enumerate(names):
        columns[title] = [row[index] for row in plain]
    return columns


def _column(name: object, values: list[Any]) -> pa.Array:
    if not isinstance(name, str):
        raise InvalidName(
            f"Column names must be texts; {name!r} is not.", hint=f"use {str(name)!r}"
        )
    try:
        return pa.array(values)
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
    ) as error:
        raise UnsupportedType(
            f"Column {name!r} cannot be converted: {error}.", hint="give all its values one type"
        ) from error


def _from_iterator(parts: Iterator[Any]) -> pa.RecordBatchReader:
    first = next(parts, None)
    if first is None:
        raise UnsupportedDataframe("The iterator gave nothing, so there are no columns.")
    is_row = isinstance(first, list | tuple) and not hasattr(first, "__arrow_c_array__")
    if is_row or isinstance(first, Mapping):
        raise UnsupportedDataframe(
            f"An iterator of {type(first).__name__} is not a dataframe.",
            hint="yield pyarrow record batches or dataframes, or hand over a list",
        )
    opened = open_stream(first)
    schema = opened.schema

    def batches() -> Iterator[pa.RecordBatch]:
        for part in itertools.chain([opened], parts):
            for batch in open_stream(part):
                if batch.schema != schema:
                    batch = _convert_batch(_by_name(batch, schema), schema)
                yield batch

    return pa.RecordBatchReader.from_batches(schema, batches())


def _by_name(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if sorted(batch.schema.names) != sorted(schema.names):
        raise UnsupportedDataframe(
            f"A later part of the iterator has the columns {batch.schema.names}; the first one "
            f"has {schema.names}."
        )
    columns = []
    for name in schema.names:
        columns.append(batch.column(batch.schema.get_field_index(name)))
    return pa.RecordBatch.from_arrays(columns, schema.names)


# -- types ----------------------------------------------------------------------------------


def convert_array(array: pa.Array, kind: pa.DataType, *, name: str = "") -> pa.Array:
    """Return an array as a feature type that holds all its values.

    Raises:
        UnsupportedType: A value does not fit (nanoseconds, a date with a time of day).
    """
    if array.type == kind:
        return array
    if isinstance(array.type, pa.ExtensionType):
        array = array.storage
    try:
        if pat.is_float16(array.type):
            return _from_half(array).cast(kind)
        if _holds_half(array.type):
            return _rebuilt(array, kind)
        if pat.is_dictionary(array.type):
            return convert_array(array.dictionary_decode(), kind, name=name)
        return cast_bytes(array, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        hint = None
        if pat.is_timestamp(array.type) and array.type.unit == "ns":
            hint = f"times are kept to the microsecond: df[{name!r}] = df[{name!r}].dt.floor('us')"
        raise UnsupportedType(
            f"Column {name!r} ({array.type}) cannot become {kind}: {error}.", hint=hint
        ) from error


def _target(given: pa.Schema, like: pa.Schema | None) -> pa.Schema:
    """Return feature types for given types, those of ``like`` where the values surely fit."""
    if like is None:
        return feature_schema(given)
    typed = []
    for field in given:
        index = like.get_field_index(field.name)
        if pat.is_null(field.type) and index >= 0:
            field = pa.field(field.name, like.field(index).type)
        typed.append(field)
    fields = []
    for field in feature_schema(pa.schema(typed)):
        index = like.get_field_index(field.name)
        if index >= 0 and widens(field.type, like.field(index).type):
            field = pa.field(field.name, like.field(index).type)
        fields.append(field)
    return pa.schema(fields)


def _converted(reader: pa.RecordBatchReader, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        yield _convert_batch(batch, target)


def _convert_batch(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    columns = []
    for column, field in zip(batch.columns, target, strict=True):
        columns.append(convert_array(column, field.type, name=field.name))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _naive_columns(schema: pa.Schema) -> list[str]:
    names = []
    for field in schema:
        if _has_naive(field.type):
            names.append(field.name)
    return names


def _has_naive(kind: pa.DataType) -> bool:
    if pat.is_timestamp(kind):
        return kind.tz is None
    if pat.is_dictionary(kind):
        return _has_naive(kind.value_type)
    return any(map(_has_naive, _inner_types(kind)))


def _inner_types(kind: pa.DataType) -> list[pa.DataType]:
    if not is_nested(kind):
        return []
    types = []
    for index in range(kind.num_fields):
        types.append(kind.field(index).type)
    return types


def _from_half(array: pa.Array) -> pa.Array:
    import numpy as np

    mask = np.asarray(array.is_null())
    values = array.to_numpy(zero_copy_only=False).astype(np.float32)
    return pa.array(values, mask=mask)


def _holds_half(kind: pa.DataType) -> bool:
    return pat.is_float16(kind) or any(map(_holds_half, _inner_types(kind)))


def _rebuilt(array: pa.Array, kind: pa.DataType) -> pa.Array:
    # Older pyarrow cannot cast half floats, alone or inside of lists; Python values can.
    return pa.array(array.to_pylist(), type=kind)


def _reader(table: pa.Table) -> pa.RecordBatchReader:
    return table.to_reader(max_chunksize=_BATCH_ROWS)


def _not_a_dataframe(df: object) -> UnsupportedDataframe:
    return UnsupportedDataframe(
        f"A {type(df).__name__} is not a dataframe; a dataframe is a {_KINDS}."
    )


def _depth() -> int:
    """Return how many frames lie between a warning and the caller's code, where it points."""
    frame, depth = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith(
        ("featurestore.", "functools")
    ):
        next_frame = frame.f_back
        if next_frame is None:
            break
        frame, depth = next_frame, depth + 1
    return depth
