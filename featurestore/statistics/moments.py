"""Mergeable means, variances and co-moments, and sums that do not depend on row partitioning.

Co-moments of a column pair (i, j) use the rows where both values are finite (pairwise complete).
Entry [i, j] of ``mean`` and ``square`` refers to column i over these rows, so neither matrix is
symmetric.

A *twofold* is an unevaluated sum ``hi + lo`` of two float64 with about 106 bits. Sums are computed as
follows: adding a much larger number ``sigma`` rounds a float to a multiple of the last place of
``sigma``. The bits of the result count these multiples, and integer counts are added without
rounding. The remainders are smaller by the 53 bits of a float64. The method is based on Rump, Ogita
and Oishi, "Accurate floating-point summation", SIAM J. Sci. Comput. 31, 2008, who add the multiples
as floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from featurestore.statistics.values import Values, empty

Floats = NDArray[np.float64]
Number = TypeVar("Number", float, Floats)
Twofold = tuple[float, float]
# Partial sums of larger numbers may overflow float64.
TOO_LARGE = 2.0**900
# The block fits into the CPU caches with all intermediate results. With smaller blocks, the
# overhead of calls dominates.
_BLOCK = 32_768
# The sum of the multiples of 2**12 numbers up to sigma / 2 fits into 63 bits.
_SUMMANDS_BITS = 12
# A numpy call takes as long as processing a thousand values, so blocks must not be small.
_CACHED_VALUES = 1 << 19
# For products with more multiplications, BLAS starts threads that spin afterwards.
_MAX_SINGLE_THREADED = 1 << 18
# With more columns, it is faster to compute only half of the symmetric product.
_MAX_FULL_PRODUCT = 40
# Columns are multiplied in tiles of this size.
_TILE = 60


@dataclass
class Moments:
    """Count, mean and sum of squared deviations of one column."""

    n: int = 0
    mean: Twofold = (0.0, 0.0)
    square: Twofold = (0.0, 0.0)

    @property
    def variance(self) -> float | None:
        """The sample variance (n - 1); None for fewer than two values."""
        if self.n < 2:
            return None
        return max(self.square[0], 0.0) / (self.n - 1)

    def merge(self, added: Moments) -> Moments:
        """Return the merged moments."""
        if not added.n:
            return self
        if not self.n:
            return added
        n = self.n + added.n
        # The pairwise update of Chan, Golub and LeVeque, in twofold precision.
        delta = (added.mean[0] - self.mean[0]) + (added.mean[1] - self.mean[1])
        between = delta * delta * (self.n * added.n / n)
        step = delta * (added.n / n)
        return Moments(
            n,
            add_twofold(self.mean, (step, 0.0)),
            add_twofold(add_twofold(self.square, added.square), (between, 0.0)),
        )


@dataclass
class CoMoments:
    """Pairwise counts, means, squared deviations and products of deviations, of shape (p, p)."""

    n: NDArray[np.int64]
    mean: tuple[Floats, Floats]
    square: tuple[Floats, Floats]
    product: tuple[Floats, Floats]

    @classmethod
    def empty(cls, columns: int) -> CoMoments:
        """Return co-moments without rows."""
        shape = (columns, columns)
        pairs = [(np.zeros(shape), np.zeros(shape)) for _ in range(3)]
        return cls(np.zeros(shape, dtype=np.int64), *pairs)

    def merge(self, added: CoMoments) -> CoMoments:
        """Return the merged co-moments."""
        if not added.n.any():
            return self
        if not self.n.any():
            return added
        n = self.n + added.n
        share = added.n / np.maximum(n, 1)
        delta = (added.mean[0] - self.mean[0]) + (added.mean[1] - self.mean[1])
        # If one side has no rows, the difference of means is defined as 0.
        delta = np.where((self.n > 0) & (added.n > 0), delta, 0.0)
        weight = self.n * share
        zero = np.zeros_like(delta)
        mean = add_twofold(self.mean, (delta * share, zero))
        # The mean of a pair without rows on the first side is the mean of the second side exactly.
        first = self.n == 0
        return CoMoments(
            n,
            (np.where(first, added.mean[0], mean[0]), np.where(first, added.mean[1], mean[1])),
            add_twofold(add_twofold(self.square, added.square), (delta * delta * weight, zero)),
            add_twofold(add_twofold(self.product, added.product), (delta * delta.T * weight, zero)),
        )

    def column_moments(self, index: int) -> Moments:
        """Return the moments of one column."""
        n = int(self.n[index, index])
        if not n:
            return Moments()
        mean = (float(self.mean[0][index, index]), float(self.mean[1][index, index]))
        square = (float(self.square[0][index, index]), float(self.square[1][index, index]))
        return Moments(n, mean, square)

    def correlations(self) -> Floats:
        """Return Pearson's r, or NaN for pairs in which a column is constant."""
        square = np.maximum(self.square[0], 0.0)
        # Rounding errors of a constant are much smaller than the deviations of the full column.
        square = np.where(square <= 1e-14 * np.diag(square)[:, None], np.nan, square)
        with np.errstate(invalid="ignore", divide="ignore"):
            # Take the roots separately, because the product of the squares may overflow float64.
            result = self.product[0] / (np.sqrt(square) * np.sqrt(square.T))
        result = np.where(self.n >= 2, np.clip(result, -1.0, 1.0), np.nan)
        has_variance = ~np.isnan(np.diag(result))
        result[has_variance, has_variance] = 1.0
        return np.asarray(result, dtype=np.float64)


