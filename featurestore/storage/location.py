"""Names of objects: relative to the root of a storage."""

from __future__ import annotations

from featurestore.errors import InvalidArgument
from featurestore.model.paths import is_relative_path


def check_name(name: str) -> str:
    """Return the name of an object if it is one: relative, without empty parts and dots.

    >>> check_name("featuregroups/weather/v1/_delta_log/00000000000000000000.json")
    'featuregroups/weather/v1/_delta_log/00000000000000000000.json'
    """
    if not is_relative_path(name):
        raise InvalidArgument(
            f"{name!r} is not the name of an object.",
            hint="parts with '/' between them, none of them empty, '.' or '..'",
        )
    return name
