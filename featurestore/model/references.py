"""Feature references.

``f``, ``group.f``, ``group@v2.f``, ``group.*``, each with an optional ``as name``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from featurestore.errors import (
    InvalidReference,
    did_you_mean,
)
from featurestore.model.counts import parse_version

_REFERENCE = re.compile(
    r"\s*(?:(?P<group>[a-z][a-z0-9_]{0,62})(?:@v(?P<version>[1-9][0-9]*))?[.:])?"
    r"(?P<feature>[A-Za-z_][A-Za-z0-9_]*|\*)(?:\s+as\s+(?P<alias>[A-Za-z_][A-Za-z0-9_]*))?\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class FeatureReference:
    """One feature as a user names it; ``group`` and ``version`` are None where left open."""

    feature: str
    group: str | None = None
    version: int | None = None
    alias: str | None = None

    @property
    def is_star(self) -> bool:
        """Whether the reference selects all features of the group."""
        return self.feature == "*"

    @property
    def name(self) -> str:
        """The column name in the result."""
        return self.alias or self.feature

    def __str__(self) -> str:
        text = self.feature
        if self.group is not None:
            text = f"{format_group_reference(self.group, self.version)}.{text}"
        if self.alias is not None:
            text += f" as {self.alias}"
        return text


def parse_reference(text: str) -> FeatureReference:
    """Return the reference that ``text`` spells.

    >>> parse_reference("weather@v2.temp as origin_temp")
    FeatureReference(feature='temp', group='weather', version=2, alias='origin_temp')
    >>> str(parse_reference("weather:temp"))
    'weather.temp'
    """
    match = None
    if isinstance(text, str):
        match = _REFERENCE.fullmatch(text)
    if match is None or (match["group"] or "") != (match["group"] or "").lower():
        raise InvalidReference(
            f"{text!r} is not a feature reference.",
            hint="write 'feature', 'group.feature', 'group@v2.feature', 'group.*' "
            "or 'group.feature as name'",
        )
    if match["feature"] == "*" and (match["group"] is None or match["alias"]):
        raise InvalidReference(
            f"{text!r}: '*' needs a group and takes no alias.", hint="write 'group.*'"
        )
    version = _version(match["version"])
    return FeatureReference(match["feature"], match["group"], version, match["alias"])


def format_group_reference(name: str, version: int | None) -> str:
    """Return the text that ``parse_group_reference`` reads back.

    >>> format_group_reference("weather", 2), format_group_reference("weather", None)
    ('weather@v2', 'weather')
    """
    if version is None:
        return name
    return f"{name}@v{version}"


def parse_group_reference(text: str) -> tuple[str, int | None]:
    """Return name and version of a group reference such as ``weather`` or ``weather@v2``.

    >>> parse_group_reference("weather@v2")
    ('weather', 2)
    """
    match = re.fullmatch(r"([a-z][a-z0-9_]{0,62})(?:@v([1-9][0-9]*))?", text)
    if match is None:
        raise InvalidReference(
            f"{text!r} is not a feature group.", hint="write 'group' or 'group@v2'"
        )
    return match[1], _version(match[2])


def suggest_group(
    name: str, group_names: Iterable[str], *, feature: str | None = None
) -> str | None:
    """Return a suggestion of a similar group; None without one.

    A name that ends in its version, ``teams_1``, means ``teams@v1``.

    >>> suggest_group("teams_1", ["teams"], feature="budget")
    "did you mean 'teams@v1.budget'?"
    >>> suggest_group("wether", ["weather", "planes"])
    "did you mean 'weather'?"
    """
    names = list(group_names)
    suffix = ""
    if feature is not None:
        suffix = f".{feature}"
    version_match = re.fullmatch(r"(.+)_([1-9][0-9]*)", name)
    if version_match is not None and version_match[1] in names:
        return f"did you mean {f'{version_match[1]}@v{version_match[2]}{suffix}'!r}?"
    return did_you_mean(name, names, write=f"'{{}}{suffix}'")


def _version(text: str | None) -> int | None:
    return None if text is None else parse_version(text)
