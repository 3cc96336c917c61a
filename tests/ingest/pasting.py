"""Hints that are run exactly as pasted, with the variables and modules of docs/reference/types.md."""

from __future__ import annotations

import ast
import datetime
import decimal
import io
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.arrow.column_lines import detect_language

MODULES = {
    "datetime": datetime,
    "decimal": decimal,
    "io": io,
    "np": np,
    "pd": pd,
    "pl": pl,
    "pa": pa,
    "pc": pc,
    "duckdb": duckdb,
}
# The variable of an argument in hints, by the result of detect_language.
VARIABLES = {
    "pandas": "df",
    "polars": "df",
    "pyarrow": "table",
    "duckdb": "rows",
    "numpy": "array",
    "numpy records": "array",
    "numpy images": "array",
    "rows": "rows",
    "tuples": "rows",
    "named tuples": "rows",
    "rows of images": "rows",
    "columns": "columns",
}


def pasted(df: Any, *hints: str) -> Any:
    """Return the argument after running the hints of its errors."""
    variable = "frames" if isinstance(df, Iterator) else VARIABLES[detect_language(df)]
    names: dict[str, Any] = {**MODULES, variable: df}
    for hint in hints:
        exec(hint, names)
        statement: Any = ast.parse(hint).body[-1]
        variable = ast.unparse(statement.targets[0]).partition("[")[0]
    return names[variable]
