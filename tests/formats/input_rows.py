"""Rows of every type that can be an input of a model."""

from __future__ import annotations

import pyarrow as pa

from featurestore.plugins.format import find_format
from featurestore.testing.format_cases import example_table, supported


def rows_of_inputs(data_format: str, count: int) -> pa.Table:
    """Return rows of all types that a format supports, and their numbers as the column ``id``."""
    table = example_table(supported(find_format(data_format)), rows=count)
    # A list of timestamps is no input of a model.
    names = [
        field.name
        for field in table.schema
        if not (pa.types.is_nested(field.type) and "timestamp" in str(field.type))
    ]
    return table.select(names).append_column("id", pa.array(range(count)))
