"""Arrays in cells become fixed-size lists with a shape; unequal shapes are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from featurestore.arrow.arrays import from_numpy, to_cells
from featurestore.arrow.types import array_item_type, array_shape
from featurestore.errors import UnsupportedDataframe, UnsupportedType
from featurestore.ingest import to_reader

IMAGES = np.arange(5 * 4 * 3 * 1, dtype=np.float32).reshape(5, 4, 3, 1)


def read(df: Any, **options: Any) -> pa.Table:
    return to_reader(df, **options).read_all()


def frame(cells: Any) -> pd.DataFrame:
    return pd.DataFrame({"image": pd.Series(list(cells), dtype=object)})


FORMS = {
    "pandas cells": lambda: frame(IMAGES),
    "pandas cells of nested lists": lambda: frame(image.tolist() for image in IMAGES),
    "pandas cells of arrays of arrays": lambda: pa.table({"image": IMAGES.tolist()}).to_pandas(),
    "dicts with arrays": lambda: [{"image": image} for image in IMAGES],
    "dicts with nested lists": lambda: [{"image": image.tolist()} for image in IMAGES],
    "dict of arrays": lambda: {"image": IMAGES},
    "dict of lists of arrays": lambda: {"image": list(IMAGES)},
    "arrow tensors": lambda: pa.table({"image": pa.FixedShapeTensorArray.from_numpy_ndarray(IMAGES)}),
    "polars arrays": lambda: pl.DataFrame({"image": IMAGES}),
    "frames one by one": lambda: (frame(IMAGES[start : start + 2]) for start in (0, 2, 4)),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_image_forms_are_read_with_shape(form: str) -> None:
    column = read(FORMS[form]()).column("image")
    assert array_shape(column.type) == (4, 3, 1)
    np.testing.assert_array_equal(np.array(column.to_pylist()), IMAGES)


@pytest.mark.parametrize("data", [IMAGES, list(IMAGES)], ids=["array", "list of arrays"])
def test_multidimensional_array_is_one_column(data: Any) -> None:
    actual = read(data)
    assert actual.column_names == ["col_0"]
    assert actual.schema.field("col_0").type == from_numpy(IMAGES).type


def test_permuted_tensors_are_read_in_logical_order() -> None:
    tensor_type = pa.fixed_shape_tensor(pa.int64(), [3, 2], permutation=[1, 0])
    storage = pa.array([list(range(6)), None], pa.list_(pa.int64(), 6))
    labels = read(pa.table({"t": pa.ExtensionArray.from_storage(tensor_type, storage)}))
    assert labels.to_pydict() == {"t": [[[0, 2, 4], [1, 3, 5]], None]}


@pytest.mark.parametrize(
    "cells",
    [
        [[1, 2], [3, 4], None],
        [np.array([1, 2]), float("nan"), np.array([3, 4])],
        [(True, False), (False, True)],
    ],
)
def test_equal_length_lists_are_read_with_shape(cells: list[Any]) -> None:
    assert array_shape(read(frame(cells)).schema.field("image").type) == (2,)
    assert array_shape(read([{"v": cell} for cell in cells[:2]]).schema.types[0]) in ((2,), ())


@pytest.mark.parametrize(
    "cells",
    [[[1, 2], [3]], [[], [1]], [["a", "b"]] * 2, [[1, None], [2, 3]], [[[1], [2, 3]]] * 2],
    ids=["ragged", "empty", "texts", "missing items", "ragged inside"],
)
def test_unequal_lists_are_read_as_variable_length(cells: list[Any]) -> None:
    for df in (frame(cells), [{"v": cell} for cell in cells]):
        dtype = read(df).schema.types[0]
        assert pa.types.is_list(dtype)


def test_typed_variable_length_lists_keep_type() -> None:
    table = pa.table({"tokens": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64()))})
    assert read(table).schema == table.schema
    assert read(pl.from_arrow(table)).schema.types == table.schema.types
    typed = pd.DataFrame(
        {"tokens": pd.Series([[1, 2]], dtype=pd.ArrowDtype(table.schema.types[0]))}
    )
    assert read(typed).schema.types == table.schema.types


def test_half_and_mixed_dtypes_are_widened() -> None:
    halves = [np.ones((2, 2), np.float16)] * 2
    assert array_item_type(read(frame(halves)).schema.types[0]) == pa.float32()
    mixed = [np.ones((2, 2), np.uint8), np.ones((2, 2), np.float32)]
    assert array_item_type(read(frame(mixed)).schema.types[0]) == pa.float32()


REFUSED = {
    "unequal shapes": (
        frame([np.ones((8, 8)), None, np.ones((7, 8))]),
        r"'image' differ in shape: row 0 has \(8, 8\), row 2 has \(7, 8\)\.\nHint: pad or resize .* "
        "encoded bytes",
    ),
    "a number among arrays": (
        frame([np.ones((2, 2)), 3]),
        r"more than one type: .*(.|\n)*row 1 is int \(3\)",
    ),
    "complex": (frame([np.ones((2, 2), complex)]), "holds arrays of complex128"),
    "complex images": ({"image": np.ones((2, 2, 2), complex)}, "arrays of complex128"),
    "no values": ({"image": np.ones((2, 0, 2))}, r"shape \(2, 0, 2\)"),
    "later part": (
        iter([frame([[1, 2]] * 3), frame([[1, 2], [3, 4, 5]])]),
        r"the first dataframe has \(2,\), row 4 has \(3,\)",
    ),
    "later images": (
        iter([frame([np.ones((2, 2))]), frame([np.ones((2, 3))])]),
        r"the first dataframe has \(2, 2\), row 1 has \(2, 3\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arrays_of_unequal_shapes_or_types_raise(case: str) -> None:
    df, says = REFUSED[case]
    with pytest.raises(UnsupportedType, match=says):
        read(df)


def test_one_dimensional_array_raises_unsupported_dataframe() -> None:
    with pytest.raises(UnsupportedDataframe, match=r"shape \(3,\) is not a dataframe"):
        read(np.ones(3))


@given(
    arrays.arrays(
        st.sampled_from([np.uint8, np.int64, np.float32, np.float64, np.bool_]),
        arrays.array_shapes(min_dims=2, max_dims=4, max_side=4),
    ),
    st.data(),
)
def test_array_column_round_trip(values: Any, data: Any) -> None:
    rows = len(values)
    valid = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    start = data.draw(st.integers(0, rows))
    column = from_numpy(values, valid=valid)
    column.validate(full=True)
    cells = to_cells(column.slice(start))
    assert len(cells) == rows - start
    for row, cell in enumerate(cells, start):
        if valid[row]:
            np.testing.assert_array_equal(cell, values[row])
            assert cell.dtype == values.dtype
        else:
            assert cell is None
