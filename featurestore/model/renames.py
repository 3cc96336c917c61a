"""New names of columns: a mapping, or snake case for all, as the text of an option."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from featurestore.arrow.column_names import snake_case_names
from featurestore.errors import InvalidArgument, did_you_mean, listing

# The option of a source, and of a query, that renames columns.
RENAME = "rename"
SNAKE_CASE = "snake_case"


def check_rename(rename: object) -> str | None:
    """Return a renaming as the text of an option, None without a renaming.

    Raises:
        InvalidArgument: It is neither "snake_case" nor a mapping of names.

    >>> check_rename({"Country Name": "country_name"})
    '{"Country Name": "country_name"}'
    """
    if rename is None:
        return None
    value = rename
    if isinstance(rename, str) and rename != SNAKE_CASE:
        try:
            value = json.loads(rename)
        except ValueError:
            value = None
    if value == SNAKE_CASE:
        return SNAKE_CASE
    if isinstance(value, Mapping):
        texts = [*value.keys(), *value.values()]
        if all(isinstance(each, str) for each in texts):
            return json.dumps(dict(value), ensure_ascii=False)
    raise InvalidArgument(
        f"rename={rename!r} is not a mapping of names.",
        hint="rename={'Country Name': 'country_name'}, or rename='snake_case'",
    )


def renames_of(rename: str, names: Sequence[str], *, owner: str) -> dict[str, str]:
    """Return the new names of columns by their old names.

    ``rename`` is the result of ``check_rename``, and ``owner`` the table or frame of the columns in
    messages.

    Raises:
        InvalidArgument: A renamed column does not exist.

    >>> renames_of('{"Country Name": "country"}', ["Country Name", "id"], owner="the dataframe")
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
