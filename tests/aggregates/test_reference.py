"""The reference implementation of window functions, against values that are computed by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from featurestore.aggregates.reference import apply_function
from featurestore.model.plan import WindowOutput

NUMBERS = [4.0, None, 1.0, 1.0, 6.0]

# function, fill value, values in the window, result
CASES: list[tuple[str, Any, list[Any], Any]] = [
    ("count", None, NUMBERS, 4),
    ("count", 0, [], 0),
    ("count_distinct", None, NUMBERS, 3),
    ("count_distinct", None, [None], 0),
    ("sum", None, NUMBERS, 12.0),
    ("sum", -1.0, NUMBERS, 12.0),
    ("sum", None, [None], None),
    ("sum", -1.0, [None], -1.0),
    ("mean", None, NUMBERS, 3.0),
    ("min", None, NUMBERS, 1.0),
    ("max", None, NUMBERS, 6.0),
    ("max", -1.0, [], -1.0),
    ("var", None, NUMBERS, 6.0),
    ("std", None, [1.0, 3.0, 5.0], 2.0),
    ("var", None, [1.0], None),
    ("var", -1.0, [1.0], -1.0),
    ("first", None, NUMBERS, 4.0),
    ("last", None, NUMBERS, 6.0),
    ("last", -1.0, [], -1.0),
    ("any", None, [False, None, True], True),
    ("all", None, [False, None, True], False),
    ("all", True, [None], True),
    ("last_n", None, NUMBERS, [1.0, 1.0, 6.0]),
    ("last_n", None, [None, 2.0], [None, None, 2.0]),
    ("last_n", None, [], [None, None, None]),
    ("last_n", -1.0, NUMBERS, [1.0, 1.0, 6.0]),
    ("last_n", -1.0, [None, 2.0], [-1.0, -1.0, 2.0]),
    ("last_n", -1.0, [], [-1.0, -1.0, -1.0]),
]


def test_reference_matches_values_computed_by_hand(subtests: pytest.Subtests) -> None:
    for function, fill_value, values, expected in CASES:
        output = WindowOutput(
            column="x",
            name="x",
            function=function,
            over=timedelta(days=1),
            offset=timedelta(0),
            where=None,
            fill_value=fill_value,
            n=3,
            kind=pa.float64(),
        )
        with subtests.test(f"{function} of {values}, filled with {fill_value}"):
            assert apply_function(output, values) == expected
