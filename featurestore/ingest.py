"""Conversion of dataframe arguments: to native relations of an engine, or to Arrow streams.

The dataframe itself is never modified or copied as a whole; streams are not collected. Types are
converted by ``arrow.types``, with these effects on values:

* times without a time zone are interpreted as UTC, with one warning per call; times finer than
  microseconds are refused;
* dictionaries (categories) are decoded; untyped columns (nulls, empty lists) adopt the type of the
  matching column (``arrow.untyped``);
* an unnamed pandas index is dropped, a named index (after ``groupby``, ``set_index``) becomes
  columns;
* 2-D arrays and rows without names have the columns ``col_0``, ``col_1``, ...; arrays with more
  axes become one column ``col_0``;
* array cells, and lists of numbers of equal length, become fixed-size lists with a shape; lists
  stay variable-size if lengths differ, or if the dataframe's own type is variable-size (Arrow and
  polars lists, ``T[]`` of DuckDB). For an iterator, the first dataframe decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore import progress
from featurestore.arrow import arrays, frames, types
from featurestore.arrow import bounds as arrow_bounds
from featurestore.arrow.arrays import UNEQUAL_SHAPES_HINT, UniformShapes
from featurestore.arrow.casts import cast_array, decode
from featurestore.arrow.column_names import (
    check_feature_names,
    is_utf8_string,
    rename_hint,
    to_feature_names,
)
from featurestore.arrow.exact_casts import InexactValueError, cast_exactly
from featurestore.arrow.fitting import can_fit, can_widen, with_wider_decimals
from featurestore.arrow.hints import cast_hint, exact_cast_hint
from featurestore.arrow.huggingface_types import dataset_batches
from featurestore.arrow.spark_frames import is_connect_object, open_frame
from featurestore.arrow.unstorable import (
    CONVERSION_ERRORS,
    STREAM_ROWS,
    EncodedArrayCheck,
    Frame,
    cast_to_storable_types,
    nanoseconds_hint,
    stream_relation,
    translate_query_errors,
)
from featurestore.arrow.untyped import adopt_types
from featurestore.errors import (
    DataWarning,
    FeatureStoreError,
    InvalidName,
    SchemaMismatch,
    UnsupportedDataframe,
    UnsupportedType,
    listing,
)
from featurestore.model.arguments import warn_caller
from featurestore.model.times import NaiveTimeWarning

if TYPE_CHECKING:
    from featurestore.model.source import SourceRead
    from featurestore.plugins.engine import Engine, Relation

_CHECKED_ROWS = 20
# Rows that are checked for date strings.
_PEEK_ROWS = 1000
# Libraries whose dataframes are native to no engine: their rows are converted to Arrow here.
_CHECKED_LIBRARIES = ("pandas", "polars", "pyarrow", "numpy", "datasets", "builtins")


def to_relation(df: object, *, engine: Engine, like: pa.Schema | None = None) -> Relation:
    """Convert a dataframe argument to a relation of feature types.

    Args:
        df: A dataframe of any supported kind.
        engine: The engine, which adopts its own native dataframes without copying and reads all
            other kinds as an Arrow stream.
        like: Expected types, used where values allow it: for null columns, and for columns that can
            be widened to them.

    Raises:
        UnsupportedDataframe: The argument is not a dataframe.
        UnsupportedType: Lists every column that cannot be stored.
        InvalidName: Lists every column whose name is not a valid feature name.
    """
    # Native dataframes stay lazy in their engine; all others become an Arrow stream.
    adopted = _adopt(df, engine, like)
    if adopted is not None:
        return adopted
    return engine.from_arrow(to_reader(df, like=like))


@contextmanager
def open_relation(
    df: object, *, engine: Engine, like: pa.Schema | None = None
) -> Iterator[Relation]:
    """Provide a dataframe argument as a relation within a context.

    Arguments are the same as in ``to_relation``.

    Spooled rows of a stream are removed at the end, so lazy results must not outlive the context. A
    stream raises LimitExceeded for a cell that exceeds the size limit.
    """
    adopted = _adopt(df, engine, like)
    if adopted is not None:
        yield adopted
        return
    from_arrow = engine.from_arrow  # the engine of a served store has none: no row is read
    reader = to_reader(df, like=like)
    max_bytes = arrow_bounds.max_cell_bytes()
    long_columns = arrow_bounds.variable_size_columns(reader.schema, max_bytes=max_bytes)
    if long_columns:
        # Before the engine buffers the rows.
        batches = arrow_bounds.check_cell_sizes(reader, long_columns, max_bytes=max_bytes)
        reader = pa.RecordBatchReader.from_batches(reader.schema, batches)
    relation = from_arrow(reader)
    try:
        yield relation
    finally:
        engine.release(relation)


@dataclass(frozen=True)
class Rows:
    """The rows of a dataframe argument, and what is known about them before they are read.

    Attributes:
        relation: The rows, with feature types.
        count: The number of rows; None for a possible stream.
        is_checked: Whether the ranges of times and the sizes of cells are checked during ingestion.
        plan: The retrieval plan of a frame of the store, as JSON.
        inputs: The lineage inputs of a frame of the store.
        reads: The reads of registered sources, complete after the rows were read.
    """

    relation: Relation
    count: int | None = None
    is_checked: bool = False
    plan: Mapping[str, Any] | None = None
    inputs: tuple[Mapping[str, Any], ...] = ()
    reads: Sequence[SourceRead] | None = None


@contextmanager
def open_rows(df: object, *, engine: Engine, like: pa.Schema | None = None) -> Iterator[Rows]:
    """Provide a dataframe argument as rows within a context.

    Arguments are the same as in ``open_relation``.
    """
    count, is_checked = count_known_rows(df), not can_be_native(df)
    plan, inputs, reads = None, (), None
    # A FeatureFrame; columns of other dataframes may have these names.
    if hasattr(type(df), "relation") and hasattr(type(df), "inputs"):
        frame: Any = df
        plan = None if frame.plan is None else frame.plan.to_json()
        inputs, reads = frame.inputs, frame.reads
    with open_relation(df, engine=engine, like=like) as relation:
        yield Rows(relation, count, is_checked, plan, inputs, reads)


def can_be_native(df: object) -> bool:
    """Return whether an engine may read the rows directly, without the checks of this module.

    This function neither uses the relation of a lazy dataframe, which may open its sources, nor
    adopts the rows, which may warn of naive times.
    """
    is_checked = frames.library_name(df) in _CHECKED_LIBRARIES or isinstance(df, Iterator)
    return hasattr(type(df), "relation") or not is_checked


def schema_of(df: object, *, engine: Engine, like: pa.Schema | None = None) -> pa.Schema:
    """Return the feature types of a dataframe argument without reading its rows.

    Arguments are the same as in ``to_relation``.
    """
    adopted = _adopt(df, engine, like)
    if adopted is not None:
        return _adopt_shapes(like, adopted.schema)
    return to_reader(df, like=like).schema


def _adopt(df: object, engine: Engine, like: pa.Schema | None) -> Relation | None:
    """Return a native dataframe of the engine as a relation, or None for other dataframes."""
    lazy: Relation | None = getattr(df, "relation", None)
    # Spark DataFrames have a column for every name, which has no truth value.
    if (
        lazy is not None
        and not is_connect_object(df)
        and getattr(lazy, "engine", None) == engine.name
    ):
        types.check_nesting(lazy.schema)
        return refuse_encoded_arrays(lazy, df, engine=engine, like=like)
    adopted = adopt_native(df, engine=engine, like=like)
    if adopted is not None:
        _check_names(adopted.schema)
    return adopted


def adopt_native(df: object, *, engine: Engine, like: pa.Schema | None = None) -> Relation | None:
    """Return a native dataframe of the engine as a relation, or None for other dataframes.

    Arguments are the same as in ``to_relation``. Spark types have no array lengths: a job
    determines the lengths of columns that are not in ``like``.
    """
    adopted = engine.adopt(df)
    if adopted is None:
        return None
    types.check_nesting(adopted.schema)
    new = _select_new_fields(adopted.schema, like)
    refuse_encoded_bytes(adopted, engine=engine, like=like)
    if frames.library_name(df) != "pyspark":
        return adopted
    lists = [field.name for field in new if arrays.is_list_of_numbers(field.type)]
    return _detect_shapes(adopted, lists, engine)


def refuse_encoded_arrays(
    relation: Relation, df: object, *, engine: Engine, like: pa.Schema | None = None
) -> Relation:
    """Return a relation that refuses arrays encoded as bytes when it is read.

    Binary columns of groups were checked when they were written, and binary columns in ``like`` are
    intended; neither holds for columns from a source.
    """
    names = _new_binary_columns(relation.schema, like)
    # Frames of sources have ``reads``, and frames of groups have a ``plan``.
    if not names or getattr(df, "reads", None) is None or getattr(df, "plan", None) is not None:
        return relation
    if engine.is_distributed:  # whose rows are files of the cluster, read again at little cost
        refuse_encoded_bytes(relation, engine=engine, like=like)
        return relation
    return engine.map_batches(relation, EncodedArrayCheck(names), schema=relation.schema)


def _select_new_fields(schema: pa.Schema, like: pa.Schema | None) -> pa.Schema:
    """Return the columns that are not in ``like``."""
    if like is None:
        return schema
    return pa.schema([field for field in schema if field.name not in like.names])


def _new_binary_columns(schema: pa.Schema, like: pa.Schema | None) -> list[str]:
    """Return the names of the binary columns that are not in ``like``."""
    names = []
    for field in _select_new_fields(schema, like):
        dtype = field.type.value_type if pat.is_dictionary(field.type) else field.type
        if pat.is_binary(dtype) or pat.is_large_binary(dtype) or pat.is_fixed_size_binary(dtype):
            names.append(field.name)
    return names


def _adopt_shapes(like: pa.Schema | None, schema: pa.Schema) -> pa.Schema:
    """Return a schema in which number lists without a length have the list shapes of ``like``."""
    fields = []
    for field in schema:
        index = -1 if like is None else like.get_field_index(field.name)
        if like is not None and index >= 0 and arrays.is_list_of_numbers(field.type):
            expected_type = like.field(index).type
            if can_fit(field.type, expected_type):
                field = field.with_type(expected_type)
        fields.append(field)
    return pa.schema(fields)


def refuse_encoded_bytes(relation: Relation, *, engine: Engine, like: pa.Schema | None) -> None:
    """Refuse re-readable rows if the first values of a new binary column are encoded arrays."""
    names = _new_binary_columns(relation.schema, like)
    check = EncodedArrayCheck(names)
    if names:
        _check_rows(relation, names, check, engine)
    # The first rows may all be null in a column, which is then checked alone.
    for name in sorted(check.pending_columns):
        _check_rows(relation, [name], check, engine)


def _check_rows(
    relation: Relation, names: Sequence[str], check: EncodedArrayCheck, engine: Engine
) -> None:
    plain = {f"c{number}": name for number, name in enumerate(names)}  # nothing to quote
    has_bytes = " OR ".join(f"{column} IS NOT NULL" for column in plain)
    cells = engine.filter(engine.select(relation, plain), has_bytes)
    for batch in engine.stream(cells, limit=_CHECKED_ROWS):
        check(pa.RecordBatch.from_arrays(batch.columns, names))


def _detect_shapes(relation: Relation, lists: Sequence[str], engine: Engine) -> Relation:
    """Return a relation in which number lists of uniform shape have fixed-size types."""
    if not lists:
        return relation
    # Only the shapes are collected, not the rows.
    shapes = engine.aggregate(
        engine.select(relation, dict(zip(lists, lists, strict=True))), UniformShapes()
    )
    fields = []
    for field in relation.schema:
        dtype = field.type
        shape = shapes.get(field.name, ())
        for _ in shape:
            dtype = dtype.value_type
        fields.append(field.with_type(types.shaped_type(dtype, shape)))
    return replace(relation, schema=pa.schema(fields))


def _check_names(schema: pa.Schema) -> None:
    if not schema.names:
        raise UnsupportedDataframe(
            "The dataframe has no columns.", hint="pass a dataframe with one column per feature"
        )
    check_feature_names(schema.names)


def to_reader(df: object, *, like: pa.Schema | None = None) -> pa.RecordBatchReader:
    """Convert a dataframe argument to an Arrow stream of feature types.

    Arguments are the same as in ``to_relation``.
    """
    reader = open_stream(_untype_empty_columns(df, like), like=like)
    if progress.is_running():
        progress.begin_phase("read the dataframe", total=count_known_rows(df) or 0)
        reader = pa.RecordBatchReader.from_batches(reader.schema, progress.count_items(reader, len))
    _check_names(reader.schema)
    reader = _refuse_encoded_arrays(reader, like)
    if like is None:
        _warn_of_date_strings(df)
    target = _target_schema(reader.schema, like)
    naive = [field.name for field in reader.schema if _contains_naive_time(field.type)]
    if naive:
        listed = ", ".join(map(repr, naive))
        warn_caller(
            f"times without a time zone are interpreted as UTC: {listed}",
            NaiveTimeWarning,
            once=True,
        )
    if arrow_bounds.time_columns(reader.schema):
        checked = arrow_bounds.check_batch_times(reader, reader.schema)
        reader = pa.RecordBatchReader.from_batches(reader.schema, checked)
    # The stream of a DuckDB relation raises refusals while it is read, even if no type changes.
    if target.equals(reader.schema, check_metadata=True) and not frames.is_duckdb_relation(df):
        return reader
    return pa.RecordBatchReader.from_batches(target, _convert_batches(reader, target))


def _refuse_encoded_arrays(
    reader: pa.RecordBatchReader, like: pa.Schema | None
) -> pa.RecordBatchReader:
    """Return a stream of the same rows, after checking the first rows.

    Binary columns in ``like`` are intended.
    """
    names = _new_binary_columns(reader.schema, like)
    first = next(iter(reader), None) if names else None
    if first is None:
        return reader
    check = EncodedArrayCheck(names)
    try:
        check(first)
    except UnsupportedType:
        reader.close()  # a database takes no other query before
        raise
    batches = itertools.chain([first], map(check, reader))
    return pa.RecordBatchReader.from_batches(reader.schema, batches)


def _untype_empty_columns(df: Frame, like: pa.Schema | None) -> Any:
    """Return a pandas dataframe whose columns without values are untyped.

    pandas types them as floats, regardless of the group.
    """
    if like is None or frames.library_name(df) != "pandas" or not hasattr(df, "columns"):
        return df
    empty_columns: dict[str, None] = {}
    for field in like:
        if field.name not in df.columns or can_fit(pa.float64(), field.type):
            continue
        column = df[field.name]
        if str(column.dtype) == "float64" and column.isna().all():
            empty_columns[field.name] = None
    return df.assign(**empty_columns) if empty_columns else df


def count_known_rows(df: object) -> int | None:
    """Return the number of rows of a dataframe in memory, or None for a possible stream.

    >>> count_known_rows(pa.table({"x": [1, 2]})), count_known_rows(iter([]))
    (2, None)
    """
    if frames.library_name(df) in ("pandas", "polars", "pyarrow") and isinstance(df, Sized):
        return len(df)
    return None


def _warn_of_date_strings(df: Frame) -> None:
    """Warn of pandas columns whose first strings are all dates or times."""
    if not hasattr(df, "columns") or not hasattr(df, "iloc"):
        return
    date_columns = []
    for name in df.columns:
        # "str" is the string dtype of pandas 3.
        if str(df[name].dtype) in ("object", "string", "str"):
            strings = df[name].iloc[:_PEEK_ROWS].dropna().tolist()
            if strings and all(map(_is_date_string, strings)):
                date_columns.append(name)
    if date_columns:
        hint = cast_hint(dict.fromkeys(date_columns, "timestamp"))
        warn_caller(
            "string columns that contain dates are stored as strings: "
            f"{', '.join(map(repr, date_columns))}; to convert them: {hint}",
            DataWarning,
        )


def _is_date_string(value: object) -> bool:
    """Return whether a string is an ISO 8601 date or time with separators."""
    # ``fromisoformat`` also accepts digits without separators, which may be numbers.
    if not isinstance(value, str) or len(value) < len("2024-01-31") or value[4:5] != "-":
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def open_stream(df: Frame, *, like: pa.Schema | None = None) -> pa.RecordBatchReader:
    """Convert a dataframe argument to an Arrow stream with its original types."""
    if isinstance(df, pa.RecordBatchReader):
        return df
    if isinstance(df, pa.RecordBatch):
        return _reader(pa.Table.from_batches([df]))
    if isinstance(df, pa.Table):
        return _reader(df)
    columns = frames.columns_in_memory(df)
    if columns is not None:
        return _reader(frames.table_from_columns(columns))
    library = "duckdb relation" if frames.is_duckdb_relation(df) else frames.library_name(df)
    if library in _OPENERS:
        return _OPENERS[library](df)
    if isinstance(df, pa.Array | pa.ChunkedArray):
        return _from_structs(df)
    if hasattr(df, "__arrow_c_stream__"):
        return _from_capsule(df)
    if hasattr(df, "scanner"):
        return df.scanner().to_reader()  # a pyarrow dataset of an older pyarrow
    if isinstance(df, Iterator):
        return _from_iterator(df, like)
    raise frames.not_a_dataframe_error(df)


# -- kinds ----------------------------------------------------------------------------------


def _from_pandas(df: Frame) -> pa.RecordBatchReader:
    if not hasattr(df, "columns") and not hasattr(df, "to_frame"):
        raise frames.not_a_dataframe_error(df)
    if not hasattr(df, "columns"):
        name = "col_0" if getattr(df, "name", None) is None else df.name
        if hasattr(df, "index"):
            df = df.to_frame(name)  # a series is one column
        elif hasattr(df, "levels"):
            df = df.to_frame(index=False)
        else:
            df = df.to_frame(index=False, name=name)
    _check_index_names(df)
    if set(df.index.names) != {None}:
        df = df.reset_index()
    elif has_meaningful_index(df):
        warn_caller(
            "the unnamed index of the dataframe is dropped; to keep it: "
            "df = df.rename_axis('name').reset_index()",
            DataWarning,
        )
    _check_pandas_names(df)
    return _reader(frames.table_from_pandas(df))


def has_meaningful_index(df: object) -> bool:
    """Return whether a pandas dataframe has an index other than the row numbers."""
    index = getattr(df, "index", None)
    names = getattr(index, "names", [""])
    if not hasattr(df, "columns") or set(names) != {None}:
        return False
    dtype = getattr(index, "dtype", None)
    return dtype is not None and dtype.kind not in "iu"


def _check_index_names(df: Frame) -> None:
    """Refuse names of the index that are not strings or are also column names."""
    conflicts = [
        name
        for name in df.index.names
        if name is not None and (not isinstance(name, str) or name in df.columns)
    ]
    if conflicts:
        names = [
            f"index_{to_feature_names([name])[0].removeprefix('col_')}"
            if name in conflicts
            else name
            for name in df.index.names
        ]
        raise InvalidName(
            "The index has names that are not strings or are also column names: "
            f"{listing(conflicts)}.",
            hint=f"df = featurestore.rename(df, {to_feature_names([*names, *df.columns])!r})",
        )


def _check_pandas_names(df: Frame) -> None:
    """Refuse column names that are not strings or repeat."""
    invalid_names = [name for name in df.columns if not is_utf8_string(name)]
    if invalid_names:
        raise InvalidName(
            f"Column names must be valid UTF-8 strings; these are not: {', '.join(map(repr, invalid_names[:20]))}.",
            hint=rename_hint(list(df.columns), to_feature_names(df.columns)),
        )
    if not df.columns.is_unique:
        raise InvalidName(
            f"Column names must be unique; these are not: "
            f"{listing(df.columns[df.columns.duplicated()].unique())}.",
            hint=rename_hint(list(df.columns), to_feature_names(df.columns)),
        )


def _from_polars(df: Frame) -> pa.RecordBatchReader:
    if hasattr(df, "collect"):
        raise UnsupportedDataframe("A polars LazyFrame has no rows yet.", hint="df = df.collect()")
    if not hasattr(df, "columns"):
        if not hasattr(df, "to_frame"):
            raise frames.not_a_dataframe_error(df)
        raise UnsupportedDataframe(
            f"A polars {type(df).__name__} is not a dataframe.", hint="df = df.to_frame()"
        )
    return _reader(frames.table_from_polars(df))


def _from_spark(df: Frame) -> pa.RecordBatchReader:
    # ``GroupedData`` and other objects of pyspark.
    if not hasattr(df, "toArrow"):
        if not hasattr(df, "count"):
            raise frames.not_a_dataframe_error(df)
        raise UnsupportedDataframe(
            f"A pyspark {type(df).__name__} is not a dataframe.",
            hint="df = df.toDF()" if hasattr(df, "toDF") else "df = df.count()  # or df.agg(...)",
        )
    if is_connect_object(df):
        return open_frame(df)
    table = df.toArrow()
    # Spark arrays have no fixed length, so the lengths of the values decide.
    for index, name in enumerate(table.column_names):
        shaped = arrays.to_uniform_shape(arrays.combine_chunks(table.column(index)))
        if shaped is not None:
            table = table.set_column(index, name, shaped)
    return _reader(table)


def _from_duckdb(df: Frame) -> pa.RecordBatchReader:
    # Names are checked before the connection has an open result, which would block the caller's
    # next query.
    check_feature_names(df.columns)
    return stream_relation(cast_to_storable_types(df))


_OPENERS: dict[str, Callable[[Frame], pa.RecordBatchReader]] = {
    "pandas": _from_pandas,
    "polars": _from_polars,
    "pyspark": _from_spark,
    "duckdb relation": _from_duckdb,
    "datasets": lambda df: _from_iterator(dataset_batches(df), None),
}


def _from_structs(df: pa.Array | pa.ChunkedArray) -> pa.RecordBatchReader:
    """Return the rows of chunks of structs without nulls, which Arrow streams as a dataframe."""
    if isinstance(df, pa.Array) or df.null_count or not pat.is_struct(df.type):
        raise frames.bare_array_error(df, "df")
    batches = [pa.RecordBatch.from_struct_array(chunk) for chunk in df.chunks]
    schema = pa.schema([df.type.field(index) for index in range(df.type.num_fields)])
    return _reader(pa.Table.from_batches(batches, schema))


def _from_capsule(df: Frame) -> pa.RecordBatchReader:
    try:
        # Since pyarrow 15.
        if hasattr(pa.RecordBatchReader, "from_stream"):
            return pa.RecordBatchReader.from_stream(df)
        return pa.RecordBatchReader._import_from_c_capsule(df.__arrow_c_stream__())
    except pa.ArrowInvalid as error:
        # Streams of arrays and of dataframes have the same method.
        if "non-struct type" in str(error):
            raise frames.bare_array_error(df, "pa.chunked_array(df)") from error
        raise UnsupportedDataframe(
            f"pyarrow {pa.__version__} cannot read the Arrow stream of a {type(df).__name__}: "
            f"{error}.",
            hint="pass a pyarrow Table, or use pyarrow 16 or newer",
        ) from error


def _from_iterator(chunks: Iterator[Frame], like: pa.Schema | None) -> pa.RecordBatchReader:
    """Return the rows of an iterator of dataframes, with the types of the first one."""
    first = next(chunks, None)
    if first is None:
        raise UnsupportedDataframe("The iterator is empty, so there are no columns.")
    frames.check_first_item(first)
    first_reader = _open_item(first)
    sides = frames.interval_sides(first)
    schema = _widen_decimals(like, first_reader.schema)

    def batches() -> Iterator[pa.RecordBatch]:
        # Errors name the row, counted over all dataframes.
        row = 0
        for dataframe in itertools.chain([first_reader], chunks):
            _refuse_other_sides(frames.interval_sides(dataframe), sides, schema)
            for batch in _open_item(dataframe):
                if batch.schema != schema:
                    batch = _cast_batch_to_first(batch, schema, row)
                row += batch.num_rows
                yield batch

    return pa.RecordBatchReader.from_batches(schema, batches())


def _open_item(item: Frame) -> pa.RecordBatchReader:
    """Open an item of an iterator; the hints of errors convert all items."""
    try:
        return open_stream(item)
    except FeatureStoreError as error:
        code, separator, comment = str(error.hint).partition("  # ")
        expression = code.removeprefix("df = ")
        if expression != code and not expression.startswith("featurestore."):
            error.replace_hint(f"df = ({expression} for df in df){separator}{comment}")
        raise


def _refuse_other_sides(
    sides: Mapping[str, str], sides_before: dict[str, str], schema: pa.Schema
) -> None:
    """Refuse intervals that are closed on another side than those of earlier dataframes."""
    for name, side in sides.items():
        side_before = sides_before.setdefault(name, side)
        if side != side_before:
            # The storage of intervals that are an extension type of pandas.
            interval = types.feature_schema(schema).field(name).type
            bounds = interval.field(0).type
            target = pa.struct([("left", bounds), ("right", bounds), ("closed", pa.string())])
            raise UnsupportedType(
                f"Column {name!r} holds intervals that are closed on the {side}, and earlier "
                f"dataframes hold intervals that are closed on the {side_before}.",
                hint=cast_hint({name: target}),
            )


def _widen_decimals(like: pa.Schema | None, schema: pa.Schema) -> pa.Schema:
    """Return the first dataframe's schema, with decimals widened to those of ``like``."""
    if like is None:
        return schema
    fields = []
    for field in schema:
        index = like.get_field_index(field.name)
        if index >= 0:
            wider = with_wider_decimals(field.type, like.field(index).type)
            field = field.with_type(wider or field.type)
        fields.append(field)
    return pa.schema(fields, metadata=schema.metadata)


