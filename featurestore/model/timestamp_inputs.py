"""Refusal of timestamps as model inputs.

A timestamp is not a number: as an input it would be its microseconds since 1970, which are greater
in every test split than in the training split, and too large for float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import innermost_type
from featurestore.errors import UnsupportedType, listing

_DAY = 86_400_000_000  # microseconds


def is_timestamp_input(dtype: pa.DataType) -> bool:
    """Return whether values are timestamps or lists of timestamps.

    >>> is_timestamp_input(pa.list_(pa.timestamp("us", "UTC"))), is_timestamp_input(pa.date32())
    (True, False)
    """
    return bool(pat.is_timestamp(innermost_type(dtype)))


def refuse_timestamp_inputs(
    inputs: Mapping[str, pa.DataType],
    *,
    transformed: Iterable[str],
    time: str | None,
    without: str,
) -> None:
    """Refuse inputs that are timestamps, unless a transformation converts them.

    Args:
        inputs: The model inputs and their types.
        transformed: The columns that have a transformation.
        time: The time column of the rows, if any, for the hint.
        without: The argument that omits the inputs: "exclude", or "columns" for the other inputs.

    Raises:
        UnsupportedType: Inputs are timestamps; the message lists all their names, and the hint ways
            to derive numbers from the first one.
    """
    converted = set(transformed)
    names = [
        name
        for name, dtype in inputs.items()
        if name not in converted and is_timestamp_input(dtype)
    ]
    if names:
        raise UnsupportedType(
            f"A timestamp is not a number, so these columns cannot be model inputs: "
            f"{listing(names, limit=50)}.",
            hint=timestamp_hint(names, list(inputs), time=time, without=without),
        )


def timestamp_hint(
    names: Sequence[str], inputs: Sequence[str], *, time: str | None, without: str
) -> str:
    """Return the ways to use a timestamp in a model, or to omit it.

    >>> timestamp_hint(["seen"], ["seen", "x"], time="at", without="exclude").split(", or ")[-1]
    "exclude=['seen'] omits it"
    """
    name = names[0]
    age = f"epoch({time}) - epoch({name})" if time and time != name else f"epoch({name})"
    omitted = f"exclude={list(names)!r}"
    if without == "columns":
        omitted = f"columns={[column for column in inputs if column not in names]!r}"
    return (
        f"featurestore.feature({name + '_seconds'!r}, {age!r}) in get_features computes seconds, or "
        f"transformations={{{name!r}: t.cyclical({_DAY:_})}} encodes the time of day, or "
        f"{omitted} omits {'it' if len(names) == 1 else 'them'}"
    )
