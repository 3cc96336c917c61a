"""Arrow columns and arrays of readers as values of numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.errors import UnsupportedType
from featurestore.readers.arrow_numpy import to_numpy
from featurestore.transform.forms import Form, form_of
from featurestore.transform.ops import Value


def value_of(column: pa.Array, *, name: str) -> Value:
    """Return an Arrow column as a value.

    >>> value_of(pa.array([1.5, None]), name="x").data.tolist()
    [1.5, nan]
    """
    form = form_of(column.type)
    if form.kind == "other":
        raise UnsupportedType(f"Column {name!r} is {column.type}, which no transformation takes.")
    data, present = to_numpy(column, name=name)
    return read_value(form, data, present)


def read_value(form: Form, data: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None) -> Value:
    """Return values as readers have them, with their presence, as a value."""
    if form.kind != "number":
        return Value(form.kind, data, present)
    numbers = data.astype(np.float64, copy=False)
    if present is not None:
        shape = present.shape + (1,) * (numbers.ndim - present.ndim)
        numbers = np.where(present.reshape(shape), numbers, np.nan)
    return Value("number", numbers)