_SIGN, _WORD = 1 << 63, 1 << 64


def two_sum(a: Number, b: Number) -> tuple[Number, Number]:
    """Return the rounded sum and its rounding error (Knuth's algorithm).

    >>> two_sum(1e16, 1.0)
    (1e+16, 1.0)
    """
    total = a + b
    virtual_b = total - a
    return total, (a - (total - virtual_b)) + (b - virtual_b)


def add_twofold(a: tuple[Number, Number], b: tuple[Number, Number]) -> tuple[Number, Number]:
    """Return the sum of two twofolds."""
    high, low = two_sum(a[0], b[0])
    return two_sum(high, low + (a[1] + b[1]))


def sum_twofold(values: Floats, *, largest: float | None = None) -> Twofold:
    """Return the sum of finite numbers as a twofold; ``largest`` is their maximum magnitude.

    >>> sum_twofold(np.array([1e30, 1.0, -1e30]))
    (1.0, 0.0)
    """
    if not len(values):
        return 0.0, 0.0
    if largest is None:
        largest = max(float(values.max()), -float(values.min()))
    if largest > TOO_LARGE:
        return _sum_large_numbers(values)
    total = (0.0, 0.0)
    scratch = empty(min(len(values), _BLOCK))
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        total = add_twofold(total, _sum_block(block, largest, scratch[: len(block)]))
    return total


def _sum_block(values: Floats, largest: float, rounded: Floats) -> Twofold:
    """Return the sum of numbers with magnitudes up to ``largest``; ``rounded`` is scratch memory."""
    headroom = max(len(values).bit_length() - _SUMMANDS_BITS, 0)
    # The factor 1.5 keeps sums with negative numbers in the binade of sigma.
    sigma = math.ldexp(1.5, headroom + math.frexp(largest)[1] + 1)
    np.add(values, sigma, out=rounded)
    sigma_bits = int(np.float64(sigma).view(np.int64))
    multiples = int(rounded.view(np.int64).sum()) - len(values) * sigma_bits
    multiples = (multiples + _SIGN) % _WORD - _SIGN  # the int64 sum may wrap around
    rounded -= sigma
    remainders = np.subtract(values, rounded, out=rounded)
    return add_twofold(_scale_integer(multiples, math.ulp(sigma)), (float(remainders.sum()), 0.0))


def multiply_exactly(count: int, number: float) -> Twofold:
    """Return the exact product of a count and a number.

    >>> multiply_exactly(3, 0.5)
    (1.5, 0.0)
    """
    # The denominator of a float is a power of two, so its reciprocal is exact.
    numerator, denominator = number.as_integer_ratio()
    return _scale_integer(count * numerator, 1 / denominator)


def _scale_integer(number: int, unit: float) -> Twofold:
    """Return the product of an integer of up to 106 bits and a power of two."""
    high = float(number)
    return high * unit, float(number - int(high)) * unit


