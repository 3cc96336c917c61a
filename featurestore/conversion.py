"""``featurestore.cast`` and ``featurestore.rename``: conversions of any dataframe argument.

The hints of errors about columns are calls of these functions. Both accept each form of dataframe
that ingestion accepts, and return one that ingestion accepts: pandas and polars dataframes, Arrow
tables and Spark DataFrames keep their library; other rows in memory become Arrow tables or dicts of
columns; iterators and streams remain lazy and are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from featurestore.arrow import frames
from featurestore.arrow.cell_casts import Target
from featurestore.arrow.column_names import quoted, rename_hint, to_feature_names
from featurestore.arrow.conversions import cast_values, parse_target
from featurestore.arrow.frames import Columns
from featurestore.arrow.spark_frames import cast_frame, is_connect_object, with_arrow_types
from featurestore.arrow.unstorable import (
    Frame,
    cast_for_arrow,
    stream_relation,
    translate_query_errors,
)
from featurestore.errors import (
    InvalidArgument,
    InvalidName,
    SchemaMismatch,
    UnsupportedType,
    did_you_mean,
)
from featurestore.ingest import open_stream

Targets = Mapping[str, Target]
Renames = Mapping[Any, str] | Sequence[str]
RenameColumns = Callable[[list[Any]], list[str]]


def cast(df: Frame, columns: Mapping[str, Any], *, inexact: str = "error") -> Frame:
    """Cast columns of a dataframe, exactly.

    Args:
        df: A dataframe of any form that ingestion accepts.
        columns: The type of each column to cast: an Arrow type, or its name as in ``dtypes=``
            (``"int64"``, ``"decimal(20, 4)"``, ``"list<string>"``, ``"struct<a: int8>"``,
            ``"float32[28][28]"``). Numbers and strings that write times have the type
            ``"timestamp[FORM]"``. The form of numbers is their unit since 1970 (``s``, ``ms``,
            ``us``, ``ns``), ``YYYYMMDD``, ``YYYY``, or ``Excel`` for its serial numbers. The form of
            strings is a ``strptime`` format; ISO 8601 needs none.
        inexact: The rule for values without an equal in the type: "error"; "round" for the nearest
            number, and for times without the digits that the type lacks; or "null".

    Returns:
        A dataframe of the same library with the other columns unchanged. Rows, arrays and series
        become an Arrow table; iterators, streams and DuckDB relations a lazy one, read once. Cast
        columns of pandas have Arrow dtypes.

    The text of a list or dict is JSON. Durations and times are integers of their own unit, and
    Python times that are finer than a microsecond integers of nanoseconds since 1970. A complex
    number is a list of two floats, a set a sorted list, a map a list of its entries, and an enum its
    value. The cells of an ``.npy`` file are a list.

    Raises:
        SchemaMismatch: A value has no equal in the type; names the column, the row and the value.
            For lazy results, reading raises it. Also, if a column is unknown.
        InvalidArgument: ``columns`` is not a dict, or a format or ``inexact`` is invalid.
        InvalidName: Two columns have the name of a column to cast.
        UnsupportedType: A type is unknown.

    >>> import featurestore
    >>> rows = [{"id": "1", "day": 20240131}, {"id": "2", "day": 20240201}]
    >>> table = featurestore.cast(rows, {"id": "int64", "day": "timestamp[YYYYMMDD]"})
    >>> table["id"].to_pylist(), str(table["day"][0])
    ([1, 2], '2024-01-31 00:00:00+00:00')
    """
    if not isinstance(columns, Mapping):
        raise InvalidArgument(
            f"columns={columns!r} is not a dict of types by column.", hint="{'price': 'int64'}"
        )
    targets = {}
    for name, target in columns.items():
        targets[name] = parse_target(target, column=name, inexact=inexact)
    return _cast(df, targets)


def rename(df: Frame, columns: Renames) -> Frame:
    """Rename columns of a dataframe.

    Args:
        df: A dataframe of any form that ingestion accepts.
        columns: The new name of each column to rename, or the new names of all columns in order.
            The levels of a named pandas index are the first columns.

    Returns:
        A dataframe as of ``cast``, but rows, arrays and series become a dict of columns, and a
        DuckDB relation remains a relation.

    Raises:
        InvalidArgument: ``columns`` is neither a dict nor a list.
        InvalidName: A column is unknown, or two columns would have the same name.

    >>> import featurestore
    >>> featurestore.rename({"wind speed": [1.5]}, {"wind speed": "wind_speed"})
    {'wind_speed': [1.5]}
    """
    names = columns.values() if isinstance(columns, Mapping) else columns
    is_collection = isinstance(columns, Mapping | list | tuple)
    if not is_collection or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(
            f"columns={columns!r} is neither a dict of new names nor a list of all names.",
            hint="{'wind speed': 'wind_speed'}",
        )
    return rename_all(df, lambda names: _new_names(names, columns))


def rename_all(df: Frame, rename_columns: RenameColumns) -> Frame:
    """Rename the columns of a dataframe by a function of all names, in order.

    Arguments and result are otherwise the same as in ``rename``.
    """
    convert = _RENAMES.get(_form_of(df))
    if convert is not None:
        return convert(df, rename_columns)
    columns = frames.columns_in_memory(df) or _series_columns(df)
    if columns is not None:
        return Columns(zip(rename_columns(list(columns)), columns.values(), strict=True))
    if frames.is_iterator(df):
        return _convert_items(df, lambda item: rename_all(item, rename_columns))
    reader = open_stream(df)
    new_names = rename_columns(reader.schema.names)
    schema = pa.schema(
        [field.with_name(name) for field, name in zip(reader.schema, new_names, strict=True)]
    )
    batches = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in reader)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _cast(df: Frame, targets: Targets) -> Frame:
    convert = _CASTS.get(_form_of(df))
    if convert is not None:
        return convert(df, targets)
    columns = frames.columns_in_memory(df) or _series_columns(df)
    if columns is not None:
        _check_known(targets, columns)
        for name, target in targets.items():
            columns[name] = cast_values(columns[name], target, name=name)
        try:
            return frames.table_from_columns(columns)
        except (UnsupportedType, InvalidName):  # of other columns, for which hints follow
            return Columns(columns)
    if frames.is_iterator(df):
        return _convert_items(df, lambda item: _cast(item, targets))
    return _cast_reader(open_stream(df), targets)


def _convert_items(items: Iterator[Frame], convert: Callable[[Frame], Frame]) -> Iterator[Frame]:
    for number, item in enumerate(items):
        if number == 0:
            frames.check_first_item(item)
        yield convert(item)


def _form_of(df: Frame) -> str:
    """Return the library of a dataframe with columns of its own type, or "" for other objects."""
    if isinstance(df, pa.Table | pa.RecordBatch):
        return "pyarrow"
    if frames.is_duckdb_relation(df):
        return "duckdb"
    method = {"pandas": "columns", "polars": "get_columns", "pyspark": "toDF"}
    library = frames.library_name(df)
    return library if library in method and hasattr(df, method[library]) else ""


def _cast_table(table: pa.Table | pa.RecordBatch, targets: Targets) -> pa.Table:
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    _check_known(targets, table.column_names)
    for name, target in targets.items():
        values = cast_values(table[name], target, name=name)
        table = table.set_column(table.column_names.index(name), name, values)
    return table


def _cast_spark(df: Frame, targets: Targets) -> Frame:
    _check_known(targets, df.columns)
    if is_connect_object(df):
        return _cast_reader(open_stream(with_arrow_types(df, targets)), targets)
    return cast_frame(df, targets)


def _cast_duckdb(df: Frame, targets: Targets) -> pa.RecordBatchReader:
    _check_known(targets, df.columns)
    rows = cast_for_arrow(df, targets)
    # DuckDB refuses other queries of the connection until a result is read or closed.
    schema = stream_relation(rows.limit(0)).read_all().schema
    return _cast_stream(schema, lambda: stream_relation(rows), targets)


def _cast_pandas(df: Frame, targets: Targets) -> Frame:
    import pandas

    if any(level in targets for level in df.index.names if level is not None):
        df = df.reset_index()
    _check_known(targets, df.columns)
    result = df.copy(deep=False)
    for name, target in targets.items():
        values = cast_values(df[name], target, name=name)
        chunks = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
        array = pandas.arrays.ArrowExtensionArray(chunks)
        result[name] = pandas.Series(array, index=df.index)
    return result


def _cast_polars(df: Frame, targets: Targets) -> Frame:
    import polars

    _check_known(targets, df.columns)
    columns = []
    for name, target in targets.items():
        values = cast_values(df[name], target, name=name)
        columns.append(polars.Series(name, polars.from_arrow(values)))
    return df.with_columns(columns)


def _cast_reader(reader: pa.RecordBatchReader, targets: Targets) -> pa.RecordBatchReader:
    return _cast_stream(reader.schema, lambda: reader, targets)


def _cast_stream(
    schema: pa.Schema, open_reader: Callable[[], pa.RecordBatchReader], targets: Targets
) -> pa.RecordBatchReader:
    """Return a stream whose columns are cast as it is read, and closed at its end or an error."""
    _check_known(targets, schema.names)
    for name, target in targets.items():
        index = schema.get_field_index(name)
        schema = schema.set(index, pa.field(name, target.dtype))

    def batches() -> Iterator[pa.RecordBatch]:
        row = 0
        with translate_query_errors(), open_reader() as reader:
            for batch in reader:
                columns = list(batch.columns)
                for name, target in targets.items():
                    index = schema.get_field_index(name)
                    columns[index] = cast_values(
                        batch.column(index), target, name=name, rows_before=row
                    )
                row += batch.num_rows
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _series_columns(df: Frame) -> dict[Any, Any] | None:
    """Return the columns of a series or index of pandas, None for other objects."""
    if frames.library_name(df) != "pandas":
        return None
    if hasattr(df, "levels"):
        frame = df.to_frame(index=False)
        return {name: frame[name] for name in frame.columns}
    if not hasattr(df, "to_frame"):
        raise frames.not_a_dataframe_error(df)
    name = "col_0" if df.name is None else df.name
    columns = {name: df}
    for level in getattr(getattr(df, "index", None), "names", []):
        if level is not None:  # the named index of a series
            columns = {level: df.index.get_level_values(level), **columns}
    return columns


def _check_known(names: Mapping[Any, object], available: Iterable[Any]) -> None:
    available = list(available)
    for name in names:
        if available.count(name) > 1:
            raise InvalidName(
                f"The dataframe has {available.count(name)} columns {name!r}.",
                hint=rename_hint(available, to_feature_names(available)),
            )
        if name not in available:
            raise SchemaMismatch(
                f"The dataframe has no column {name!r}. Available: {list(map(str, available))}.",
                hint=did_you_mean(str(name), map(str, available), write="{{{!r}: 'string'}}"),
            )


_CASTS: dict[str, Callable[[Frame, Targets], Frame]] = {
    "pandas": _cast_pandas,
    "polars": _cast_polars,
    "pyarrow": _cast_table,
    "pyspark": _cast_spark,
    "duckdb": _cast_duckdb,
}


# -- names --------------------------------------------------------------------------------------


def _rename_pandas(df: Frame, rename_columns: RenameColumns) -> Frame:
    """Rename columns and the levels of a named index, which are columns when rows are stored."""
    levels = [level for level in df.index.names if level is not None]
    new_names = rename_columns([*levels, *df.columns])
    if levels:
        new_levels = iter(new_names)
        names = [None if level is None else next(new_levels) for level in df.index.names]
        df = df.rename_axis(index=names)
    return df.set_axis(new_names[len(levels) :], axis=1)


def _rename_duckdb(df: Frame, rename_columns: RenameColumns) -> Frame:
    pairs = zip(df.columns, rename_columns(df.columns), strict=True)
    return df.project(", ".join(f"{quoted(name)} AS {quoted(new)}" for name, new in pairs))


def _rename_table(table: pa.Table | pa.RecordBatch, rename_columns: RenameColumns) -> pa.Table:
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    return table.rename_columns(rename_columns(table.column_names))


_RENAMES: dict[str, Callable[[Frame, RenameColumns], Frame]] = {
    "pandas": _rename_pandas,
    "polars": lambda df, rename_columns: df.rename(
        dict(zip(df.columns, rename_columns(df.columns), strict=True))
    ),
    "pyarrow": _rename_table,
    "pyspark": lambda df, rename_columns: df.toDF(*rename_columns(df.columns)),
    "duckdb": _rename_duckdb,
}


def _new_names(names: Sequence[Any], renames: Renames) -> list[str]:
    """Return the new names of all columns.

    Raises:
        InvalidName: A column is unknown, or names repeat.
    """
    if isinstance(renames, Mapping):
        unknown = [name for name in renames if name not in names]
        if unknown:
            raise InvalidName(
                f"The dataframe has no columns {unknown!r}. Available: {list(map(str, names))}."
            )
        new_names = [renames.get(name, name) for name in names]
    else:
        new_names = list(renames)
        if len(new_names) != len(names):
            raise InvalidName(
                f"{len(new_names)} names for {len(names)} columns: {list(map(str, names))}."
            )
    repeated = {name for name in new_names if new_names.count(name) > 1}
    if repeated:
        raise InvalidName(f"Two columns would have the same name: {sorted(map(str, repeated))}.")
    return new_names
