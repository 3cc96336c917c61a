"""Logarithm, sine and cosine from operations with equal results in every library.

They are series over a reduced range, with an error near the precision of float64 and far below that
of float32 results.
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
    is_near_zero = (x > -0.29) & (x < 0.41)
    # Replace numbers without a logarithm by 1.
    has_logarithm = (x > -1.0) & (x < math.inf)
    m, e = ops.exponent(ops.where(has_logarithm, 1.0 + x, 1.0))
    is_upper = m > math.sqrt(2.0)
    m = ops.where(is_upper, m * 0.5, m)
    e = ops.where(is_upper, e + 1.0, e)
    # Near 0 the sum 1 + x would lose digits; there e is 0 and m - 1 is x itself.
    f = ops.where(is_near_zero, x, m - 1.0)
    e = ops.where(is_near_zero, 0.0, e)
    s = f / (2.0 + f)
    logarithm = e * _LOG_2 + s * 2.0 * _series(_ATANH, s * s)
    logarithm = ops.where(has_logarithm, logarithm, math.nan)
    logarithm = ops.where(x == -1.0, -math.inf, logarithm)
    return ops.where(x == math.inf, math.inf, logarithm)


def sine_and_cosine(ops: Ops, x: Any, *, per_period: float) -> tuple[Any, Any]:
    """Return sine and cosine of 2 pi x / period; ``per_period`` is 1 / period. NaN for infinities."""
    turns = x * per_period
    turns = (turns - ops.floor(turns)) * 4.0
    quarter = ops.floor(turns + 0.5)
    angle = (turns - quarter) * _HALF_PI
    square = angle * angle
    sine, cosine = angle * _series(_SINE, square), _series(_COSINE, square)
    is_swapped = (quarter == 1.0) | (quarter == 3.0)
    first, second = ops.where(is_swapped, cosine, sine), ops.where(is_swapped, sine, cosine)
    negates_sine = (quarter == 2.0) | (quarter == 3.0)
    negates_cosine = (quarter == 1.0) | (quarter == 2.0)
    return ops.where(negates_sine, -first, first), ops.where(negates_cosine, -second, second)


def flush_to_float32(ops: Ops, x: Any) -> Any:
    """Replace numbers below the normal range of float32 by 0, and larger ones by infinity.

    Libraries differ in whether they keep subnormal numbers, and in the sign of such zeros.
    """
    x = ops.where((x < LEAST_FLOAT32) & (x > -LEAST_FLOAT32), 0.0, x)
    x = ops.where(x >= BEYOND_FLOAT32, math.inf, x)
    return ops.where(x <= -BEYOND_FLOAT32, -math.inf, x)


def _series(coefficients: tuple[float, ...], z: Any) -> Any:
    """Evaluate a polynomial by Horner's rule."""
    total = z * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        total = total * z + coefficient
    return total
