"""Registered sources: registrations, job inputs, reads and check reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, overload
from urllib.parse import parse_qsl, urlsplit

from featurestore.arrow.json_text import JsonError, parse_json
from featurestore.errors import InvalidArgument
from featurestore.model import display
from featurestore.model.arguments import with_suggestions
from featurestore.model.json_object import JsonMapping
from featurestore.model.names import RENAME, check_name, check_rename, parse_credentials
from featurestore.model.records import OMIT_DEFAULT, Checked, Codec, Record

_SECRET_WORDS = ("password", "passwd", "pwd", "secret", "token", "key")
# Access key IDs are user names, not secrets.
_USER_WORD = "access_key_id"
# The kind of local paths without a scheme.
FOLDER_KIND = "file"
_ALIASES = {"postgres": "postgresql", "sqlite3": "sqlite"}
_FOLDER_SCHEMES = ("abfs", "abfss", "az", "azure", "gcs", "gs", "hdfs", "s3", "s3a", "s3n")
_PATH_KINDS = ("delta", "duckdb", FOLDER_KIND, "lance", "sqlite")
# SQLAlchemy reads the rest as a path: ``catalog.db`` is relative, ``/data/catalog.db`` absolute.
_SQLITE_CATALOG = "iceberg+sqlite:///"


@dataclass(frozen=True)
class SourceSpec(Record, closed=True):
    """The registration of a source.

    ``kind`` is the name of an entry point of ``featurestore.sources``. ``secret`` is a reference to
    the secret ("env:NAME", "file:path"), never its value, or "environment", with which the driver
    uses the credentials of the machine. ``created`` is in microseconds since
    1970.
    """

    name: str
    kind: str
    uri: str
    secret: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    created: int = 0

    __repr__ = display.record_repr

    @classmethod
    def from_text(cls, text: str) -> SourceSpec:
        """Parse a registration from JSON text; raise ValueError if it is invalid."""
        spec = cls.from_json(json.loads(text))
        if spec.secret is not None:
            parse_credentials(spec.secret)
        check_uri(spec.uri)
        check_name(spec.name, noun="source")
        return spec


def source_kind(uri: str) -> str:
    """Return the source kind of a URI: its scheme, or "file" for local and remote folders.

    >>> source_kind("postgresql://shop-db/orders"), source_kind("delta+/data/orders"), source_kind("raw/orders")
    ('postgresql', 'delta', 'file')
    >>> source_kind("s3://lake/orders"), source_kind("delta+s3://lake/orders")
    ('file', 'delta')
    """
    scheme, separator, _ = uri.partition(":")
    is_scheme = separator and scheme.replace("+", "").isalnum() and "//" in uri
    before, plus, _ = uri.partition("+")
    if is_scheme:
        scheme_kind = scheme.partition("+")[0].lower()
    elif plus and before.isalnum():
        scheme_kind = before.lower()
    else:
        scheme_kind = FOLDER_KIND
    if scheme_kind in _FOLDER_SCHEMES:
        return FOLDER_KIND
    return _ALIASES.get(scheme_kind, scheme_kind)


def make_path_absolute(uri: str, *, absolute: Callable[[str], str]) -> str:
    """Make the path of a local URI absolute; other URIs are unchanged.

    >>> make_path_absolute("raw/orders", absolute=lambda path: "/data/" + path)
    '/data/raw/orders'
    """
    # A registration is read by processes with other working directories.
    if uri.startswith(_SQLITE_CATALOG):
        return _SQLITE_CATALOG + absolute(uri.removeprefix(_SQLITE_CATALOG))
    if source_kind(uri) not in _PATH_KINDS:
        return uri
    before, separator, path = uri.rpartition("://")
    if before.rpartition("+")[2].lower() in _FOLDER_SCHEMES:
        return uri
    if not separator:
        before, separator, path = "", "", uri
        if source_kind(uri) in ("delta", "lance"):
            before, separator, path = uri.partition("+")
    return f"{before}{separator}{absolute(path)}"


def check_uri(uri: str) -> str:
    """Return a URI without secrets; refuse a URI that may contain one, without showing it.

    Raises:
        InvalidArgument: The URI contains a password.
    """
    hint = "remove the password, and set secret='env:SHOP_PASSWORD'"
    if not isinstance(uri, str) or not uri.strip() or "\0" in uri:
        raise InvalidArgument("uri= is not a source URI.", hint="sqlite:///shop.db")
    try:
        address = urlsplit(uri)
        has_password = address.password is not None
    except ValueError:
        # The text of the original error may contain the password.
        raise InvalidArgument("uri= is not a valid URI.", hint=hint) from None
    for key, _ in parse_qsl(address.query, keep_blank_values=True):
        # Drivers also accept passwords as query parameters.
        has_password = has_password or is_secret_option(key)
    if has_password:
        raise InvalidArgument("uri= contains a password, which would be stored.", hint=hint)
    return uri


def is_secret_option(word: str) -> bool:
    """Return whether an option name indicates a secret value.

    >>> is_secret_option("sslpassword"), is_secret_option("format"), is_secret_option("aws_access_key_id")
    (True, False, False)
    """
    folded = word.lower().replace(_USER_WORD, "")
    return any(secret_word in folded for secret_word in _SECRET_WORDS)


@dataclass(frozen=True)
class SourceInput(Record, closed=True):
    """A registered source as a job input: a table, a query or files.

    ``time`` is the column for window filters; if None, every window reads all rows.
    """

    source: Annotated[str, Checked(partial(check_name, noun="source"))]
    table: str | None = None
    sql: str | None = None
    path: str | None = None
    time: str | None = None
    rename: Annotated[str | None, OMIT_DEFAULT] = None

    __repr__ = display.record_repr


@with_suggestions
def source(
    name: str,
    *,
    table: str | None = None,
    sql: str | None = None,
    path: str | None = None,
    time: str | None = None,
    rename: Mapping[str, str] | str | None = None,
) -> SourceInput:
    """Return a registered source as a job input.

    Each run reads one snapshot of the source: the columns that the job query uses, and the rows
    whose ``time`` is in its windows (with ``lookback``). The commit records the read.

    Args:
        name: The name of the source.
        table: A table or view in the source.
        sql: A query in the source's SQL dialect.
        path: Files, relative to the source folder.
        time: The column for window filters: the creation or last-change time of a row.
        rename: New column names, such as ``{"Country Name": "country_name"}``, or ``"snake_case"``
            for all columns.

    Raises:
        InvalidArgument: More than one of ``table``, ``sql`` and ``path`` is set.

    >>> featurestore.source("shop", table="orders", time="created_at").time
    'created_at'
    """
    check_name(name, noun="source")
    selections = [selection for selection in (table, sql, path) if selection is not None]
    if len(selections) > 1:
        raise InvalidArgument("table=, sql= and path= exclude each other.", hint="pass only one")
    return SourceInput(name, table, sql, path, time, check_rename(rename))


def _strip_prefix(text: str) -> str:
    return text.removeprefix("source:")


_READ_KEYS = (
    "source", "kind", "query", "snapshot", "rows", "input", "high_water_mark", "quarantined",
)  # fmt: skip


@dataclass
class SourceRead(Record, keys=_READ_KEYS):
    """The record of a source read, which is updated while rows arrive.

    ``query`` is the SHA-256 of the query, ``snapshot`` the transaction, version or fingerprint that
    was read. ``high_water_mark`` is the maximum of the time column, ``input`` the job's name for
    the source. ``quarantined`` is the number of unreadable rows that were skipped in files, and
    ``bad_rows`` are examples.
    """

    source: Annotated[str, Codec(_strip_prefix, "source:{}".format)]
    kind: str
    query: str
    snapshot: str | None = None
    rows: int = 0
    high_water_mark: Annotated[str | None, OMIT_DEFAULT] = None
    input: Annotated[str | None, OMIT_DEFAULT] = None
    quarantined: Annotated[int, OMIT_DEFAULT] = 0
    bad_rows: tuple[Any, ...] = ()

    __repr__ = display.record_repr


class SourceReads(Sequence[SourceRead]):
    """The source reads of all parts of a retrieval; each part may still grow while rows arrive."""

    def __init__(self, *groups: Sequence[SourceRead]) -> None:
        self._groups = groups

    def __len__(self) -> int:
        return sum(map(len, self._groups))

    @overload
    def __getitem__(self, index: int) -> SourceRead: ...

    @overload
    def __getitem__(self, index: slice) -> list[SourceRead]: ...

    def __getitem__(self, index: int | slice) -> SourceRead | list[SourceRead]:
        reads: list[SourceRead] = []
        for group in self._groups:
            reads += group
        return reads[index]


@dataclass(frozen=True)
class SourceTable:
    """A table, file or folder of a source, and whether it is readable."""

    name: str
    readable: bool = True

    __repr__ = display.record_repr


_REPORT_KEYS = (
    "name", "kind", "ok", "server", "tables", "sampled", "sample", "dialect", "columns", "unread",
    "problems",
)  # fmt: skip


@dataclass(frozen=True)
class SourceReport(Record, keys=_REPORT_KEYS):
    """The result of a source check.

    ``server`` is the name and version of the server, or None if it did not respond. ``sample`` has
    the first rows of ``sampled``, the first readable table. For a folder, ``dialect`` is the format
    of the ``sampled`` files, ``columns`` are the inferred column types, and ``unread`` are files
    that are not read. ``problems`` describe each problem and its solution.
    """

    name: str
    kind: str
    server: str | None = None
    tables: tuple[SourceTable, ...] = ()
    sampled: str | None = None
    sample: tuple[JsonMapping, ...] = ()
    problems: tuple[str, ...] = ()
    dialect: JsonMapping = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    __repr__ = display.record_repr

    @property
    def ok(self) -> bool:
        """Whether the check found no problems."""
        return not self.problems


# -- options --------------------------------------------------------------------------------


def options_to_strings(options: Mapping[str, object]) -> dict[str, str]:
    """Convert options to strings, and omit options that are None.

    Raises:
        InvalidArgument: An option name suggests a secret, or a value has an unsupported type.

    >>> options_to_strings({"header": False, "dtypes": {"zip": "string"}, "quote": None})
    {'header': 'false', 'dtypes': '{"zip": "string"}'}
    """
    strings = {}
    for name, value in options.items():
        if not isinstance(name, str):
            raise InvalidArgument(
                f"options={{{name!r}: ...}}: option names must be strings.",
                hint="options={'format': 'csv'}",
            )
        if is_secret_option(name):
            raise InvalidArgument(
                f"options={{{name!r}: ...}} would be stored in plain text.",
                hint="secret='env:NAME'",
            )
        text = check_rename(value) if name == RENAME else _to_string(name, value)
        if text is not None:
            strings[name] = text
    return strings


def options_from_strings(strings: Mapping[str, str]) -> dict[str, object]:
    """Return options as values that ``options_to_strings`` converts to exactly these strings.

    Calls in hints repeat the options of a caller in this form.

    >>> options_from_strings({"header": "false", "dtypes": '{"zip": "string"}', "delimiter": ";"})
    {'header': False, 'dtypes': {'zip': 'string'}, 'delimiter': ';'}
    """
    return {name: _from_string(name, text) for name, text in strings.items()}


def _to_string(name: str, value: object) -> str | None:
    """Convert an option value to a string, or None to None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return json.dumps({key: str(option) for key, option in value.items()}, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return json.dumps(list(value), ensure_ascii=False)
    raise InvalidArgument(
        f"options={{{name!r}: {value!r}}} is not a string, a number, a list or a mapping.",
        hint="options={'format': 'csv', 'dtypes': {'zip': 'string'}}",
    )


def _from_string(name: str, text: str) -> object:
    """Return the boolean, integer, list or mapping with this string, or the string itself."""
    try:
        value = parse_json(text)
    except JsonError:
        return text
    # Another spelling is a string: a digit may be a delimiter, and grants are for exact options.
    if isinstance(value, bool | int | list | dict) and _to_string(name, value) == text:
        return value
    return text
