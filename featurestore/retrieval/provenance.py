"""Lineage inputs of pandas copies of frames, which are recorded in ``DataFrame.attrs``.

pandas copies ``attrs`` in selections, assignments and most other methods, but not in merges and
named aggregations. If a group is created from such a frame, its lineage is known without a
declaration.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from featurestore.registry import featuregroups, origins
from featurestore.registry.origins import GROUP, Object

if TYPE_CHECKING:
    from featurestore.session import Session

_ATTRIBUTE = "featurestore.inputs"
_IDENTITY_FIELDS = ("featuregroup", "source", "version", "delta_version")


def record_inputs(frame: Any, inputs: Sequence[Mapping[str, Any]], location: str) -> Any:
    """Record lineage inputs in a pandas dataframe, and return the dataframe."""
    if inputs:
        # ``to_parquet`` writes attrs as JSON, so they contain plain values only.
        records = [
            {name: each[name] for name in _IDENTITY_FIELDS if each.get(name) is not None}
            for each in inputs
        ]
        frame.attrs[_ATTRIBUTE] = {"store": _store_key(location), "inputs": records}
    return frame


def recorded_inputs(df: object, location: str) -> list[dict[str, Any]]:
    """Return the inputs that a pandas dataframe has recorded from a store.

    ``attrs`` may come from a file, so invalid records are omitted.
    """
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(df, pandas.DataFrame):
        return []
    recorded = df.attrs.get(_ATTRIBUTE)
    if not isinstance(recorded, dict) or recorded.get("store") != _store_key(location):
        return []
    inputs = recorded.get("inputs")
    return [each for each in inputs if _is_input(each)] if isinstance(inputs, list) else []


def existing_inputs(session: Session, df: object) -> tuple[Mapping[str, Any], ...]:
    """Return the recorded inputs of a dataframe without groups that have never existed."""
    recorded = recorded_inputs(df, session.location)
    if not recorded:
        return ()
    with session.registry.reading() as connection:
        return tuple(
            each
            for each in recorded
            if "featuregroup" not in each
            or featuregroups.find(connection, each["featuregroup"], each["version"]) is not None
            # A copy of rows keeps the origins of a group that was removed meanwhile.
            or origins.is_stored(connection, Object(GROUP, each["featuregroup"], each["version"]))
        )


def _is_input(record: object) -> bool:
    if not isinstance(record, dict) or not set(record) <= set(_IDENTITY_FIELDS):
        return False
    names = [record[name] for name in ("featuregroup", "source") if name in record]
    numbers = [record[name] for name in ("version", "delta_version") if name in record]
    is_complete = "featuregroup" not in record or "version" in record
    return (
        len(names) == 1
        and is_complete
        and all(isinstance(name, str) for name in names)
        and all(type(number) is int for number in numbers)
    )


def _store_key(location: str) -> str:
    """Identify a store without its path, since files may be passed to others."""
    return hashlib.sha256(location.encode()).hexdigest()[:16]