def _cast_batch_to_first(
    batch: pa.RecordBatch, schema: pa.Schema, rows_before: int
) -> pa.RecordBatch:
    """Cast a later batch of an iterator to the types of the first dataframe.

    Raises:
        UnsupportedDataframe: The batch has other columns.
        UnsupportedType: The arrays of a column have another shape.
        SchemaMismatch: The values of a column do not fit, by the same rule as a later write.
    """
    # The order of columns may differ between dataframes.
    if sorted(batch.schema.names) != sorted(schema.names):
        raise UnsupportedDataframe(
            f"A later dataframe of the iterator has the columns {batch.schema.names}; the first one "
            f"has {schema.names}."
        )
    columns = []
    for field in schema:
        column = batch.column(batch.schema.get_field_index(field.name))
        _refuse_other_shape(column, field, rows_before)
        columns.append(_cast_to_first(column, field))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast_to_first(column: pa.Array, field: pa.Field) -> pa.Array:
    """Cast a later column to the type of the first dataframe, if all values have an equal."""
    # A dataframe without values in a column does not determine its type.
    if pat.is_null(column.type):
        return pa.nulls(len(column), field.type)
    column_type, target_type = types.feature_schema(
        pa.schema([(field.name, column.type), ("wanted", field.type)])
    ).types
    if column_type == target_type:
        return convert_array(column, field.type, name=field.name)
    column = convert_array(column, column_type, name=field.name)
    problem = f"'{field.name}' is {types.describe(column_type)} where earlier rows have {types.describe(target_type)}"
    if not can_fit(column_type, target_type):
        line = exact_cast_hint(field.name, column_type, target_type)
        raise SchemaMismatch(f"{problem}.", hint=line or "cast the column")
    try:
        return convert_array(cast_exactly(column, target_type), field.type, name=field.name)
    except InexactValueError as misfit:
        # A cast would round or omit the value.
        raise SchemaMismatch(
            f"{problem}, and {misfit}.",
            hint=f"convert {field.name!r} of the earlier rows to {types.describe(column_type)}",
        ) from misfit


