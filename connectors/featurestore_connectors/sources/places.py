"""Where the files of a source are: a path of this machine or a URI, and what tells their state."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from featurestore.errors import InvalidArgument, SourceUnavailable, StorageError, listing
from featurestore.model.paths import is_relative_path
from featurestore.plugins.source import SourceConfig
from featurestore.storage import files
from featurestore.storage.connections import use_options_for_owner
from featurestore.storage.interface import FileStatus
from featurestore.storage.location import Location, without_owner
from featurestore.storage.selection import storage_for
from featurestore.storage.settings import SECRET, USER, check_options

# Where requests go: what the environment holds as credentials is not sent there.
_ADDRESSES = ("aws_endpoint_url", "proxy_url")


@dataclass(frozen=True)
class Place:
    """A path of this machine, or a URI with the settings by which a source has it opened.

    Without settings a URI is opened as the process does it: with those of the store in the same
    bucket, or of the environment.
    """

    path: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def opened(self, config: SourceConfig) -> str:
        """Return the path, or the URI ready to be read.

        Raises:
            SourceUnavailable: There is nothing.
        """
        path = self.path
        settings = dict(self.settings)
        if config.secret is not None:
            settings[SECRET] = config.secret()
        elif any(name in settings for name in _ADDRESSES):
            settings["aws_skip_signature"] = "true"
        if settings:
            path = use_options_for_owner(path, config.name, settings)
        with reached(config):
            return existing(config, path)


def place_of(config: SourceConfig, *, prefix: str, noun: str, own: Sequence[str] = ()) -> Place:
    """Return the place that a URI names; options that are not the source's own are its settings.

    Raises:
        InvalidArgument: The options or the secret mean nothing there.
        UnsupportedLocation: It is a URI of an unknown kind.
    """
    given = {}
    for name, value in config.options.items():
        if name not in own:
            given[name] = value
    uri = config.uri.removeprefix(f"{prefix}+")
    is_remote = not storage_for(uri).is_local and not uri.startswith(("file:", f"{prefix}:"))
    location = Location.parse(uri) if is_remote else None
    if location is None or location.scheme != "s3":
        if given:
            known = f"it has {listing(own)}" if own else "it takes none"
            raise InvalidArgument(f"A {noun} has no options {listing(given)}; {known}.")
        if location is None:
            return Place(local_path(config, prefix=prefix))
        return Place(location.text)
    settings = check_options(given, argument="options")
    if (config.secret is None) != (USER not in settings):
        raise InvalidArgument(
            f"Source {config.name!r} has one half of its credentials only.",
            hint=f"options={{{USER!r}: '...'}} and secret='env:NAME', or neither of them",
        )
    return Place(location.text, settings)


def local_path(config: SourceConfig, *, prefix: str) -> str:
    """Return the path in a URI: ``<prefix>:///path``, ``<prefix>+/path``, ``file:///path`` or a path.

    Raises:
        InvalidArgument: The URI names another machine.
    """
    rest = config.uri.removeprefix(f"{prefix}+").removeprefix(f"{prefix}:").removeprefix("file:")
    if rest.startswith("//"):
        rest = rest[2:].replace("//", "/", 1)
        if not rest.startswith("/"):
            raise InvalidArgument(
                f"{config.uri!r} names no path of this machine.",
                hint=f"{prefix}:///absolute/path has three slashes",
            )
    if "://" in rest:
        raise InvalidArgument(
            f"{config.uri!r} is no path of this machine.", hint="local and mounted paths are read"
        )
    path = os.path.expanduser(rest)
    if not path.startswith("/"):
        raise InvalidArgument(
            f"{config.uri!r} is relative to nothing.", hint="give an absolute path"
        )
    return path


def existing(config: SourceConfig, path: str) -> str:
    """Return a path that is there; SourceUnavailable where it is not."""
    if not files.exists(path):
        hint = "is it mounted here, and spelled so?"
        if not storage_for(path).is_local:
            hint = "check the bucket and what stands behind it"
        raise SourceUnavailable(
            f"Source {config.name!r} cannot be reached: {without_owner(path)} does not exist.",
            hint=hint,
        )
    return path


@contextmanager
def reached(config: SourceConfig) -> Iterator[None]:
    """Say of a storage that does not answer, or refuses the user, that the source is unavailable."""
    try:
        yield
    except StorageError as error:
        raise SourceUnavailable(
            f"Source {config.name!r} cannot be reached, or refuses the user: {error.message}",
            hint=error.hint,
        ) from error


def inside(root: str, path: str) -> str | None:
    """Return the place that a path means below a root; None where it leads out.

    On this machine links are followed.
    """
    if not storage_for(root).is_local:
        path = path.strip("/")
        if path == ".":
            return root
        return f"{root}/{path}" if is_relative_path(path) else None
    place = os.path.realpath(os.path.join(root, path))
    if place != root and not place.startswith(root.rstrip("/") + "/"):
        return None
    return place


def below(place: str) -> dict[str, FileStatus]:
    """Return the files at or below a place, by path in their order; hidden ones are left out."""
    if files.is_file(place):
        return {place: files.status(place)}
    if storage_for(place).prefers_listing:
        listed = files.statuses_below(place)
        start = len(place) + 1
        return {path: each for path, each in listed if all(map(_is_shown, path[start:].split("/")))}
    paths = files.walk(place, enter=_is_shown)
    return {path: files.status(path) for path in paths if _is_shown(os.path.basename(path))}


def _is_shown(name: str) -> bool:
    return not name.startswith((".", "_"))


def statuses(paths: Iterable[str]) -> dict[str, FileStatus]:
    """Return the status of each path that is there."""
    found = {}
    for path in paths:
        if files.exists(path):
            found[path] = files.status(path)
    return found


def are_unchanged(place: str, known: Mapping[str, FileStatus]) -> bool:
    """Tell whether files at or below a place are what they were; others may have come."""
    now = below(place) if storage_for(place).prefers_listing else statuses(known)
    return all(now.get(path) == status for path, status in known.items())


def fingerprint(found: Mapping[str, FileStatus]) -> str:
    """Return a hash of names, sizes and times of files, and of the tags of objects."""
    digest = hashlib.sha256()
    for path, status in found.items():
        told = f"{without_owner(path)} {status.size} {status.modified_ns}"
        if isinstance(status.inode, str):
            told = f"{told} {status.inode}"
        digest.update(f"{told}\n".encode())
    return digest.hexdigest()[:32]
