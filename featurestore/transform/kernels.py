"""Logarithm and circle, of operations that every library does alike.

Both are series over a reduced range, with an error near that of float64: far below what is left
after the results become float32.
"""

from __future__ import annotations

import math
from typing import Any

from featurestore.transform.ops import BEYOND_FLOAT32, LEAST_FLOAT32, Ops

# log(m) = 2 s (1 + z/3 + z^2/5 + ...) with s = (m - 1) / (m + 1), z = s^2.
_ATANH = tuple(1.0 / (2 * power + 1) for power in range(12))
_SINE = tuple((-1.0) ** power / math.factorial(2 * power + 1) for power in range(10))
_COSINE = tuple((-1.0) ** power / math.factorial(2 * power) for power in range(10))
_LOG_2 = math.log(2.0)
_HALF_PI = math.pi / 2


def log1p(ops: Ops, x: Any) -> Any:
    """Return log(1 + x): -inf at -1, NaN below it."""
    near = (x > -0.29) & (x < 0.41)
    # Where logarithms are asked of numbers that have none, of 1 instead.
    usable = (x > -1.0) & (x < math.inf)
    m, e = ops.exponent(ops.where(usable, 1.0 + x, 1.0))
    upper = m > math.sqrt(2.0)
    m = ops.where(upper, m * 0.5, m)
    e = ops.where(upper, e + 1.0, e)
    # Near 0 the sum 1 + x would lose digits, and the logarithm is small: x itself is m - 1.
    f = ops.where(near, x, m - 1.0)
    e = ops.where(near, 0.0, e)
    s = f / (2.0 + f)
    found = e * _LOG_2 + s * 2.0 * _series(_ATANH, s * s)
    found = ops.where(usable, found, math.nan)
    found = ops.where(x == -1.0, -math.inf, found)
    return ops.where(x == math.inf, math.inf, found)


def circle(ops: Ops, x: Any, *, per_period: float) -> tuple[Any, Any]:
    """Return sine and cosine of 2 pi x / period; ``per_period`` is 1 / period. NaN of infinities."""
    turns = x * per_period
    turns = (turns - ops.floor(turns)) * 4.0
    quarter = ops.floor(turns + 0.5)
    angle = (turns - quarter) * _HALF_PI
    square = angle * angle
    sine, cosine = angle * _series(_SINE, square), _series(_COSINE, square)
    odd = (quarter == 1.0) | (quarter == 3.0)
    first, second = ops.where(odd, cosine, sine), ops.where(odd, sine, cosine)
    behind = (quarter == 2.0) | (quarter == 3.0)
    left = (quarter == 1.0) | (quarter == 2.0)
    return ops.where(behind, -first, first), ops.where(left, -second, second)


def settled(ops: Ops, x: Any) -> Any:
    """Return numbers with 0 for those that float32 cannot tell from it, infinity for too large ones.

    Libraries differ in whether they keep such small numbers, and in the sign of such zeros.
    """
    x = ops.where((x < LEAST_FLOAT32) & (x > -LEAST_FLOAT32), 0.0, x)
    x = ops.where(x >= BEYOND_FLOAT32, math.inf, x)
    return ops.where(x <= -BEYOND_FLOAT32, -math.inf, x)


def _series(coefficients: tuple[float, ...], z: Any) -> Any:
    """Return a polynomial by Horner's rule."""
    total = z * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        total = total * z + coefficient
    return total
