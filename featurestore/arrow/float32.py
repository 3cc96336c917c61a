"""The range of float32, to which files and models round numbers.

Numbers of other types are rounded to the nearest float32. A finite number beyond its range would
become infinity, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# The least number that rounds to infinity: half a step above the largest float32.
BEYOND_FLOAT32 = float(2**128 - 2**103)


def rounds_to_infinity(number: float) -> bool:
    """Return whether a finite number becomes infinity in float32.

    >>> rounds_to_infinity(3.4e38), rounds_to_infinity(-1e39), rounds_to_infinity(math.inf)
    (False, True, False)
    """
    return math.isfinite(number) and abs(number) >= BEYOND_FLOAT32


def largest_finite(array: pa.Array) -> float | None:
    """Return the finite number of the greatest magnitude in an array of floats, or None.

    >>> largest_finite(pa.array([1.0, -1e300, None, math.inf]))
    -1e+300
    """
    extremes = pc.min_max(array).as_py()
    numbers = [extremes["min"], extremes["max"]]
    if None in numbers:
        return None
    if not all(map(math.isfinite, numbers)):
        values = array.drop_null().to_numpy(zero_copy_only=False)
        finite = values[np.isfinite(values)]
        numbers = [float(finite.min()), float(finite.max())] if len(finite) else []
    return larger_magnitude(numbers)


def larger_magnitude(numbers: Iterable[float | None]) -> float | None:
    """Return the number of the greatest magnitude, without None.

    >>> larger_magnitude([2.0, None, -3.0])
    -3.0
    """
    return max((number for number in numbers if number is not None), key=abs, default=None)


def assign_rounded(target: npt.NDArray[np.float32], numbers: npt.NDArray[Any]) -> float | None:
    """Assign numbers to a float32 array, rounded; return the first that became infinity, if any.

    >>> assign_rounded(np.zeros(2, np.float32), np.array([0.1, 1e300]))
    1e+300
    """
    with np.errstate(over="ignore"):
        target[:] = numbers
    if numbers.dtype.kind != "f" or numbers.dtype.itemsize <= target.itemsize:
        return None
    became_infinite = np.isinf(target)
    if not became_infinite.any():
        return None
    became_infinite &= np.isfinite(numbers)
    return float(numbers[became_infinite][0]) if became_infinite.any() else None
