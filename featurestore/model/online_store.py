"""Registrations of online stores, which serve published feature vectors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from featurestore.errors import InvalidArgument
from featurestore.model import display
from featurestore.model.names import check_name, parse_credentials
from featurestore.model.records import Record
from featurestore.model.source import check_uri

# The online store of a local store, which is not registered.
EMBEDDED = "embedded"
_ALIASES = {"postgres": "postgresql", "sqlite3": "sqlite"}
_FILE = "sqlite:///"
_HINT = "redis://localhost:6379/0"


@dataclass(frozen=True)
class OnlineStoreSpec(Record, closed=True):
    """The registration of an online store.

    ``kind`` is the name of an entry point of ``featurestore.online_stores``. ``secret`` is a
    reference to the password ("env:NAME", "file:path"), never its value, or "environment", with which
    the driver uses the credentials of the machine. ``created`` is in
    microseconds since 1970.
    """

    name: str
    kind: str
    uri: str
    secret: str | None = None
    created: int = 0

    __repr__ = display.record_repr

    @classmethod
    def from_text(cls, text: str) -> OnlineStoreSpec:
        """Parse a registration from JSON text; raise ValueError if it is invalid."""
        spec = cls.from_json(json.loads(text))
        check_name(spec.name, noun="online store")
        if spec.kind != online_kind(check_uri(spec.uri)):
            raise ValueError("kind is invalid")
        if spec.secret is not None:
            parse_credentials(spec.secret)
        return spec


def online_kind(uri: str) -> str:
    """Return the kind of an online store, the scheme of its URI.

    >>> online_kind("redis://cache:6379/0"), online_kind("postgres://me@db/shop")
    ('redis', 'postgresql')
    """
    scheme = uri.partition("://")[0].lower()
    return _ALIASES.get(scheme, scheme)


def normalize_uri(uri: str, *, exists: Callable[[str], bool]) -> str:
    """Return a URI without a password, and with an absolute path of a SQLite file.

    ``sqlite:///online.db`` is relative to the current directory and ``sqlite:////data/online.db``
    absolute, as in SQLAlchemy; a path with an existing folder may also begin with one slash.

    Raises:
        InvalidArgument: The URI has no scheme, or contains a password.
    """
    if not isinstance(uri, str) or "://" not in uri:
        raise InvalidArgument("uri= is not the URI of an online store.", hint=_HINT)
    check_uri(uri)
    if online_kind(uri) != "sqlite":
        return uri
    path = os.path.expanduser(uri.partition("://")[2].removeprefix("/"))
    if not path:
        raise InvalidArgument(f"{uri!r} has no path.", hint="sqlite:///online.db")
    is_absolute = not exists(os.path.dirname(path) or ".") and exists(os.path.dirname(f"/{path}"))
    return f"{_FILE}{os.path.abspath(f'/{path}' if is_absolute else path)}"