def sum_integers(values: NDArray[Any]) -> int:
    """Return the exact sum of integers of up to 64 bits, by summing their halves separately.

    >>> sum_integers(np.array([2**63 - 1, 2**63 - 1]))
    18446744073709551614
    """
    if values.dtype.itemsize < 8:
        return int(values.sum(dtype=np.int64))
    if not len(values):
        return 0
    largest = max(abs(int(values.min())), abs(int(values.max())))
    if largest * len(values) < 2**63:
        return int(values.sum())
    # Sums of 32-bit halves cannot overflow 64 bits for fewer than 2**31 values.
    upper = (values >> 32).astype(np.int64)
    lower = (values & 0xFFFFFFFF).astype(np.int64)
    return (int(upper.sum()) << 32) + int(lower.sum())


def _sum_large_numbers(values: Floats) -> Twofold:
    try:
        # fsum is exact, and raises OverflowError if the sum exceeds float64.
        return math.fsum(values.tolist()), 0.0
    except OverflowError:
        return math.copysign(math.inf, float(np.sum(np.sign(values)))), 0.0


_MIN_BLOCK_ROWS, _MAX_BLOCK_ROWS = 1_024, 32_768


def batch_moments(values: Values) -> Moments:
    """Return the moments of a batch, computed from deviations from the pivot for precision."""
    n = values.count
    if not n:
        return Moments()
    deviations = values.deviations()
    # BLAS is not used, because starting its threads takes longer than the product.
    squares = float(np.einsum("i,i->", deviations, deviations))
    return _moments_from_sums(values.pivot, n, float(deviations.sum()), squares)


def weighted_moments(values: Values, weights: NDArray[np.int64]) -> Moments:
    """Return the moments of weighted rows; the result depends only on the row order."""
    if values.present is not None:
        weights = np.where(values.present, weights, 0)
    n = int(weights.sum())
    if not n:
        return Moments()
    deviations = values.deviations()
    weighted = deviations * weights
    return _moments_from_sums(
        values.pivot, n, float(weighted.sum()), float((weighted * deviations).sum())
    )


def _moments_from_sums(pivot: float | int, n: int, total: float, squares: float) -> Moments:
    """Return the moments for given sums of deviations from a pivot and of squared deviations."""
    mean = add_twofold(to_twofold(pivot), (total / n, 0.0))
    return Moments(n, mean, (max(squares - total * total / n, 0.0), 0.0))


def to_twofold(pivot: float | int) -> Twofold:
    """Convert a pivot to a twofold, since float64 cannot represent all 64-bit integers."""
    high = float(pivot)
    if not isinstance(pivot, int):
        return high, 0.0
    return high, float(pivot - int(high))


