"""Decimals as text: one spelling for each value of a type."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def decimal_text(values: pa.Array) -> pa.Array:
    """Return decimals as plain digits with all places of their scale, never in powers of ten.

    >>> from decimal import Decimal
    >>> decimal_text(pa.array([Decimal("-0.00000001")], pa.decimal128(20, 8))).to_pylist()
    ['-0.00000001']
    """
    kind = values.type
    unscaled = pa.Array.from_buffers(
        pa.decimal128(kind.precision, 0),
        len(values),
        values.buffers(),
        values.null_count,
        offset=values.offset,
    ).cast(pa.string())
    if kind.scale == 0:
        return unscaled
    digits = pc.utf8_lpad(
        pc.utf8_ltrim(unscaled, characters="-"), width=kind.scale + 1, padding="0"
    )
    sign = pc.if_else(pc.starts_with(unscaled, "-"), "-", "")
    integer_part = pc.utf8_slice_codeunits(digits, 0, -kind.scale)
    fraction = pc.utf8_slice_codeunits(digits, -kind.scale, None)
    return pc.binary_join_element_wise(sign, integer_part, ".", fraction, "")


def decimal_text_length(kind: pa.DataType) -> int:
    """Return the bytes of the longest text of a decimal type.

    >>> decimal_text_length(pa.decimal128(2, 2))
    5
    """
    digits = max(kind.precision, kind.scale + 1)
    if kind.scale:
        return len("-.") + digits
    return len("-") + digits
