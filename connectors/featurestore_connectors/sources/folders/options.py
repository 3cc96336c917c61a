"""Options of folder sources: file format, dialect and column types, shared by all files of a table.

Option values are strings; lists and mappings are JSON. Missing options are not inferred from the
files, but have the defaults below.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from featurestore.arrow.hints import parse_type
from featurestore.arrow.json_text import JsonError, parse_json
from featurestore.arrow.text_values import TextRules, check_format
from featurestore.arrow.types import feature_type
from featurestore.errors import (
    InvalidArgument,
    InvalidSourceFile,
    UnsupportedType,
    did_you_mean,
    listing,
)
from featurestore.model.source import options_from_strings

# File formats and their extensions, without the extension of the compression.
ENDINGS: Mapping[str, Sequence[str]] = {
    "parquet": (".parquet", ".parq", ".pq"),
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "json": (".json",),
    "arrow": (".arrow",),
    "webdataset": (".tar",),
}
# Options to suggest for files whose extensions do not determine the format.
SIMILAR_ENDINGS: Mapping[str, Mapping[str, str]] = {
    **{ending: {"format": "csv"} for ending in (".txt", ".text", ".data", ".dat", "")},
    ".tab": {"format": "csv", "delimiter": "tab"},
    ".psv": {"format": "csv", "delimiter": "|"},
    ".geojsonl": {"format": "jsonl"},
    **{ending: {"format": "json"} for ending in (".geojson", ".topojson")},
}
NAMES = (
    "format",
    "delimiter",
    "quote",
    "escape",
    "header",
    "names",
    "encoding",
    "decimal",
    "thousands",
    "null_values",
    "date_format",
    "timestamp_format",
    "dtypes",
    "skip_rows",
    "comment",
    "on_bad_rows",
    "timestamp_precision",
)
# All options from "delimiter" to "null_values".
_CSV_OPTIONS = (*NAMES[1:10], "skip_rows", "comment")
_DECIMAL = re.compile(r"decimal(?:128)?\((\d+), *(\d+)\)")


@dataclass(frozen=True)
class FolderOptions:
    """The format of a folder's files, and the declared types of their columns.

    If ``delimiter`` is None, it is a tab for ``.tsv`` files and a comma for others. ``names`` are
    the column names of files without a header. ``dtypes`` are declared types by column. Date and
    timestamp formats are by column; the format under ``""`` applies to all other columns.
    """

    format: str | None = None
    delimiter: str | None = None
    quote: str = '"'
    escape: str = ""
    header: bool = True
    names: tuple[str, ...] = ()
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str = ""
    null_values: tuple[str, ...] = ()
    date_format: Mapping[str, str] = field(default_factory=dict)
    timestamp_format: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, pa.DataType] = field(default_factory=dict)
    skip_rows: int = 0
    comment: str = ""
    on_bad_rows: str = "error"
    timestamp_precision: str | None = None

    def rules(self, column: str, *, declared: bool = False) -> TextRules:
        """Return the rules that parse the strings of a column."""
        return TextRules(
            decimal=self.decimal,
            thousands=self.thousands,
            date_format=self.date_format.get(column, self.date_format.get("")),
            timestamp_format=self.timestamp_format.get(column, self.timestamp_format.get("")),
            precision=self.timestamp_precision,
            declared=declared,
        )


@dataclass(frozen=True)
class TableName:
    """The table to read, for error messages and for the calls in their hints.

    ``options`` are the options of the call, and ``declared`` the types in ``dtypes``.
    """

    source: str
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)

    def call(self, **options: object) -> str:
        """Return the call that reads the table, with additional options.

        >>> TableName("lake", "orders").call(dtypes={"zip": "string"})
        "read_source('lake', path='orders', dtypes={'zip': 'string'})"
        """
        arguments = [repr(self.source)]
        if self.path is not None:
            arguments.append(f"path={self.path!r}")
        if isinstance(options.get("dtypes"), Mapping):
            options["dtypes"] = {**self.declared, **options["dtypes"]}  # type: ignore[dict-item]
        merged = {**options_from_strings(self.options), **options}
        arguments += [f"{name}={value!r}" for name, value in merged.items()]
        return f"read_source({', '.join(arguments)})"

    def invalid_file_error(self, message: str, *, hint: str | None = None) -> InvalidSourceFile:
        """Return an InvalidSourceFile error with the name of the source."""
        return InvalidSourceFile(f"Source {self.source!r}: {message}", hint=hint)


def parse_options(options: Mapping[str, str]) -> FolderOptions:
    """Parse the options of a folder source.

    Raises:
        InvalidArgument: An option has an invalid value, or two options conflict.

    >>> parse_options({"delimiter": ";", "dtypes": '{"zip": "string"}'}).dtypes
    {'zip': DataType(string)}
    """
    values: dict[str, Any] = {
        name: _PARSERS[name](name, options[name]) for name in NAMES if name in options
    }
    parsed = FolderOptions(**values)
    _check_together(parsed, options)
    return parsed


def _check_together(parsed: FolderOptions, options: Mapping[str, str]) -> None:
    """Refuse options that conflict with each other."""
    csv_options = [name for name in _CSV_OPTIONS if name in options]
    if csv_options and parsed.format not in (None, "csv"):
        raise InvalidArgument(
            f"Options {listing(csv_options)} require format='csv', not format={parsed.format!r}.",
            hint="format='csv'",
        )
    if parsed.names and parsed.header:
        raise InvalidArgument(
            "names= is only allowed for files without a header.",
            hint="header=False, or rename={'name in the file': 'new name'}",
        )
    if not parsed.header and not parsed.names:
        raise InvalidArgument(
            "header=False requires names= for the columns.", hint="names=['id', 'total']"
        )
    signs = {"delimiter": parsed.delimiter or ",", "quote": parsed.quote, "comment": parsed.comment}
    for name, sign in signs.items():
        equal_signs = [word for word in signs if word != name and signs[word] == sign]
        if sign and equal_signs:
            raise InvalidArgument(
                f"{name}={sign!r} and {equal_signs[0]}={sign!r} are the same character."
            )
    if parsed.thousands and parsed.thousands == parsed.decimal:
        raise InvalidArgument(
            f"decimal={parsed.decimal!r} and thousands={parsed.thousands!r} are the same character.",
            hint="decimal=',', thousands='.'",
        )


def _choice_parser(*choices: str) -> Callable[[str, str], str]:
    """Return a parser that accepts only the choices."""

    def parse(name: str, text: str) -> str:
        if text in choices:
            return text
        raise InvalidArgument(
            f"Unknown {name}={text!r}. Available: {listing(choices)}.",
            hint=did_you_mean(text, choices, write=f"{name}={{!r}}") or f"{name}={choices[0]!r}",
        )

    return parse


def _parse_character(name: str, text: str) -> str:
    """Parse a single ASCII character; ``tab`` means a tab."""
    # A tab is difficult to enter on a command line.
    text = {r"\t": "\t", "tab": "\t"}.get(text, text)
    if len(text) == 1 and text.isascii() and text not in "\r\n\0":
        return text
    raise InvalidArgument(f"{name}={text!r} is not a single ASCII character.", hint=f"{name}=';'")


def _parse_number_sign(name: str, text: str) -> str:
    """Parse a separator in numbers: a single character, such as a no-break space."""
    category = unicodedata.category(text) if len(text) == 1 else "C"
    # Letters, digits and signs are characters of numbers, also of those with an exponent.
    if not category.startswith(("C", "L", "N")) and text not in "+-":
        return text
    raise InvalidArgument(
        f"{name}={text!r} is not a single punctuation mark or space.", hint=f"{name}=','"
    )


def _parse_optional_number_sign(name: str, text: str) -> str:
    return "" if text == "" else _parse_number_sign(name, text)


def _parse_optional_character(name: str, text: str) -> str:
    return "" if text == "" else _parse_character(name, text)


def _parse_boolean(name: str, text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise InvalidArgument(f"{name}={text!r} is not true or false.", hint=f"{name}=False")


def _parse_count(name: str, text: str) -> int:
    if text.isdecimal():
        return int(text)
    raise InvalidArgument(f"{name}={text!r} is not a number of lines.", hint=f"{name}=1")


def _parse_strings(name: str, text: str) -> tuple[str, ...]:
    # A single string may be written without brackets.
    value = _parse_json(text) if text.startswith("[") else [text]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise InvalidArgument(f"{name}={text} is not a list of strings.", hint=f"{name}=['a', 'b']")


def _parse_mapping(name: str, text: str) -> dict[str, str]:
    value = _parse_json(text)
    if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
        return value
    raise InvalidArgument(
        f"{name}={text} is not a mapping of strings.", hint=f"{name}={{'zip': 'string'}}"
    )


def _parse_json(text: str) -> Any:
    try:
        return parse_json(text)
    except JsonError:
        return None


def _parse_encoding(name: str, text: str) -> str:
    try:
        # Python also has codecs that are not encodings of text ("base64"), or cannot report the position
        # of invalid bytes ("idna").
        with suppress(UnicodeDecodeError):
            b"\xff".decode(text, "surrogateescape")
        return codecs.lookup(text).name
    except (LookupError, UnicodeError):
        raise InvalidArgument(
            f"{name}={text!r} is not an encoding of text that Python supports.",
            hint=f"{name}='latin-1'",
        ) from None


def _parse_formats(name: str, text: str) -> dict[str, str]:
    """Parse time formats by column; a single format applies to all columns."""
    by_column = _parse_mapping(name, text) if text.startswith("{") else {"": text}
    for pattern in by_column.values():
        try:
            check_format(pattern)
        except ValueError as error:
            raise InvalidArgument(f"{name}: {error}.", hint=f"{name}='%d.%m.%Y'") from error
    return by_column


def _parse_types(name: str, text: str) -> dict[str, pa.DataType]:
    return {
        column: _parse_type(column, word) for column, word in _parse_mapping(name, text).items()
    }


def _parse_type(column: str, word: str) -> pa.DataType:
    """Parse the declared type of a column."""
    decimal = _DECIMAL.fullmatch(word)
    if decimal is not None and 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1]):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    try:
        dtype = feature_type(parse_type(word, column=column))
    except UnsupportedType as error:
        raise InvalidArgument(f"dtypes: {error.message}", hint=error.hint) from error
    if dtype is None:
        raise InvalidArgument(f"dtypes: unsupported type {word!r} of column {column!r}.")
    return dtype


_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    "format": _choice_parser(*ENDINGS),
    "delimiter": _parse_character,
    "quote": _parse_optional_character,
    "escape": _parse_optional_character,
    "header": _parse_boolean,
    "names": _parse_strings,
    "encoding": _parse_encoding,
    "decimal": _parse_number_sign,
    "thousands": _parse_optional_number_sign,
    "null_values": _parse_strings,
    "date_format": _parse_formats,
    "timestamp_format": _parse_formats,
    "dtypes": _parse_types,
    "skip_rows": _parse_count,
    "comment": _parse_optional_character,
    "on_bad_rows": _choice_parser("error", "quarantine"),
    "timestamp_precision": _choice_parser("us"),
}
