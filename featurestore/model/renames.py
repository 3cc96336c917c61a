"""New names of columns: a mapping, or snake case for all, as the text of an option."""

from __future__ import annotations

import json
from collections.abc import Mapping

from featurestore.errors import InvalidArgument

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
