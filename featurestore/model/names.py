"""Naming rules of groups, datasets, jobs and features."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from featurestore.errors import InvalidName

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_FEATURE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED_PREFIX = "__fs_"


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


def check_feature_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return ``names`` if each is a valid feature name and none repeats, ignoring case.

    Raises:
        InvalidName: Lists every offending column and the rename to paste.
    """
    names = tuple(names)
    renames: dict[str, str] = {}
    seen: dict[str, str] = {}
    twins: list[str] = []
    for name in names:
        if not _FEATURE.fullmatch(name) or name.lower().startswith(RESERVED_PREFIX):
            renames[name] = _unused(suggest_feature_name(name), {*names, *renames.values()})
        folded = name.lower()
        if folded in seen:
            twins.append(f"{seen[folded]!r} and {name!r}")
        seen.setdefault(folded, name)
    if renames:
        listed = ", ".join(repr(name) for name in renames)
        raise InvalidName(
            f"Not feature names: {listed}. "
            f"Names match [A-Za-z_][A-Za-z0-9_]* and do not begin with '{RESERVED_PREFIX}'.",
            hint=f"rename the columns, for example with pandas: df.rename(columns={renames!r})",
        )
    if twins:
        raise InvalidName(
            f"Feature names must be unique ignoring case; these are not: {'; '.join(twins)}.",
            hint=f"with pandas: df.rename(columns={_apart(names)!r})",
        )
    return names


def _apart(names: tuple[str, ...]) -> dict[str, str]:
    """Return new names for those that differ from earlier ones in case only."""
    renames: dict[str, str] = {}
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            renames[name] = _unused(name, {*names, *renames.values()})
        seen.add(name.lower())
    return renames


def _unused(name: str, taken: set[str]) -> str:
    """Return a name that nothing has yet, with a number where need be."""
    folded = {each.lower() for each in taken}
    number, found = 1, name
    while found.lower() in folded:
        number += 1
        found = f"{name}_{number}"
    return found


def suggest_feature_name(name: str) -> str:
    """Return the valid feature name nearest to ``name``.

    >>> suggest_feature_name("wind speed (m/s)")
    'wind_speed_m_s'
    """
    letters = unicodedata.normalize("NFKD", name)
    letters = re.sub(r"[\u0300-\u036f]", "", letters)  # accents
    cleaned = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9_]", "_", letters)).strip("_")
    if not cleaned:
        return "feature"
    if cleaned[0].isdigit():
        return f"f_{cleaned}"
    return cleaned
