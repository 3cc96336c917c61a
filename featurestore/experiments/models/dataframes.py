"""DataFrames as model inputs: their dtypes, and columns with the dtypes of the training.

The dtype of a column in a batch depends on its values: pandas reads integers with nulls as floats,
and a batch may lack categories. A model therefore states the dtype of each column, and batches are
converted to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.values import ConversionError, to_array
from featurestore.errors import InvalidArgument, missing_extra
from featurestore.model.registered_model import ColumnDtype
from featurestore.model.window_features import value_from_json, value_to_json
from featurestore.readers.columns import NumpyArray
from featurestore.retrieval import conversions

if TYPE_CHECKING:
    import pandas
    import polars

FLOAT32 = ("float32", "Float32")
_NUMPY_FLOATS = ("float32", "float64")
# Names in a model file are data: other dtypes are never looked up in pandas or polars.
_PANDAS_DTYPES = re.compile(
    r"[uU]?[iI]nt(8|16|32|64)|[fF]loat(32|64)|bool|boolean|object|str|string|string\[\w+\]"
    r"|datetime64\[(s|ms|us|ns)(, [\w/+:-]+)?\]|(u?int(8|16|32|64)|float|double|bool|string)\[pyarrow\]"
)
_POLARS_DTYPES = (
    *("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"),
    *("Float32", "Float64", "Boolean", "String", "Categorical", "Binary", "Date"),
)


class Library(Protocol):
    """Columns and DataFrames of one library; every method imports it on first use."""

    def describe(self, frame: Any) -> dict[str, ColumnDtype]:
        """Return the dtype of each column.

        Raises:
            InvalidArgument: Names are not distinct strings, or a category has no JSON value.
        """
        ...

    def take(self, frame: Any, rows: list[int]) -> Any:
        """Return rows of a DataFrame by position."""
        ...

    def from_arrow(self, column: pa.Array, dtype: ColumnDtype | None) -> Any:
        """Return a column with a dtype, or with the dtype that the library reads.

        All values of a column with categories are among them.

        Raises:
            InvalidArgument: A value has no equal in the dtype, or no conversion to it is known.
        """
        ...

    def from_numpy(self, values: NumpyArray, dtype: ColumnDtype | None) -> Any:
        """Return an array as a column."""
        ...

    def to_frame(self, columns: Mapping[str, Any]) -> Any:
        """Return columns as a DataFrame."""
        ...


def library_of(frame: object) -> str | None:
    """Return "pandas" or "polars" for a DataFrame of this library, None for other objects."""
    for base in type(frame).__mro__:
        library = base.__module__.partition(".")[0]
        if base.__name__ == "DataFrame" and library in LIBRARIES:
            return library
    return None


class _Pandas:
    def describe(self, frame: pandas.DataFrame) -> dict[str, ColumnDtype]:
        names = _check_names(frame.columns)
        return {
            name: self._describe_column(name, frame.iloc[:, position])
            for position, name in enumerate(names)
        }

    def _describe_column(self, name: str, series: pandas.Series) -> ColumnDtype:
        dtype = series.dtype
        if dtype == "category":
            index = series.cat.categories
            categories = _categories_to_json(name, index.tolist())
            return ColumnDtype("category", categories, bool(series.cat.ordered), str(index.dtype))
        return ColumnDtype(str(dtype))

    def take(self, frame: pandas.DataFrame, rows: list[int]) -> Any:
        return frame.iloc[rows]

    def from_arrow(self, column: pa.Array, dtype: ColumnDtype | None) -> Any:
        pandas = _import_pandas()
        if dtype is not None and dtype.name in _NUMPY_FLOATS and pat.is_boolean(column.type):
            # pandas reads booleans with nulls as objects, which have no conversion.
            column = column.cast(pa.int8())
        series = conversions.to_pandas(pa.table({"column": column}))["column"]
        if dtype is None or str(series.dtype) == dtype.name:
            return series
        try:
            if dtype.categories is not None:
                return _pandas_categories(column, dtype)
            target = _pandas_dtype(dtype.name)
            if hasattr(target, "__from_arrow__"):
                # Without floats between: nullable integers are exact.
                return pandas.Series(target.__from_arrow__(column))
            if pat.is_date(column.type) and target.kind == "M":
                times = column.cast(pa.timestamp(np.datetime_data(target)[0]))
                return pandas.Series(times.to_numpy(zero_copy_only=False))
            return _cast_numpy(series, target)
        except (pa.ArrowException, TypeError, ValueError, NotImplementedError) as error:
            raise _dtype_error(column.type, dtype, error) from error

    def from_numpy(self, values: NumpyArray, dtype: ColumnDtype | None) -> Any:
        series = _import_pandas().Series(values)
        if dtype is None or str(series.dtype) == dtype.name:
            return series
        try:
            return _cast_numpy(series, _pandas_dtype(dtype.name))
        except (TypeError, ValueError) as error:
            raise _dtype_error(values.dtype, dtype, error) from error

    def to_frame(self, columns: Mapping[str, Any]) -> Any:
        return _import_pandas().DataFrame(dict(columns))


def _pandas_dtype(name: str) -> Any:
    """Return a dtype of pandas by its name; raise ValueError if no conversion to it is known."""
    if not _PANDAS_DTYPES.fullmatch(name):
        raise ValueError("no conversion between these types is known")
    return _import_pandas().api.types.pandas_dtype(name)


def _pandas_categories(column: pa.Array, dtype: ColumnDtype) -> Any:
    """Return a column of categories by their codes, so that batches may lack some."""
    pandas = _import_pandas()
    values = parse_categories(dtype)
    codes = pc.index_in(column, value_set=category_array(column.type, dtype))
    index = pandas.Index(values, dtype=None if dtype.items is None else _pandas_dtype(dtype.items))
    return pandas.Series(
        pandas.Categorical.from_codes(
            codes.fill_null(-1).to_numpy(zero_copy_only=False),
            dtype=pandas.CategoricalDtype(index, ordered=dtype.ordered),
        )
    )


def _cast_numpy(series: pandas.Series, target: Any) -> pandas.Series:
    """Convert a column to a numpy dtype that has all its values, rounded for floats.

    Raises:
        ValueError: A value has no equal, or values of the type are not numbers.
    """
    if target.kind == "O":
        return series.astype(object)
    # Objects are decimals, or texts of numbers.
    if series.dtype.kind not in "biufO" or target.kind not in "biuf":
        raise ValueError("no conversion between these types is known")
    converted = series.astype(target)
    if target.kind in "biu" and not (converted == series).all():
        raise ValueError("a value has no equal")
    return converted


class _Polars:
    def describe(self, frame: polars.DataFrame) -> dict[str, ColumnDtype]:
        polars = _import_polars()
        dtypes = {}
        for name, dtype in zip(_check_names(frame.columns), frame.dtypes, strict=True):
            dtypes[name] = ColumnDtype(str(dtype))
            if isinstance(dtype, polars.Enum):
                categories = _categories_to_json(name, dtype.categories.to_list())
                dtypes[name] = ColumnDtype("Enum", categories)
        return dtypes

    def take(self, frame: polars.DataFrame, rows: list[int]) -> Any:
        return frame[rows]

    def from_arrow(self, column: pa.Array, dtype: ColumnDtype | None) -> Any:
        return _cast_polars(_import_polars().from_arrow(column), dtype)

    def from_numpy(self, values: NumpyArray, dtype: ColumnDtype | None) -> Any:
        return _cast_polars(_import_polars().Series(values), dtype)

    def to_frame(self, columns: Mapping[str, Any]) -> Any:
        return _import_polars().DataFrame(dict(columns))


def _cast_polars(series: polars.Series, dtype: ColumnDtype | None) -> polars.Series:
    polars = _import_polars()
    if dtype is None or str(series.dtype) == dtype.name:
        return series
    try:
        if dtype.categories is not None:
            return series.cast(polars.Enum(list(dtype.categories)))
        if dtype.name not in _POLARS_DTYPES:
            raise ValueError("no conversion between these types is known")
        return series.cast(getattr(polars, dtype.name))
    except (polars.exceptions.PolarsError, TypeError, ValueError) as error:
        raise _dtype_error(series.dtype, dtype, error) from error


LIBRARIES: dict[str, Library] = {"pandas": _Pandas(), "polars": _Polars()}


def parse_categories(dtype: ColumnDtype) -> list[Any]:
    """Return the categories of a dtype as Python values."""
    return [value_from_json(category) for category in dtype.categories or ()]


def category_array(data_type: pa.DataType, dtype: ColumnDtype) -> pa.Array:
    """Return the categories as an array of a column's type.

    Raises:
        InvalidArgument: A category is not a value of the type.
    """
    try:
        return to_array(parse_categories(dtype), data_type)
    except ConversionError as error:
        raise _dtype_error(data_type, dtype, error) from error


def _categories_to_json(name: str, categories: list[Any]) -> tuple[Any, ...]:
    try:
        return tuple(map(value_to_json, categories))
    except InvalidArgument as error:
        raise InvalidArgument(
            f"The categories of {name!r} cannot be recorded: {error.message}",
            hint="use numbers, strings, booleans or times as categories",
        ) from error


def _check_names(columns: Any) -> list[str]:
    names = list(columns)
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InvalidArgument(
            f"The columns of a DataFrame of model inputs are {names!r}, not distinct names.",
            hint="name the columns like those of the training dataset",
        )
    return names


def _dtype_error(actual: object, dtype: ColumnDtype, error: Exception) -> InvalidArgument:
    return InvalidArgument(
        f"The model takes a column as {dtype.name}, and {actual} cannot be converted to it: "
        f"{error}.",
        hint="convert columns in the model, for instance with a pipeline of scikit-learn",
    )


def _import_pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise missing_extra("pandas", "pandas") from error
    return pandas


def _import_polars() -> Any:
    try:
        import polars
    except ImportError as error:
        raise missing_extra("polars", "polars") from error
    return polars
