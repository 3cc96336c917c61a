"""Store configuration: argument, environment, nearest featurestore.toml, or default."""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from featurestore.errors import ConfigurationError, UnsupportedLocation, listing

_log = logging.getLogger("featurestore")
CONFIG_FILE = "featurestore.toml"
DEFAULT_LOCATION = "featurestore-data"
DEFAULT_ENGINE = "duckdb"
DEFAULT_DURABILITY = "full"
# Engines that support only some URI schemes.
_SCHEMES = {"spark": ("s3", "gs", "hdfs")}
_KEYS = ("location", "engine", "registry", "durability", "project")


@dataclass(frozen=True)
class Config:
    """A resolved configuration; without ``registry``, SQLite in the store location is used.

    ``project`` is the name under which ``apply`` owns what it creates.
    """

    location: str
    engine: str
    registry: str | None
    durability: str = DEFAULT_DURABILITY
    project: str | None = None


def resolve(
    *,
    location: str | os.PathLike[str] | None = None,
    engine: str | None = None,
    registry: str | None = None,
    durability: str | None = None,
) -> Config:
    """Resolve each setting from the argument, the environment, featurestore.toml, or the default.

    A relative location in featurestore.toml is relative to that file.

    Raises:
        ConfigurationError: The file is invalid, or belongs to another user.
    """
    if location is None:
        location = os.environ.get("FEATURESTORE_LOCATION") or None
    file = _read_file(has_location=location is not None)
    store_location = location if location is not None else file.get("location")
    return Config(
        location=os.fspath(store_location) if store_location is not None else DEFAULT_LOCATION,
        engine=engine
        or os.environ.get("FEATURESTORE_ENGINE")
        or file.get("engine")
        or DEFAULT_ENGINE,
        registry=registry or os.environ.get("FEATURESTORE_REGISTRY") or file.get("registry"),
        durability=durability
        or os.environ.get("FEATURESTORE_DURABILITY")
        or file.get("durability")
        or DEFAULT_DURABILITY,
        project=file.get("project"),
    )


def check_remote(location: str, settings: Config) -> None:
    """Refuse settings with which a store at a URI cannot be opened.

    Raises:
        ConfigurationError: The store has no registry.
        UnsupportedLocation: The engine cannot write to the location.
    """
    if settings.registry is None:
        raise ConfigurationError(
            f"The store at {location} needs registry=: a database cannot be stored there.",
            hint=f"connect({location!r}, registry='postgresql://user@host/database'), or "
            "registry='sqlite:////path/to/cache.db' for a cache on this machine",
        )
    scheme = location.partition("://")[0]
    if scheme not in _SCHEMES.get(settings.engine, (scheme,)):
        raise UnsupportedLocation(
            f"The {settings.engine} engine does not support {location}.",
            hint=f"connect({location!r}, engine={DEFAULT_ENGINE!r}, registry=...)",
        )


def find_file() -> Path | None:
    """Return the nearest configuration file in this directory or its parents."""
    folder = Path.cwd()
    # The nearest file applies, as in other tools with a project file.
    for directory in (folder, *folder.parents):
        path = directory / CONFIG_FILE
        if path.is_file():
            return path
    return None


def is_trusted(path: Path) -> bool:
    """Return whether a configuration file belongs to this user or to root.

    A file names the store and the registry that a program connects to, and another user could place
    such a file in a shared directory.
    """
    if os.name != "posix":
        return True
    # The owner of a link decides on its target, and that of the target on its content.
    return all(status.st_uid in (os.geteuid(), 0) for status in (path.lstat(), path.stat()))


def _read_file(*, has_location: bool) -> Mapping[str, Any]:
    """Return the settings of the nearest configuration file, or none.

    Raises:
        ConfigurationError: The file is invalid, or belongs to another user and the store has no
            other location.
    """
    path = find_file()
    if path is None:
        return {}
    if is_trusted(path):
        return _parse(path)
    message = f"{path} is not used, because it belongs to another user."
    if not has_location:
        raise ConfigurationError(message, hint="export FEATURESTORE_LOCATION=/path/to/the/store")
    _log.warning("%s", message)
    return {}


def _parse(path: Path) -> Mapping[str, Any]:
    """Return the settings of a configuration file."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}.") from error
    # A misspelled setting would silently use the default.
    unknown = [key for key in data if key not in _KEYS]
    non_strings = [key for key in _KEYS if key in data and not isinstance(data[key], str)]
    if unknown or non_strings:
        raise ConfigurationError(
            f"{path}: unknown settings or values that are not strings: {listing([*unknown, *non_strings])}.",
            hint=f"the settings are {', '.join(_KEYS)}, each a string",
        )
    # Relative to the file, so that it works from every directory below.
    if "location" in data and "://" not in data["location"]:
        data["location"] = str((path.parent / data["location"]).resolve())
    return data
