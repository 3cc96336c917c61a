"""The operations that rules are written in, and numpy's; TensorFlow and PyTorch have their own.

A rule says once what it does, in operations that have one result in every library: sums, products
and quotients of float64, comparisons, choices, floors, exponents, searches. Logarithms and sines of
libraries differ in their last digits; ours are made of these operations (``kernels``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featurestore.transform.forms import Kind
from featurestore.transform.siphash import bucket_of_texts
from featurestore.transform.words import words_of

# Smaller numbers are 0 and larger ones infinite: libraries differ in what they do beyond.
LEAST_FLOAT32 = 1.1754943508222875e-38
BEYOND_FLOAT32 = 3.4028235677973366e38


@dataclass(frozen=True)
class Value:
    """A column on its way through a chain.

    ``data`` is an array of the library; of texts always one of bytes objects where the library has
    no texts. ``present`` tells missing values, None: none is missing. Numbers have none: missing is
    NaN.
    """

    kind: Kind
    data: Any
    present: Any | None = None


@dataclass(frozen=True)
class Lists:
    """Lists of varying length, one behind the other: the items, and how many each row has."""

    items: npt.NDArray[Any]
    lengths: npt.NDArray[np.int64]


class Ops(Protocol):
    """The operations of one library; arithmetic and comparisons are its arrays' own.

    All of them are elementwise over any shape and give the same bits in every library.
    """

    def number(self, value: Value) -> Any:
        """Return float64, missing as NaN, of numbers, whole numbers or codes (0 is missing)."""
        ...

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        """Return ``yes`` where the condition holds, else ``no``; either may be a number."""
        ...

    def is_floating(self, data: Any) -> bool:
        """Return whether numbers are floats."""
        ...

    def isnan(self, data: Any) -> Any:
        """Return where numbers are NaN."""
        ...

    def floor(self, data: Any) -> Any:
        """Return the greatest whole number up to each number."""
        ...

    def exponent(self, data: Any) -> tuple[Any, Any]:
        """Return (m, e) with data = m * 2**e and 1 <= m < 2, for normal positive numbers."""
        ...

    def count_up_to(self, edges: Sequence[float], data: Any) -> Any:
        """Return how many of the ascending edges are at or below each number, int64; 0 of NaN."""
        ...

    def position(self, known: Sequence[Any], value: Value) -> Any:
        """Return the position of each value among the known ones, int64; -1 of others."""
        ...

    def bucket(self, value: Value, buckets: int) -> Any:
        """Return the bucket of each text, or of each whole number's digits, int64."""
        ...

    def words(self, value: Value, *, lower: bool, length: int) -> Value:
        """Return the words of each text as (..., length); beyond the last word nothing is there."""
        ...

    def place(self, lists: Any, length: int, *, last: bool) -> tuple[Kind, Any, Any]:
        """Return the first or last items of lists as (rows, length), their kind before that.

        And where there are any; elsewhere stand zeros or empty texts.
        """
        ...

    def stack(self, parts: Sequence[Any]) -> Any:
        """Return arrays side by side in a further, last dimension."""
        ...

    def hot(self, codes: Any, size: int) -> Any:
        """Return (..., size) of float64: 1 where the code is the position, 0 elsewhere."""
        ...

    def cast(self, data: Any, dtype: str) -> Any:
        """Return another type of numbers that it can hold."""
        ...

    def constant(self, value: Any, kind: Kind) -> Any:
        """Return one value as the library holds it, of text or whole numbers."""
        ...


