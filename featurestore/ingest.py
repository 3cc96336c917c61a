"""What a user hands over: a native frame that the engine adopts, or a stream of feature types.

The frame itself is never changed and never copied as a whole; streams stay streams.
Conversions are those of ``model.types``; what they mean for values:

* times without zone are taken as UTC, with one warning a call; finer than microseconds is refused;
* dictionaries (categories) become their values; null columns take the type that the group has, else
are refused;
* a pandas index without name is dropped, a named one (after ``groupby``, ``set_index``) becomes
columns;
* 2-D arrays and rows without names have the columns ``col_0``, ``col_1``, ...; arrays with more
axes are one column ``col_0``;
* cells that are arrays, and lists of numbers of one length, become fixed-size lists with a shape;
lists stay of any length where lengths differ, and where the frame's own type says so (Arrow's and
polars' lists, DuckDB's ``T[]``). Of an iterator the first part decides.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import (
    DataWarning,
    InvalidName,
    UnsupportedDataframe,
    UnsupportedType,
    listing,
)
from featurestore.model.arrays import (
    UNEQUAL,
    column_of_cells,
    first_of_other_shape,
    from_tensors,
    one_array,
)
from featurestore.model.arrow_cast import cast_array
from featurestore.model.callers import warn_caller
from featurestore.model.codecs import binary_columns, refuse_encoded_arrays
from featurestore.model.fitting import may_fit
from featurestore.model.found_shapes import FindShapes, is_list_of_numbers, with_found_shape
from featurestore.model.names import check_feature_names
from featurestore.model.odd_columns import check_dtype, refusal
from featurestore.model.python_columns import table_of_array, table_of_columns, table_of_rows
from featurestore.model.shapes import is_tensor, shape_of, shaped_type
from featurestore.model.times import NaiveTimeWarning
from featurestore.model.types import feature_schema, is_nested, widens

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine, Relation

_BATCH_ROWS = 65_536
_LOOKED_AT = 20
# Where the type of a column is not the user's word: bytes may be arrays that a codec has encoded.
_UNTYPED = ("pandas", "builtins", "pyspark")
_PEEK_ROWS = 1000
_KINDS = (
    "pandas or polars DataFrame, pyarrow Table or RecordBatchReader, anything with "
    "__arrow_c_stream__, "
    "numpy array of two axes or more, dict of columns, list of rows or of dicts, "
    "iterator of record batches, Spark DataFrame, "
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
    adopted = _adopted(df, engine, like)
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
    adopted = _adopted(df, engine, like)
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
    adopted = _adopted(df, engine, like)
    if adopted is not None:
        return _in_shapes_of(like, adopted.schema)
    return to_reader(df, like=like).schema


def _adopted(df: object, engine: Engine, like: pa.Schema | None) -> Relation | None:
    """Return a frame that is the engine's own as a relation, None for any other."""
    lazy: Relation | None = getattr(df, "relation", None)
    if lazy is not None and getattr(lazy, "engine", None) == engine.name:
        return lazy
    adopted = adopt_native(df, engine=engine, like=like)
    if adopted is not None:
        _check_names(adopted.schema)
    return adopted


def adopt_native(df: object, *, engine: Engine, like: pa.Schema | None = None) -> Relation | None:
    """Return a native frame of the engine as a relation, None for any other.

    Arguments as in ``to_relation``. Spark's types do not say how long arrays are: a job looks at
    the lengths of those that ``like`` does not have.
    """
    adopted = engine.adopt(df)
    if adopted is None or library_of(df) != "pyspark":
        return adopted
    new = _new_fields(adopted.schema, like)
    _refuse_encoded_bytes(adopted, binary_columns(new), engine)
    lists = [field.name for field in new if is_list_of_numbers(field.type)]
    return _with_found_shapes(adopted, lists, engine)


def _new_fields(given: pa.Schema, like: pa.Schema | None) -> pa.Schema:
    """Return the columns about which ``like`` says nothing."""
    if like is None:
        return given
    return pa.schema([field for field in given if field.name not in like.names])


