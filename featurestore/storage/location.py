"""Locations: absolute local paths, and URIs of object stores and other storages.

This module only parses locations; ``connections`` connects to them. A URI is not a path:
``normpath`` and ``PurePath`` would change it. Paths below a location are built with
``os.path.join``, which keeps the URI unchanged.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from featurestore.errors import InvalidArgument, UnsupportedLocation
from featurestore.model.paths import is_relative_path
from featurestore.plugins import find_plugin, plugin_names

_SEPARATOR = "://"
# No "@" in the host: credentials must not be part of a location, which is stored and shown.
_URI = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>[^/?#@]+)(?:/(?P<prefix>[^?#]*))?")
# Hadoop's clients of Azure name the account in the URI.
_AZURE_HADOOP_URI = re.compile(
    r"(abfs|wasb)s?://(?P<container>[a-z0-9-]+)@(?P<account>[a-z0-9]+)"
    r"\.(dfs|blob)\.[a-z.]+(?P<path>(/[^?#]*)?)"
)
# Alternative schemes that other tools use for the same storage.
_SCHEME_ALIASES = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
}
OBJECT_STORES = ("s3", "gs", "az")
HDFS = "hdfs"
_EXAMPLES = {HDFS: "hdfs://namenode:port/path"}


@dataclass(frozen=True)
class Location:
    """The URI of a store; ``text`` has no trailing slash.

    >>> Location.parse("s3://models/features/").text
    's3://models/features'
    """

    text: str

    @classmethod
    def parse(cls, text: str) -> Location:
        """Parse a URI.

        Raises:
            UnsupportedLocation: The text is not a URI, or its scheme is not supported.
        """
        match = _URI.fullmatch(text)
        scheme = match["scheme"] if match is not None else ""
        # One scheme per storage, so that a location has one spelling.
        scheme = _SCHEME_ALIASES.get(scheme, scheme)
        if match is None or not is_supported(scheme):
            # The text may be a URI with a password.
            safe_text = re.sub(r"//[^/]*@", "//***@", text)
            hint = (
                "a local directory, such as the mount point of another file system, "
                "s3://bucket/prefix, gs://bucket/prefix, az://container/path or "
                "hdfs://namenode:port/path; set credentials in the environment or in "
                "storage_options="
            )
            hadoop_uri = _AZURE_HADOOP_URI.fullmatch(text)
            if hadoop_uri is not None:
                safe_text = text
                path = f"az://{hadoop_uri['container']}{hadoop_uri['path']}"
                hint = (
                    f"{path!r} with storage_options={{'account_name': {hadoop_uri['account']!r}}}"
                )
            raise UnsupportedLocation(
                f"location={safe_text!r} is not a supported location.", hint=hint
            )
        if os.sep != "/":  # Windows: the paths of objects are built by ``os.path.join``
            raise UnsupportedLocation(
                f"location={text!r} is not supported on Windows.",
                hint="a local directory, or run Python in WSL: wsl --install",
            )
        prefix = (match["prefix"] or "").strip("/")
        if prefix and not is_relative_path(prefix):
            raise UnsupportedLocation(
                f"location={text!r} has a part that is empty, '.' or '..', or contains a backslash.",
                hint=_EXAMPLES.get(scheme, f"{scheme}://bucket/prefix"),
            )
        return cls(f"{scheme}://{match['host']}/{prefix}".rstrip("/"))

    @property
    def scheme(self) -> str:
        """The kind of storage: "s3", "gs", "az", "hdfs"."""
        return scheme_of(self.text)

    @property
    def bucket(self) -> str:
        """The bucket or container; for HDFS the namenode with its port, or the cluster name."""
        return self.text.partition(_SEPARATOR)[2].partition("/")[0]


def location_of(location: str | os.PathLike[str]) -> str:
    """Return the absolute path of a directory, or the URI of a location in an object store.

    Raises:
        UnsupportedLocation: ``location`` is a URI with an unsupported scheme.
    """
    text = os.fspath(location)
    if not is_uri(text) or scheme_of(text) == "file":
        return local_directory(text)
    return Location.parse(text).text


def local_directory(location: str | os.PathLike[str]) -> str:
    """Return the absolute path of a local or shared POSIX directory.

    Raises:
        UnsupportedLocation: ``location`` is a URI other than ``file://``.
    """
    text = os.fspath(location)
    if text.startswith("file://"):
        text = text[len("file://") :]
    # As a local path, a URI would create a directory such as ``s3:`` in the working directory.
    if "://" in text or text.startswith(("dbfs:", "hdfs:")):
        raise UnsupportedLocation(
            f"location={text!r} is not a local directory.",
            hint="a local or shared POSIX path, such as the mount point of another file system",
        )
    path = os.path.abspath(os.path.expanduser(text))
    if "\\" in path:
        raise UnsupportedLocation(
            f"location={text!r} has a backslash, which engines interpret as a separator.",
            hint="choose a path without backslashes",
        )
    return path


def is_supported(scheme: str) -> bool:
    """Return True if a scheme belongs to an object store or an installed storage plugin.

    Storage plugins are entry points in the group ``featurestore.storages``; their name is their
    scheme.

    >>> is_supported("s3"), is_supported("ftp")
    (True, False)
    """
    return scheme in OBJECT_STORES or find_plugin("storages", scheme) is not None


def supported_schemes() -> tuple[str, ...]:
    """Return the schemes of object stores and installed storage plugins."""
    return (*OBJECT_STORES, *plugin_names("storages"))


def is_uri(text: str) -> bool:
    """Return True if a path is a URI instead of a local path.

    >>> is_uri("s3://models/features"), is_uri("/data/store")
    (True, False)
    """
    return _SEPARATOR in text


def scheme_of(path: str) -> str:
    """Return the scheme of a URI, "file" for a local path.

    >>> scheme_of("s3://models/features"), scheme_of("/data/store")
    ('s3', 'file')
    """
    scheme, separator, _ = path.partition(_SEPARATOR)
    return scheme if separator else "file"


def root_of(path: str) -> str:
    """Return the URI of the bucket or file system that contains a URI.

    >>> root_of("s3://models/features/x")
    's3://models'
    """
    scheme, _, tail = path.partition(_SEPARATOR)
    return f"{scheme}{_SEPARATOR}{tail.partition('/')[0]}"


def make_absolute(path: str) -> str:
    """Return the absolute form of a local path; return a URI unchanged.

    >>> make_absolute("s3://models/features")
    's3://models/features'
    """
    return path if is_uri(path) else os.path.abspath(path)


def check_name(name: str) -> str:
    """Return the object name if it is valid: relative, without empty parts or dots.

    >>> check_name("featuregroups/weather/v1/_delta_log/00000000000000000000.json")
    'featuregroups/weather/v1/_delta_log/00000000000000000000.json'
    """
    if not is_relative_path(name):
        raise InvalidArgument(
            f"{name!r} is not a valid object name.",
            hint="separate the parts by '/'; a part must not be empty, '.' or '..'",
        )
    return name


def add_owner(location: str, owner: str) -> str:
    """Return a location with an owner before its bucket, replacing a previous owner.

    Each owner has a separate connection to the bucket, with separate options.

    >>> add_owner("s3://models/features", "shop")
    's3://shop@models/features'
    """
    scheme, _, tail = remove_owner(location).partition(_SEPARATOR)
    return f"{scheme}{_SEPARATOR}{owner}@{tail}"


def remove_owner(path: str) -> str:
    """Return a URI without the ``owner@`` prefix of its bucket.

    >>> remove_owner("s3://shop@models/features"), remove_owner("s3://models/a@b")
    ('s3://models/features', 's3://models/a@b')
    """
    scheme, separator, tail = path.partition(_SEPARATOR)
    host, slash, name = tail.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{name}"


def require_local(path: str, action: str, hint: str) -> None:
    """Raise an error if a path is not local, before an operation writes anything.

    Raises:
        UnsupportedLocation: The path is a URI.
    """
    if is_uri(path):
        raise UnsupportedLocation(f"{action} require a local directory, not {path}.", hint=hint)