class NumpyOps:
    """The operations of numpy."""

    def number(self, value: Value) -> npt.NDArray[np.float64]:
        data: npt.NDArray[np.float64] = np.asarray(value.data).astype(np.float64, copy=False)
        if value.kind == "number" and value.present is None:
            return data
        present = value.present
        if value.kind == "code":
            present = data != 0
        if present is None:
            return data
        return np.where(self._spread(present, data), data, np.nan)

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        return np.where(condition, yes, no)

    def is_floating(self, data: Any) -> bool:
        return bool(np.issubdtype(data.dtype, np.floating))

    def isnan(self, data: Any) -> Any:
        return np.isnan(data)

    def floor(self, data: Any) -> Any:
        return np.floor(data)

    def exponent(self, data: Any) -> tuple[Any, Any]:
        half, exponent = np.frexp(data)
        return half * 2.0, (exponent - 1).astype(np.float64)

    def count_up_to(self, edges: Sequence[float], data: Any) -> Any:
        found = np.searchsorted(np.array(edges, dtype=np.float64), data, side="right")
        return np.where(np.isnan(data), 0, found).astype(np.int64)

    def position(self, known: Sequence[Any], value: Value) -> Any:
        data = np.asarray(value.data)
        if value.kind == "text":
            return _position_of_texts(known, data)
        ordered = np.array(known, dtype=np.int64)
        if not len(ordered):
            return np.full(data.shape, -1, dtype=np.int64)
        order = np.argsort(ordered)
        ordered = ordered[order]
        wanted = data.astype(np.int64, copy=False)
        found = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        return np.where(ordered[found] == wanted, order[found], -1)

    def bucket(self, value: Value, buckets: int) -> Any:
        data = np.asarray(value.data)
        if value.kind == "whole":
            digits = data.astype(np.int64, copy=False).astype("S20")
            data = digits.astype(object)
        return bucket_of_texts(data.reshape(-1), buckets).reshape(data.shape)

    def words(self, value: Value, *, lower: bool, length: int) -> Value:
        texts, present = np.asarray(value.data), value.present
        if present is not None:
            spread = self._spread(present, texts)
            present = np.broadcast_to(spread, texts.shape).reshape(-1)
        words, there = words_of(texts.reshape(-1), present, lower=lower, length=length)
        shape = *texts.shape, length
        return Value("text", words.reshape(shape), there.reshape(shape))

    def place(self, lists: Lists, length: int, *, last: bool) -> tuple[Kind, Any, Any]:
        rows, there = placed(lists, length, last=last)
        return kind_of_items(lists), rows, there

    def stack(self, parts: Sequence[Any]) -> Any:
        return np.stack(parts, axis=-1)

    def hot(self, codes: Any, size: int) -> Any:
        return (np.asarray(codes)[..., None] == np.arange(size)).astype(np.float64)

    def cast(self, data: Any, dtype: str) -> Any:
        return np.asarray(data).astype(dtype, copy=False)

    def constant(self, value: Any, kind: Kind) -> Any:
        if kind == "text":
            return np.array(value.encode(), dtype=object)
        return np.int64(value)

    def _spread(self, present: Any, data: Any) -> Any:
        """Return which rows are present in the shape of their values."""
        return np.reshape(present, present.shape + (1,) * (data.ndim - present.ndim))


def kind_of_items(lists: Lists) -> Kind:
    """Return what the items of lists are."""
    kinds: dict[str, Kind] = {"f": "number", "i": "whole"}
    return kinds.get(lists.items.dtype.kind, "text")


def placed(
    lists: Lists, length: int, *, last: bool
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the items that stay as (rows, length), and where there are any.

    >>> rows, there = placed(Lists(np.array([1, 2, 3]), np.array([2, 0, 1])), 1, last=True)
    >>> rows.tolist(), there.tolist()
    ([[2], [0], [3]], [[True], [False], [True]])
    """
    ends = np.cumsum(lists.lengths)
    starts = ends - lists.lengths
    kept = np.minimum(lists.lengths, length)
    if last:
        starts = ends - kept
    there = np.arange(length) < kept[:, None]
    zero: Any = b"" if lists.items.dtype == object else 0
    rows = np.full((len(kept), length), zero, dtype=lists.items.dtype)
    positions = starts[:, None] + np.arange(length)
    rows[there] = lists.items[positions[there]]
    return rows, there


def _position_of_texts(known: Sequence[str], data: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pa.array(data.reshape(-1).tolist(), pa.large_binary())
    values = pa.array([text.encode() for text in known], pa.large_binary())
    found = pc.index_in(texts, value_set=values).fill_null(-1)
    positions: npt.NDArray[np.int64] = found.to_numpy(zero_copy_only=False).astype(np.int64)
    return positions.reshape(data.shape)
