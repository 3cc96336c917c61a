"""Names: store entities, feature references, column renames, secret references and derived columns.

A derived name, of a mask, a cell of a list, a window or a prediction, may be that of another column.
One column would then silently replace the other, so every result with derived columns passes all its
names to ``check_distinct_names``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from featurestore.arrow.column_names import snake_case_names
from featurestore.errors import (
    ColumnConflict,
    InvalidArgument,
    InvalidName,
    InvalidReference,
    did_you_mean,
    listing,
)
from featurestore.model.arguments import parse_version

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HINT = "secret='env:NAME' names an environment variable, secret='file:/run/secrets/name' a file"

# The secret= of sources and online stores whose drivers may use the credentials of the machine: its
# environment variables, password files, cloud roles and tickets.
ENVIRONMENT = "environment"

# The option of sources and queries that renames columns.
RENAME = "rename"
SNAKE_CASE = "snake_case"

_REFERENCE = re.compile(
    r"\s*(?:(?P<group>[a-z][a-z0-9_]{0,62})(?:@v(?P<version>[1-9][0-9]*))?[.:])?"
    r"(?P<feature>[A-Za-z_][A-Za-z0-9_]*|\*)(?:\s+as\s+(?P<alias>[A-Za-z_][A-Za-z0-9_]*))?\s*",
    re.IGNORECASE,
)

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
PRESENT = "_present"


def check_name(name: str, *, noun: str = "feature group") -> str:
    """Return ``name`` if it is a valid name for a group, dataset or job.

    >>> check_name("origin_traffic")
    'origin_traffic'
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    if not isinstance(name, str):
        raise InvalidName(
            f"The {noun} name is a {type(name).__name__}, not a string.",
            hint="pass a string, such as 'my_features'",
        )
    raise InvalidName(
        f"{name!r} is not a valid {noun} name: names match [a-z][a-z0-9_]{{0,62}}.",
        hint=f"call it {suggest_name(name)!r}",
    )


def refuse_name_before_data(data: object, name: object, *, call: str) -> None:
    """Raise InvalidName if the first two arguments of a method that writes data are swapped.

    Args:
        data: The first argument, which should be data.
        name: The second argument, which should be the name.
        call: The name of the method.
    """
    if isinstance(data, str) and not isinstance(name, str):
        raise InvalidName(
            f"The name in {call} is a {type(name).__name__}, not a string: data comes before the name.",
            hint=f"store.{call}(data, {suggest_name(data)!r})",
        )


def suggest_name(name: str) -> str:
    """Return the valid name most similar to ``name``.

    >>> suggest_name("../Taxi Trips")
    'taxi_trips'
    """
    cleaned = re.sub(r"_+", "_", re.sub(r"[^a-z0-9_]", "_", name.lower())).strip("_")
    if not cleaned:
        return "my_features"
    if not cleaned[0].isalpha():
        cleaned = f"f_{cleaned}"
    return cleaned[:63]


@dataclass(frozen=True, slots=True)
class FeatureReference:
    """A reference to a feature; ``group`` and ``version`` are None if not specified."""

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
    """Parse a feature reference.

    >>> parse_reference("weather@v2.temp as origin_temp")
    FeatureReference(feature='temp', group='weather', version=2, alias='origin_temp')
    >>> str(parse_reference("weather:temp"))
    'weather.temp'
    """
    match = None
    if isinstance(text, str):
        match = _REFERENCE.fullmatch(text)
    # The pattern ignores case for the word ``as``; group names are lower case.
    if match is None or (match["group"] or "") != (match["group"] or "").lower():
        raise InvalidReference(
            f"{text!r} is not a feature reference.",
            hint="write 'feature', 'group.feature', 'group@v2.feature', 'group.*' "
            "or 'group.feature as name'",
        )
    if match["feature"] == "*" and (match["group"] is None or match["alias"]):
        raise InvalidReference(
            f"{text!r}: '*' needs a group and cannot have an alias.", hint="write 'group.*'"
        )
    version = _version(match["version"])
    return FeatureReference(match["feature"], match["group"], version, match["alias"])


def format_group_reference(name: str, version: int | None) -> str:
    """Format a group reference that ``parse_group_reference`` can parse.

    >>> format_group_reference("weather", 2), format_group_reference("weather", None)
    ('weather@v2', 'weather')
    """
    if version is None:
        return name
    return f"{name}@v{version}"


