"""Co-moments of the columns of one batch, in blocks of rows that stay in the processor's caches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from featurestore.statistics.exactsum import Floats, add_twofold
from featurestore.statistics.memory import empty
from featurestore.statistics.moments import CoMoments, as_twofold
from featurestore.statistics.values import Values

# Each of numpy's calls costs as much as a thousand values.
_CACHED_VALUES = 1 << 19
_FEWEST_ROWS, _MOST_ROWS = 1_024, 32_768
# BLAS wakes its threads for products of more multiplications, and they spin afterwards.
_ALONE = 1 << 18
# Of more columns it is worth to compute one half of the symmetric product only.
_FEW_COLUMNS = 40
# More columns are multiplied in tiles of so many.
_TILE = 60


def co_moments(columns: Sequence[Values], *, weights: NDArray[np.int64] | None = None) -> CoMoments:
    """Return the co-moments of the columns of one batch; ``weights`` count rows several times."""
    rows = len(columns[0].numbers)
    total, roots = float(rows), None
    if weights is not None and not (weights == 1).all():
        total, roots = float(weights.sum()), np.sqrt(weights)
    sums = _Sums(columns, total)
    # A block of rows is written at once, and multiplied in pieces.
    piece = _rows_multiplied(len(columns))
    block = min(max(_CACHED_VALUES // sums.width, _FEWEST_ROWS), _MOST_ROWS)
    block = max(block - block % piece, piece)
    whole = rows - rows % piece
    for start in range(0, whole, block):
        sums.add(slice(start, min(start + block, whole)), piece, roots)
    if whole < rows:
        sums.add(slice(whole, rows), rows - whole, roots)
    return sums.co_moments()


def _rows_multiplied(columns: int) -> int:
    """Return how many rows BLAS multiplies at once, a power of two."""
    tile = min(columns, _TILE)
    return 1 << (_ALONE // (tile * (tile + 1))).bit_length() - 1


class _Sums:
    """Sums over rows of deviations from pivots, of their squares and of their products.

    Each pair of columns is over the rows where both have a value. A *mask* marks such rows by 1;
    the first one marks all, the others those of each column that has missing values.
    """

    def __init__(self, columns: Sequence[Values], total: float) -> None:
        self._columns = columns
        self._masked = [column for column in columns if column.present is not None]
        masks = len(self._masked) + 1
        self.width = len(columns) + masks
        if self._masked:  # with the squares
            self.width += len(columns)
        self._products = np.zeros((len(columns), len(columns)))
        # Over the rows of each mask.
        self._sums, self._squares = np.zeros((2, len(columns), masks))
        self._rows = np.zeros((masks, masks))
        self._rows[0, 0] = total

    def add(self, rows: slice, piece: int, roots: Floats | None) -> None:
        """Take in rows, a multiple of ``piece``; ``roots`` are those of their weights."""
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
        # The pieces first: BLAS gets one at a time.
        pieces = block.reshape(self.width, -1, piece).transpose(1, 0, 2)
        self._add_products(pieces)

    def _add_products(self, pieces: Floats) -> None:
        columns = len(self._columns)
        deviations, with_ones = pieces[:, :columns], pieces[:, : columns + 1]
        if columns > _FEW_COLUMNS:
            self._products += _product_with_itself(deviations)
            self._sums[:, 0] += deviations.sum(axis=(0, 2))
        else:
            # The product of two arrays, with the sums, is faster than that of one with itself.
            found = _product(deviations, with_ones)
            self._products += found[:, :columns]
            self._sums[:, 0] += found[:, columns]
        self._squares[:, 0] = np.diag(self._products)
        if self._masked:
            masks, squares = pieces[:, columns + 1 : -columns], pieces[:, -columns:]
            self._sums[:, 1:] += _product(deviations, masks)
            self._squares[:, 1:] += _product(squares, masks)
            self._rows[1:] += _product(masks, pieces[:, columns:-columns])

    def co_moments(self) -> CoMoments:
        """Return the co-moments."""
        self._rows[0, 1:] = self._rows[1:, 0]
        mask_of = np.zeros(len(self._columns), dtype=np.int64)
        mask_of[[column.present is not None for column in self._columns]] = range(
            1, len(self._rows)
        )
        n = self._rows[np.ix_(mask_of, mask_of)]
        sums, squares = self._sums[:, mask_of], self._squares[:, mask_of]
        divisor = np.maximum(n, 1.0)
        zero = np.zeros_like(n)
        known = (n > 0).astype(np.float64)
        pivots = np.array([as_twofold(column.pivot) for column in self._columns])
        return CoMoments(
            np.rint(n).astype(np.int64),
            add_twofold((pivots[:, :1] * known, pivots[:, 1:] * known), (sums / divisor, zero)),
            (np.maximum(squares - sums * sums / divisor, 0.0), zero),
            (self._products - sums * sums.T / divisor, zero.copy()),
        )


def _product(left: Floats, right: Floats) -> Floats:
    """Return ``left @ right.T`` summed over pieces of rows."""
    found = np.empty((left.shape[1], right.shape[1]))
    for rows in _tiles(left.shape[1]):
        for columns in _tiles(right.shape[1]):
            found[rows, columns] = _tile_product(left[:, rows], right[:, columns])
    return found


def _product_with_itself(pieces: Floats) -> Floats:
    """Return ``pieces @ pieces.T`` summed over pieces of rows."""
    found = np.empty((pieces.shape[1], pieces.shape[1]))
    tiles = _tiles(pieces.shape[1])
    for number, rows in enumerate(tiles):
        for columns in tiles[number:]:
            found[rows, columns] = _tile_product(pieces[:, rows], pieces[:, columns])
            found[columns, rows] = found[rows, columns].T
    return found


def _tile_product(left: Floats, right: Floats) -> Floats:
    return np.asarray((left @ right.transpose(0, 2, 1)).sum(axis=0))


def _tiles(columns: int) -> list[slice]:
    return [slice(start, start + _TILE) for start in range(0, columns, _TILE)]
