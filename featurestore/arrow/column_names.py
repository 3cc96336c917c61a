"""Feature names: validation rules, and valid names for the columns of any dataframe."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from featurestore.errors import InvalidName

_FEATURE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SNAKE = re.compile(r"(?!__fs_)[a-z_][a-z0-9_]*")
RESERVED_PREFIX = "__fs_"
_SURROGATES = re.compile("[\ud800-\udfff]")


def is_utf8_string(value: object) -> bool:
    """Return whether a value is a string that UTF-8 can encode, as JSON and Arrow require.

    >>> is_utf8_string("a"), is_utf8_string(0), is_utf8_string(chr(0xD800))
    (True, False, False)
    """
    return isinstance(value, str) and not _SURROGATES.search(value)


def check_feature_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return ``names`` if each is a valid feature name and none repeats, ignoring case.

    Raises:
        InvalidName: Lists every invalid column name and the code that renames them.
    """
    names = tuple(names)
    invalid_names = [name for name in names if not _is_feature_name(name)]
    names_by_lower_case: dict[str, str] = {}
    duplicates: list[str] = []
    for name in names:
        # DuckDB and Spark treat names that differ only in case as equal.
        folded = name.lower()
        if folded in names_by_lower_case:
            duplicates.append(f"{names_by_lower_case[folded]!r} and {name!r}")
        names_by_lower_case.setdefault(folded, name)
    if invalid_names or duplicates:
        line = rename_hint(names, to_feature_names(names))
    if invalid_names:
        invalid_list = ", ".join(map(repr, dict.fromkeys(invalid_names)))
        raise InvalidName(
            f"Invalid feature names: {invalid_list}. "
            f"Names match [A-Za-z_][A-Za-z0-9_]* and do not begin with '{RESERVED_PREFIX}'.",
            hint=line,
        )
    if duplicates:
        raise InvalidName(
            f"Feature names must be unique ignoring case; these are not: {'; '.join(duplicates)}.",
            hint=line,
        )
    return names


def _is_feature_name(name: str) -> bool:
    return bool(_FEATURE.fullmatch(name)) and not name.lower().startswith(RESERVED_PREFIX)


def suggest_renames(names: Iterable[str]) -> dict[str, str]:
    """Return new names for invalid feature names and for names that repeat, ignoring case.

    >>> suggest_renames(["id", "Country Name", "1978"])
    {'Country Name': 'Country_Name', '1978': 'f_1978'}
    """
    names = tuple(names)
    renames: dict[str, str] = {}
    used_names: set[str] = set()
    for name in names:
        if not _is_feature_name(name) or name.lower() in used_names:
            renames[name] = _make_unique_name(
                suggest_feature_name(name), {*names, *renames.values()}
            )
        used_names.add(name.lower())
    return renames


def snake_case_names(names: Iterable[str]) -> dict[str, str]:
    """Return distinct snake-case names for the columns whose names have another form.

    >>> snake_case_names(["id", "Country Name", "unitPrice", "1978", "Año"])
    {'Country Name': 'country_name', 'unitPrice': 'unit_price', '1978': 'f_1978', 'Año': 'ano'}
    """
    names = tuple(names)
    renames: dict[str, str] = {}
    # Names that are already valid keep their form; other names get a suffix if they collide.
    snakes = {name for name in names if _SNAKE.fullmatch(name)}
    for name in names:
        if name in snakes:
            continue
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
        renames[name] = _make_unique_name(
            suggest_feature_name(words).lower(), {*snakes, *renames.values()}
        )
    return renames


def to_feature_names(names: Iterable[object]) -> list[str]:
    """Return feature names for all columns of a dataframe; unique valid names are unchanged.

    >>> to_feature_names(["a", "a", "wind speed", 0, ("mean", "x")])
    ['a', 'a_2', 'wind_speed', 'col_0', 'mean_x']
    """
    names = list(names)
    valid_names = {name for name in names if isinstance(name, str) and _is_feature_name(name)}
    used_names: set[str] = set()
    new_names = []
    for name in names:
        new_name = _to_feature_name(name)
        if new_name != name or new_name.lower() in used_names:
            new_name = _make_unique_name(new_name, {*valid_names, *used_names})
        used_names.add(new_name.lower())
        new_names.append(new_name)
    return new_names


def rename_hint(names: Sequence[object], new_names: Sequence[str]) -> str:
    """Return the line that renames the columns of the caller's dataframe.

    >>> rename_hint(["id", "wind speed"], ["id", "wind_speed"])
    "df = featurestore.rename(df, {'wind speed': 'wind_speed'})"
    >>> rename_hint(["a", "a"], ["a", "a_2"])
    "df = featurestore.rename(df, ['a', 'a_2'])"
    """
    # Code cannot repeat other labels, such as times, and a dict has no repeated names.
    is_plain = all(isinstance(name, str | int) for name in names)
    if not is_plain or len(set(names)) < len(names):
        return f"df = featurestore.rename(df, {list(new_names)!r})"
    renames = {}
    for name, new_name in zip(names, new_names, strict=True):
        if name != new_name:
            renames[name] = new_name
    return f"df = featurestore.rename(df, {renames!r})"


def _to_feature_name(name: object) -> str:
    """Return the feature name most similar to a column label."""
    if isinstance(name, str):
        return name if _is_feature_name(name) else suggest_feature_name(name)
    if isinstance(name, tuple):
        return suggest_feature_name("_".join(str(level) for level in name if level != ""))
    if isinstance(name, int) and name >= 0:
        return f"col_{name}"
    return suggest_feature_name(f"col_{name}")


def _make_unique_name(name: str, used_names: set[str]) -> str:
    """Return an unused name, with a numeric suffix if needed."""
    used_lower = {used_name.lower() for used_name in used_names}
    number, candidate = 1, name
    while candidate.lower() in used_lower:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def suggest_feature_name(name: str) -> str:
    """Return the valid feature name most similar to ``name``.

    >>> suggest_feature_name("wind speed (m/s)")
    'wind_speed_m_s'
    """
    # Separates accents from their letters, so that the letters remain.
    letters = unicodedata.normalize("NFKD", name)
    letters = re.sub(r"[\u0300-\u036f]", "", letters)  # accents
    cleaned = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9_]", "_", letters)).strip("_")
    if not cleaned:
        return "feature"
    if cleaned[0].isdigit():
        return f"f_{cleaned}"
    return cleaned


def quoted(name: str) -> str:
    """Quote a name for SQL.

    >>> quoted("wind speed")
    '"wind speed"'
    """
    return '"{}"'.format(name.replace('"', '""'))
