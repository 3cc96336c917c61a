"""Names of groups, datasets, jobs and other entities of a store."""

from __future__ import annotations

import re

from featurestore.errors import InvalidName

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


def check_name(name: str, *, noun: str = "feature group") -> str:
    """Return ``name`` if it is a valid name of a group, dataset or job.

    >>> check_name("origin_traffic")
    'origin_traffic'
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InvalidName(
        f"{name!r} is not a name for a {noun}: names match [a-z][a-z0-9_]{{0,62}}.",
        hint=f"call it {suggest_name(str(name))!r}",
    )


def suggest_name(name: str) -> str:
    """Return the valid name nearest to ``name``.

    >>> suggest_name("../Taxi Trips")
    'taxi_trips'
    """
    cleaned = re.sub(r"_+", "_", re.sub(r"[^a-z0-9_]", "_", name.lower())).strip("_")
    if not cleaned:
        return "my_features"
    if not cleaned[0].isalpha():
        cleaned = f"f_{cleaned}"
    return cleaned[:63]
