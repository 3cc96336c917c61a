"""Locations: where a store is, a directory of this machine or a URI, and which storage it means.

A URI is text and no path: what tidies up paths (``normpath``, ``PurePath``) makes another text of
it. Paths below a location are made with ``os.path.join``, which leaves it as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from featurestore.errors import InvalidArgument, UnsupportedLocation
from featurestore.model.paths import is_relative_path

if TYPE_CHECKING:
    from featurestore.storage.interface import Storage

_SEPARATOR = "://"
_URI = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>[^/?#@]+)(?:/(?P<prefix>[^?#]*))?")
# How the same storage is called elsewhere.
_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "azure": "az", "abfs": "az", "abfss": "az"}
HDFS = "hdfs"
SCHEMES = ("s3", "gs", "az", HDFS)
_EXAMPLES = {HDFS: "hdfs://namenode:port/path"}

# What this process opened, by scheme and host, with the options that it was given. Options may hold
# credentials: they live here and are never written down.
_options: dict[str, dict[str, str]] = {}
_open: dict[str, Storage] = {}


@dataclass(frozen=True)
class Location:
    """Where a store is: ``text`` is an absolute path or a URI without a slash at its end.

    >>> Location.of("s3://models/features/").text
    's3://models/features'
    """

    text: str

    @classmethod
    def of(cls, text: str) -> Location:
        """Return the location of a URI.

        Raises:
            UnsupportedLocation: It is no URI of a kind that there is.
        """
        found = _URI.fullmatch(text)
        scheme = found["scheme"] if found is not None else ""
        scheme = _OTHER_NAMES.get(scheme, scheme)
        if found is None or scheme not in SCHEMES:
            raise UnsupportedLocation(
                f"location={_shown(text)!r} is no place of a kind that the store knows.",
                hint="a directory of this machine, also one where another file system is mounted, "
                "s3://bucket/prefix (gs:// and az:// are untested) or hdfs://namenode:port/path; "
                "credentials go into the environment or storage_options=",
            )
        prefix = (found["prefix"] or "").strip("/")
        if prefix and not is_relative_path(prefix):
            raise UnsupportedLocation(
                f"location={text!r} has a part that is empty, '.', '..' or has a backslash.",
                hint=_EXAMPLES.get(scheme, f"{scheme}://bucket/prefix"),
            )
        return cls(f"{scheme}://{found['host']}/{prefix}".rstrip("/"))

    @property
    def scheme(self) -> str:
        """The kind of storage: "s3", "gs", "az", "hdfs"."""
        return self.text.partition(_SEPARATOR)[0]

    @property
    def bucket(self) -> str:
        """The bucket or container; of HDFS the namenode and its port, or the cluster."""
        return self.text.partition(_SEPARATOR)[2].partition("/")[0]


def is_uri(text: str) -> bool:
    """Tell whether a path is a URI, so that no call of the operating system may have it.

    >>> is_uri("s3://models/features"), is_uri("/data/store")
    (True, False)
    """
    return _SEPARATOR in text


def absolute(path: str) -> str:
    """Return a path made absolute; a URI as it is.

    >>> absolute("s3://models/features")
    's3://models/features'
    """
    return path if is_uri(path) else os.path.abspath(path)


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


def use_options(location: str, options: Mapping[str, str] | None) -> None:
    """Open the bucket of a location with these options from now on, in this process.

    Without options those of an earlier call stay; what none of them says is the environment's.
    """
    root = _root_of(location)
    if options is not None and dict(options) != _options.get(root, {}):
        _options[root] = dict(options)
        _open.pop(root, None)


def of_owner(location: str, owner: str, options: Mapping[str, str]) -> str:
    """Return a location as this process opens it for one owner, with options that are its own.

    The owner stands before the bucket: ``plain`` leaves it out. The bucket as others open it, with
    or without options, is not touched.
    """
    scheme, _, rest = plain(location).partition(_SEPARATOR)
    owned = f"{scheme}{_SEPARATOR}{owner}@{rest}"
    use_options(owned, options)
    return owned


def plain(path: str) -> str:
    """Return a URI without the owner for whom it was opened.

    >>> plain("s3://shop@models/features"), plain("s3://models/a@b")
    ('s3://models/features', 's3://models/a@b')
    """
    scheme, separator, rest = path.partition(_SEPARATOR)
    host, slash, name = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{name}"


def is_any_open() -> bool:
    """Tell whether this process has opened a storage at a URI."""
    return bool(_open)


def opened_roots() -> list[str]:
    """Return the URIs of the buckets that this process has opened."""
    return sorted(_open)


def options_of(path: str) -> Mapping[str, str]:
    """Return the options that the bucket of a URI was opened with; they may hold credentials."""
    return _options.get(_root_of(path), {})


def storage_of(path: str) -> tuple[Storage, str]:
    """Return the storage of the bucket that a URI lies in, and the name of the URI there.

    The name of the bucket itself is "".
    """
    root = _root_of(path)
    found = _open.get(root)
    if found is None:
        found = _opened(root, _options.get(root, {}))
        _open[root] = found
    return found, path[len(root) + 1 :]


def _opened(root: str, options: Mapping[str, str]) -> Storage:
    if root.startswith(f"{HDFS}{_SEPARATOR}"):
        from featurestore.storage.hdfs import HdfsStorage

        return HdfsStorage(root, options)
    from featurestore.storage.objects import ObjectStorage

    return ObjectStorage(root, options)


def require_local(path: str, what: str, hint: str) -> None:
    """Refuse what works on a directory only, before anything is written.

    Raises:
        UnsupportedLocation: The path is a URI.
    """
    if is_uri(path):
        raise UnsupportedLocation(f"{what} below {path} are not possible yet.", hint=hint)


def _root_of(path: str) -> str:
    scheme, _, rest = path.partition(_SEPARATOR)
    return f"{scheme}{_SEPARATOR}{rest.partition('/')[0]}"


def _shown(text: str) -> str:
    """Return a text without what may be a password in it."""
    return re.sub(r"//[^/]*@", "//***@", text)


def _forget_parent() -> None:
    """Let a child made by ``fork`` open its own: threads and connections stay with the parent."""
    _open.clear()


os.register_at_fork(after_in_child=_forget_parent)