def co_moments(columns: Sequence[Values], *, weights: NDArray[np.int64] | None = None) -> CoMoments:
    """Return the co-moments of one batch; ``weights`` has the copy count of each row."""
    rows = len(columns[0].numbers)
    total, roots = float(rows), None
    if weights is not None and not (weights == 1).all():
        total, roots = float(weights.sum()), np.sqrt(weights)
    sums = _PairSums(columns, total)
    # Deviations are computed for a block of rows, which is then multiplied in slabs. BLAS multiplies
    # a slab in this thread; its number of rows is a power of two.
    tile = min(len(columns), _TILE)
    slab_rows = 1 << (_MAX_SINGLE_THREADED // (tile * (tile + 1))).bit_length() - 1
    block = min(max(_CACHED_VALUES // sums.width, _MIN_BLOCK_ROWS), _MAX_BLOCK_ROWS)
    block = max(block - block % slab_rows, slab_rows)
    even_rows = rows - rows % slab_rows
    for start in range(0, even_rows, block):
        sums.add(slice(start, min(start + block, even_rows)), slab_rows, roots)
    if even_rows < rows:
        sums.add(slice(even_rows, rows), rows - even_rows, roots)
    return sums.co_moments()


class _PairSums:
    """Sums of deviations from pivots, of their squares, and of their products.

    For each pair of columns, only rows where both have a value are included. The *mask* of a column
    is 1 for rows with a value. The first mask selects all rows; each of the others belongs to a
    column with missing values.
    """

    def __init__(self, columns: Sequence[Values], total: float) -> None:
        self._columns = columns
        self._masked = [column for column in columns if column.present is not None]
        masks = len(self._masked) + 1
        self.width = len(columns) + masks
        if self._masked:  # with the squares
            self.width += len(columns)
        self._products = np.zeros((len(columns), len(columns)))
        # One column per mask.
        self._sums, self._squares = np.zeros((2, len(columns), masks))
        self._rows = np.zeros((masks, masks))
        self._rows[0, 0] = total

    def add(self, rows: slice, slab_rows: int, roots: Floats | None) -> None:
        """Add a multiple of ``slab_rows`` rows; ``roots`` has the square roots of row weights."""
        columns = len(self._columns)
        block = empty((self.width, rows.stop - rows.start))
        deviations, masks, squares = np.split(block, [columns, columns + len(self._rows)])
        for column, row in zip(self._columns, deviations, strict=True):
            column.write_deviations(rows, row)
        masks[0] = 1.0
        for column, row in zip(self._masked, masks[1:], strict=True):
            row[:] = column.present[rows]  # type: ignore[index]
        if len(squares):
            np.multiply(deviations, deviations, out=squares)
        if roots is not None:
            block *= roots[rows]
        # Slabs are the first axis, so that matmul calls BLAS once for each slab.
        slabs = block.reshape(self.width, -1, slab_rows).transpose(1, 0, 2)
        self._add_products(slabs)

    def _add_products(self, slabs: Floats) -> None:
        """Add the products of all slabs to the sums."""
        columns = len(self._columns)
        deviations, with_ones = slabs[:, :columns], slabs[:, : columns + 1]
        if columns > _MAX_FULL_PRODUCT:
            self._products += _self_product(deviations)
            self._sums[:, 0] += deviations.sum(axis=(0, 2))
        else:
            # A single product of two arrays that includes the sums is faster than a self product.
            products = _slab_product(deviations, with_ones)
            self._products += products[:, :columns]
            self._sums[:, 0] += products[:, columns]
        # Deviations of missing values are 0, so the diagonal has the squares of all finite values.
        self._squares[:, 0] = np.diag(self._products)
        if self._masked:
            masks, squares = slabs[:, columns + 1 : -columns], slabs[:, -columns:]
            self._sums[:, 1:] += _slab_product(deviations, masks)
            self._squares[:, 1:] += _slab_product(squares, masks)
            self._rows[1:] += _slab_product(masks, slabs[:, columns:-columns])

    def co_moments(self) -> CoMoments:
        """Return the co-moments."""
        self._rows[0, 1:] = self._rows[1:, 0]
        mask_indices = np.zeros(len(self._columns), dtype=np.int64)
        mask_indices[[column.present is not None for column in self._columns]] = range(
            1, len(self._rows)
        )
        n = self._rows[np.ix_(mask_indices, mask_indices)]
        sums, squares = self._sums[:, mask_indices], self._squares[:, mask_indices]
        divisor = np.maximum(n, 1.0)
        zero = np.zeros_like(n)
        has_rows = (n > 0).astype(np.float64)
        pivots = np.array([to_twofold(column.pivot) for column in self._columns])
        return CoMoments(
            np.rint(n).astype(np.int64),
            add_twofold(
                (pivots[:, :1] * has_rows, pivots[:, 1:] * has_rows), (sums / divisor, zero)
            ),
            (np.maximum(squares - sums * sums / divisor, 0.0), zero),
            (self._products - sums * sums.T / divisor, zero.copy()),
        )


def _slab_product(rows_side: Floats, columns_side: Floats) -> Floats:
    """Return ``left @ right.T`` summed over slabs of rows."""
    products = np.empty((rows_side.shape[1], columns_side.shape[1]))
    for rows in _column_tiles(rows_side.shape[1]):
        for columns in _column_tiles(columns_side.shape[1]):
            products[rows, columns] = _tile_product(rows_side[:, rows], columns_side[:, columns])
    return products


def _self_product(slabs: Floats) -> Floats:
    """Return ``slabs @ slabs.T`` summed over slabs of rows."""
    products = np.empty((slabs.shape[1], slabs.shape[1]))
    tiles = _column_tiles(slabs.shape[1])
    for index, rows in enumerate(tiles):
        for columns in tiles[index:]:
            products[rows, columns] = _tile_product(slabs[:, rows], slabs[:, columns])
            products[columns, rows] = products[rows, columns].T
    return products


def _tile_product(row_tiles: Floats, column_tiles: Floats) -> Floats:
    return np.asarray((row_tiles @ column_tiles.transpose(0, 2, 1)).sum(axis=0))


def _column_tiles(columns: int) -> list[slice]:
    return [slice(start, start + _TILE) for start in range(0, columns, _TILE)]