def _refuse_other_shape(column: pa.Array, field: pa.Field, rows_before: int) -> None:
    """Refuse arrays whose shape differs from that of the first dataframe."""
    mismatch = arrays.find_shape_mismatch(column, field.type)
    if mismatch is not None:
        row, shape = mismatch
        raise UnsupportedType(
            f"The arrays of column {field.name!r} differ in shape: the first dataframe has "
            f"{types.array_shape(field.type)}, row {rows_before + row} has {shape}.",
            hint=f"{UNEQUAL_SHAPES_HINT}; for variable-length lists, use an Arrow list type: "
            "pa.list_(pa.int64())",
        )


# -- types ----------------------------------------------------------------------------------


def convert_array(array: pa.Array, dtype: pa.DataType, *, name: str = "") -> pa.Array:
    """Cast an array to a feature type without loss.

    Raises:
        UnsupportedType: A value does not fit (nanoseconds, a date with a time of day).
    """
    if array.type == dtype:
        return array
    if types.is_tensor(array.type):
        array = arrays.from_tensors(array)
    elif isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    try:
        if types.is_encoded(array.type):
            convert = partial(convert_array, dtype=dtype, name=name)
            return decode(array, convert)
        return cast_array(array, dtype)
    except CONVERSION_ERRORS as error:
        if isinstance(error, FeatureStoreError):
            raise
        # Arrow's messages may have several lines.
        first_line = str(error).partition("\n")[0].rstrip(".")
        problem = f"of type {array.type} cannot be cast to {dtype}: {first_line}"
        hint = "cast the column to that type"
        if pat.is_timestamp(array.type) and array.type.unit == "ns":
            problem = f"{problem} (times are stored in microseconds)"
            hint = nanoseconds_hint(name)
        raise UnsupportedType(f"Column {name!r} {problem}.", hint=hint) from error