def _in_shapes_of(like: pa.Schema | None, given: pa.Schema) -> pa.Schema:
    """Return a schema with the shapes of ``like`` where its types do not say how long lists are."""
    fields = []
    for field in given:
        index = -1 if like is None else like.get_field_index(field.name)
        if like is not None and index >= 0 and is_list_of_numbers(field.type):
            wanted = like.field(index).type
            if may_fit(field.type, wanted):
                field = field.with_type(wanted)
        fields.append(field)
    return pa.schema(fields)


def _refuse_encoded_bytes(relation: Relation, names: Sequence[str], engine: Engine) -> None:
    if names:
        cells = engine.select(relation, dict(zip(names, names, strict=True)))
        for batch in engine.stream(cells, limit=_LOOKED_AT):
            refuse_encoded_arrays(batch, library="pyspark")


def _with_found_shapes(relation: Relation, lists: Sequence[str], engine: Engine) -> Relation:
    """Return a relation whose lists of numbers have a shape where all rows have the same."""
    if not lists:
        return relation
    shapes = engine.aggregate(
        engine.select(relation, dict(zip(lists, lists, strict=True))), FindShapes()
    )
    fields = []
    for field in relation.schema:
        kind = field.type
        shape = shapes.get(field.name, ())
        for _ in shape:
            kind = kind.value_type
        fields.append(field.with_type(shaped_type(kind, shape)))
    return replace(relation, schema=pa.schema(fields))


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
    reader = open_stream(_untyped_where_empty(df, like))
    _check_names(reader.schema)
    if library_of(df) in _UNTYPED:
        reader = _without_encoded_arrays(reader, like, library=library_of(df))
    if like is None:
        _warn_of_date_texts(df)
    target = _target(reader.schema, like)
    naive = _naive_columns(reader.schema)
    if naive:
        listed = ", ".join(map(repr, naive))
        warn_caller(f"times without a zone are taken as UTC: {listed}", NaiveTimeWarning)
    if target.equals(reader.schema, check_metadata=True):
        return reader
    return pa.RecordBatchReader.from_batches(target, _converted(reader, target))


def _without_encoded_arrays(
    reader: pa.RecordBatchReader, like: pa.Schema | None, *, library: str
) -> pa.RecordBatchReader:
    """Return a stream of the same rows, the first of which hold no encoded arrays.

    Columns of bytes that ``like`` has are meant to be bytes.
    """
    columns = binary_columns(_new_fields(reader.schema, like))
    if not columns:
        return reader
    first = next(iter(reader), None)
    if first is None:
        return reader
    refuse_encoded_arrays(first.select(columns), library=library)
    return pa.RecordBatchReader.from_batches(reader.schema, itertools.chain([first], reader))


def _untyped_where_empty(df: Any, like: pa.Schema | None) -> Any:
    """Return a pandas frame whose columns without any value have no type.

    pandas gives them that of floats, whatever the group has.
    """
    if like is None or library_of(df) != "pandas" or not hasattr(df, "columns"):
        return df
    blank: dict[str, None] = {}
    for field in like:
        if field.name not in df.columns or may_fit(pa.float64(), field.type):
            continue
        column = df[field.name]
        if str(column.dtype) == "float64" and column.isna().all():
            blank[field.name] = None
    return df.assign(**blank) if blank else df


def known_rows(df: object) -> int | None:
    """Return how many rows a dataframe in memory has; None for what may be a stream.

    >>> known_rows(pa.table({"x": [1, 2]})), known_rows(iter([]))
    (2, None)
    """
    if library_of(df) in ("pandas", "polars", "pyarrow") and isinstance(df, Sized):
        return len(df)
    return None


def library_of(df: object) -> str:
    """Return the package that a dataframe comes from.

    >>> library_of([{"a": 1}])
    'builtins'
    """
    return type(df).__module__.split(".")[0]


def _warn_of_date_texts(df: Any) -> None:
    """Warn of columns of a pandas frame whose first texts are all dates or times."""
    if not hasattr(df, "columns") or not hasattr(df, "iloc"):
        return
    found = []
    for name in df.columns:
        if str(df[name].dtype) in ("object", "string", "str"):
            texts = df[name].iloc[:_PEEK_ROWS].dropna().tolist()
            if texts and all(map(_is_date_text, texts)):
                found.append(name)
    if found:
        listed = "; ".join(
            f"df[{name!r}] = pd.to_datetime(df[{name!r}], utc=True)" for name in found
        )
        warn_caller(
            f"columns of texts that are dates stay texts: {', '.join(map(repr, found))}; {listed}",
            DataWarning,
        )


