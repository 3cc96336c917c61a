"""Hints that are run exactly as pasted, with ``df`` as the caller's argument."""

from __future__ import annotations

from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa

import featurestore
from featurestore.errors import FeatureStoreError

MODULES = {"featurestore": featurestore, "pd": pd, "pl": pl, "pa": pa, "duckdb": duckdb}


def pasted(df: Any, *hints: str) -> Any:
    """Return the argument after running the hints of its errors; each error has a hint itself."""
    names: dict[str, Any] = {**MODULES, "df": df}
    for hint in hints:
        try:
            exec(hint, names)
        except FeatureStoreError as error:
            exec(str(error.hint), names)
    return names["df"]