def _target_schema(schema: pa.Schema, like: pa.Schema | None) -> pa.Schema:
    """Return the feature types of a schema, with the types of ``like`` where values always fit."""
    types.check_nesting(schema)
    features = types.feature_schema(schema)
    if like is None:
        return features
    fields = []
    for field in adopt_types(features, like):
        index = like.get_field_index(field.name)
        if index >= 0 and can_widen(field.type, like.field(index).type):
            field = pa.field(field.name, like.field(index).type)
        fields.append(field)
    return pa.schema(fields)


def _convert_batches(reader: pa.RecordBatchReader, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a stream with feature types; raise the refusals of its query."""
    with translate_query_errors():
        for batch in reader:
            columns = [
                convert_array(column, field.type, name=field.name)
                for column, field in zip(batch.columns, target, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=target)


def _contains_naive_time(dtype: pa.DataType) -> bool:
    if pat.is_timestamp(dtype):
        return dtype.tz is None
    if pat.is_dictionary(dtype):
        return _contains_naive_time(dtype.value_type)
    if not types.is_nested(dtype):
        return False
    return any(_contains_naive_time(dtype.field(index).type) for index in range(dtype.num_fields))


def _reader(table: pa.Table) -> pa.RecordBatchReader:
    return table.to_reader(max_chunksize=STREAM_ROWS)