def _is_date_text(value: object) -> bool:
    if not isinstance(value, str) or len(value) < len("2024-01-31") or value[4:5] != "-":
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def open_stream(df: object) -> pa.RecordBatchReader:
    """Return a dataframe argument as an Arrow stream with the types that it was given with."""
    if isinstance(df, pa.RecordBatchReader):
        return df
    if isinstance(df, pa.RecordBatch):
        return _reader(pa.Table.from_batches([df]))
    if isinstance(df, pa.Table):
        return _reader(df)
    module = library_of(df)
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
    return _from_python(df)


def _from_python(df: object) -> pa.RecordBatchReader:
    if isinstance(df, list | tuple):
        return _reader(table_of_rows(df))
    if isinstance(df, Mapping):
        return _reader(table_of_columns(df))
    if isinstance(df, Iterator):
        return _from_iterator(df)
    raise _not_a_dataframe(df)


# -- kinds ----------------------------------------------------------------------------------


def _from_pandas(df: Any) -> pa.RecordBatchReader:
    if hasattr(df, "to_frame") and not hasattr(df, "columns"):
        name = df.name if df.name is not None else "col_0"  # a series is one column
        df = df.to_frame(name) if hasattr(df, "index") else df.to_frame(index=False, name=name)
    if not hasattr(df, "columns"):
        raise _not_a_dataframe(df)
    if set(df.index.names) != {None}:
        df = df.reset_index()
    elif index_holds_values(df):
        warn_caller(
            "the index of the dataframe has no name and is left out; "
            "df.rename_axis('name').reset_index() keeps it",
            DataWarning,
        )
    wrong = []
    for name in df.columns:
        if not isinstance(name, str):
            wrong.append(name)
    if wrong:
        raise InvalidName(
            f"Column names must be texts; these are not: {', '.join(map(repr, wrong[:20]))}.",
            hint=_renaming(wrong[:20]),
        )
    if not df.columns.is_unique:
        raise InvalidName(
            f"Column names must be unique; these are not: "
            f"{listing(df.columns[df.columns.duplicated()].unique())}.",
            hint=f"df.columns = {_unique_names(df.columns)!r}",
        )
    return _reader(_pandas_table(df))


def index_holds_values(df: object) -> bool:
    """Tell whether a dataframe of pandas has an index that is more than the numbers of its rows."""
    index = getattr(df, "index", None)
    names = getattr(index, "names", [""])
    if not hasattr(df, "columns") or set(names) != {None}:
        return False
    dtype = getattr(index, "dtype", None)
    return dtype is not None and dtype.kind not in "iu"


def _unique_names(names: Iterable[str]) -> list[str]:
    """Return names of which none repeats: a, a, b become a, a_2, b."""
    counts: dict[str, int] = {}
    unique = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        unique.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
    return unique


def _pandas_table(df: Any) -> pa.Table:
    """Return a pandas frame as a table; arrays and lists of one length keep their shape."""
    shaped = {}
    for name in df.columns:
        check_dtype(name, df[name].dtype)
        if df[name].dtype == object:
            column = column_of_cells(df[name].tolist(), name=name)
            if column is not None:
                shaped[name] = column
    plain = df.drop(columns=list(shaped))
    try:
        table = pa.Table.from_pandas(plain, preserve_index=False)
    except (pa.ArrowException, OverflowError) as error:
        raise _refused_column(plain) from error
    if not shaped:
        return table.replace_schema_metadata(None)
    columns = {}
    for name in df.columns:
        columns[name] = shaped[name] if name in shaped else table[name]
    return pa.table(columns)


def _refused_column(df: Any) -> UnsupportedType:
    """Return the error for the first column of a pandas frame that cannot be stored."""
    for name in df.columns:
        try:
            pa.Array.from_pandas(df[name])
        except (pa.ArrowException, OverflowError):
            return refusal(name, df[name].tolist(), dtype=df[name].dtype)
    return UnsupportedType("The dataframe cannot be stored.", hint="give each column one type")


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
    return _reader(table_of_array(array))


