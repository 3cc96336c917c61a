"""Options of sources as texts; lists and mappings are JSON, for use on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping

from featurestore.errors import InvalidArgument, listing
from featurestore.model.renames import RENAME, check_rename
from featurestore.model.source import FOLDER_KIND, SourceSpec, names_secret


def text_options(options: Mapping[str, object]) -> dict[str, str]:
    """Convert options to texts; those that are None are left out.

    Raises:
        InvalidArgument: A name suggests a secret, or a value has an unsupported type.

    >>> text_options({"header": False, "dtypes": {"zip": "string"}, "quote": None})
    {'header': 'false', 'dtypes': '{"zip": "string"}'}
    """
    texts = {}
    for name, value in options.items():
        if not isinstance(name, str):
            raise InvalidArgument(
                f"options={{{name!r}: ...}}: names of options are strings.",
                hint="options={'format': 'csv'}",
            )
        if names_secret(name):
            raise InvalidArgument(
                f"options={{{name!r}: ...}} would be stored in plain text.",
                hint="secret='env:NAME'",
            )
        text = check_rename(value) if name == RENAME else _text(name, value)
        if text is not None:
            texts[name] = text
    return texts


def _text(name: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return json.dumps({key: str(each) for key, each in value.items()}, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return json.dumps(list(value), ensure_ascii=False)
    raise InvalidArgument(
        f"options={{{name!r}: {value!r}}} is not a string, a number, a list or a mapping.",
        hint="options={'format': 'csv', 'dtypes': {'zip': 'string'}}",
    )


def check_kind(spec: SourceSpec, options: Mapping[str, str]) -> None:
    """Refuse options of folders for sources of other kinds."""
    folder_options = [name for name in options if name != RENAME]
    if folder_options and spec.kind != FOLDER_KIND:
        raise InvalidArgument(
            f"Source {spec.name!r} is of kind {spec.kind!r}; {listing(folder_options)} are options of "
            "folders of files.",
            hint="rename= is for sources of every kind",
        )