def parse_group_reference(text: str) -> tuple[str, int | None]:
    """Parse a group reference such as ``weather`` or ``weather@v2`` to a name and a version.

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
    """Return a suggestion of a similar group, or None.

    A name with a version suffix, such as ``teams_1``, suggests ``teams@v1``.

    >>> suggest_group("teams_1", ["teams"], feature="budget")
    "did you mean 'teams@v1.budget'?"
    >>> suggest_group("wether", ["weather", "planes"])
    "did you mean 'weather'?"
    """
    names = list(group_names)
    suffix = ""
    if feature is not None:
        suffix = f".{feature}"
    # Hopsworks appends the version to the name of a group.
    version_match = re.fullmatch(r"(.+)_([1-9][0-9]*)", name)
    if version_match is not None and version_match[1] in names:
        return f"did you mean {f'{version_match[1]}@v{version_match[2]}{suffix}'!r}?"
    return did_you_mean(name, names, write=f"'{{}}{suffix}'")


def check_rename(rename: object) -> str | None:
    """Return the option string of a rename argument, or None without one.

    Raises:
        InvalidArgument: The argument is neither "snake_case" nor a mapping of names.

    >>> check_rename({"Country Name": "country_name"})
    '{"Country Name": "country_name"}'
    """
    if rename is None:
        return None
    value = rename
    # Accepts the returned option string, so that stored options can be passed on.
    if isinstance(rename, str) and rename != SNAKE_CASE:
        try:
            value = json.loads(rename)
        except ValueError:
            value = None
    if value == SNAKE_CASE:
        return SNAKE_CASE
    if isinstance(value, Mapping):
        names = [*value.keys(), *value.values()]
        if all(isinstance(name, str) for name in names):
            return json.dumps(dict(value), ensure_ascii=False)
    raise InvalidArgument(
        f"rename={rename!r} is not a mapping of names.",
        hint="rename={'Country Name': 'country_name'}, or rename='snake_case'",
    )


def resolve_renames(rename: str, names: Sequence[str], *, owner: str) -> dict[str, str]:
    """Return a mapping of old to new column names.

    ``rename`` is the result of ``check_rename``; ``owner`` is the table or dataframe of the
    columns, for error messages.

    Raises:
        InvalidArgument: A renamed column does not exist.

    >>> resolve_renames('{"Country Name": "country"}', ["Country Name", "id"], owner="the dataframe")
    {'Country Name': 'country'}
    """
    if rename == SNAKE_CASE:
        return snake_case_names(names)
    renames: dict[str, str] = json.loads(rename)
    unknown = [name for name in renames if name not in names]
    if unknown:
        raise InvalidArgument(
            f"rename: unknown columns {listing(unknown)} of {owner}. Available: "
            f"{listing(names, limit=50)}.",
            hint=did_you_mean(unknown[0], names, write="rename={{{!r}: '...'}}"),
        )
    return renames


@dataclass(frozen=True)
class SecretReference:
    """The location of a secret: an environment variable ("env"), or a file ("file")."""

    kind: Literal["env", "file"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def parse_secret(text: str) -> SecretReference:
    """Parse a secret reference. An invalid string may be the secret itself, so the error omits it.

    >>> parse_secret("env:HOOK")
    SecretReference(kind='env', name='HOOK')
    """
    location, _, name = text.partition(":")
    if location == "env" and _VARIABLE.fullmatch(name):
        return SecretReference("env", name)
    if location == "file" and name.strip() and "\0" not in name:
        return SecretReference("file", name)
    raise InvalidArgument("secret= is not a reference to a secret.", hint=_HINT)


def parse_credentials(text: str) -> SecretReference | None:
    """Parse the secret of a source or an online store: a reference, or None for "environment".

    >>> parse_credentials("environment"), parse_credentials("env:PW")
    (None, SecretReference(kind='env', name='PW'))
    """
    if text == ENVIRONMENT:
        return None
    try:
        return parse_secret(text)
    except InvalidArgument as error:
        raise InvalidArgument(
            error.message,
            hint=f"{_HINT}; secret={ENVIRONMENT!r} lets the driver use the credentials of the machine",
        ) from error


def _version(text: str | None) -> int | None:
    return None if text is None else parse_version(text)


# -- derived columns ------------------------------------------------------------------------


class NamedColumn(NamedTuple):
    """A column of a result: its name and its description, such as "column 'x'" or a window."""

    name: str
    description: str


def mask_name(column: str) -> str:
    """Return the name of the mask of non-null values of a column.

    >>> mask_name("coupon")
    'coupon_present'
    """
    return column + PRESENT


def cell_names(column: str, cells: int) -> list[str]:
    """Return the names of the cells of a list, an image or a one-hot vector.

    >>> cell_names("color", 2)
    ['color_0', 'color_1']
    """
    return [f"{column}_{cell}" for cell in range(cells)]


def check_distinct_names(
    columns: Iterable[NamedColumn], *, hint: Callable[[NamedColumn], str]
) -> None:
    """Refuse columns with the same name; like the engines, ignore case.

    Args:
        columns: All columns of a result, existing ones before derived ones.
        hint: Returns the hint for a column whose name an earlier column has.

    >>> columns = [NamedColumn("c_0", "column 'c_0'"), NamedColumn("c_0", "element 0 of column 'c'")]
    >>> check_distinct_names(columns, hint=lambda column: "columns=['c']")
    Traceback (most recent call last):
    featurestore.errors.ColumnConflict: element 0 of column 'c' has the same output name 'c_0' as column 'c_0'.
    Hint: columns=['c']

    Raises:
        ColumnConflict: Two columns have the same name.
    """
    descriptions: dict[str, str] = {}
    for column in columns:
        folded = column.name.lower()
        if folded in descriptions:
            raise ColumnConflict(
                f"{column.description} has the same output name {column.name!r} as "
                f"{descriptions[folded]}.",
                hint=hint(column),
            )
        descriptions[folded] = column.description