def _from_spark(df: Any) -> pa.RecordBatchReader:
    if not hasattr(df, "toArrow"):
        raise UnsupportedDataframe(
            f"A {type(df).__name__} of pyspark is not a dataframe.", hint="df.toDF(...)"
        )
    table = df.toArrow()
    for index, name in enumerate(table.column_names):
        shaped = with_found_shape(one_array(table.column(index)))
        if shaped is not None:
            table = table.set_column(index, name, shaped)
    return _reader(table)


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


def _from_iterator(parts: Iterator[Any]) -> pa.RecordBatchReader:
    first = next(parts, None)
    if first is None:
        raise UnsupportedDataframe("The iterator gave nothing, so there are no columns.")
    is_row = isinstance(first, list | tuple) and not hasattr(first, "__arrow_c_array__")
    if is_row or isinstance(first, Mapping):
        raise UnsupportedDataframe(
            f"An iterator of {type(first).__name__} is not a dataframe; one of dataframes or "
            "record batches is.",
            hint="hand over all rows at once: list(rows)",
        )
    opened = open_stream(first)
    schema = opened.schema

    def batches() -> Iterator[pa.RecordBatch]:
        row = 0
        for part in itertools.chain([opened], parts):
            for batch in open_stream(part):
                if batch.schema != schema:
                    batch = _by_name(batch, schema)
                    _refuse_other_shapes(batch, schema, row)
                    batch = _convert_batch(batch, schema)
                row += batch.num_rows
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


def _refuse_other_shapes(batch: pa.RecordBatch, schema: pa.Schema, rows_before: int) -> None:
    for field in schema:
        other = first_of_other_shape(batch.column(field.name), field.type)
        if other is not None:
            row, shape = other
            raise UnsupportedType(
                f"The arrays of column {field.name!r} differ in shape: those of the first part "
                f"have {shape_of(field.type)}, row {rows_before + row} has {shape}.",
                hint=f"{UNEQUAL}; lists of any length are declared by Arrow's type: "
                "pa.list_(pa.int64())",
            )


# -- types ----------------------------------------------------------------------------------


def convert_array(array: pa.Array, kind: pa.DataType, *, name: str = "") -> pa.Array:
    """Return an array as a feature type that holds all its values.

    Raises:
        UnsupportedType: A value does not fit (nanoseconds, a date with a time of day).
    """
    if array.type == kind:
        return array
    if is_tensor(array.type):
        array = from_tensors(array)
    elif isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    try:
        if pat.is_float16(array.type):
            return _from_half(array).cast(kind)
        if _holds_half(array.type):
            return _rebuilt(array, kind)
        if pat.is_dictionary(array.type):
            return convert_array(array.dictionary_decode(), kind, name=name)
        return cast_array(array, kind)
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
    if isinstance(df, str | os.PathLike):
        path = os.fspath(df)
        return UnsupportedDataframe(
            f"{path!r} is the name of a file, not a dataframe: files are read first.",
            hint=_reading(str(path)),
        )
    return UnsupportedDataframe(
        f"{df!r:.60} of type {type(df).__name__} is not a dataframe; a dataframe is a {_KINDS}.",
        hint="pd.DataFrame({'column': [value]}) makes one",
    )


def _reading(path: str) -> str:
    """Return the line that reads a file.

    >>> _reading("trips.parquet")
    "df = pyarrow.parquet.read_table('trips.parquet')"
    """
    ending = os.path.splitext(path)[1].lower()
    if ending in (".csv", ".tsv", ".txt", ".gz"):
        return f"df = pandas.read_csv({path!r}), or larger than memory: duckdb.read_csv({path!r})"
    if ending in (".json", ".jsonl", ".ndjson"):
        return f"df = duckdb.read_json({path!r})"
    if ending in (".xls", ".xlsx"):
        return f"df = pandas.read_excel({path!r})"
    if ending in (".parquet", ".pq"):
        return f"df = pyarrow.parquet.read_table({path!r})"
    return f"df = duckdb.read_parquet({path + '/*.parquet'!r}), or pandas.read_csv(...)"
