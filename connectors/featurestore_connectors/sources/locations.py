"""File locations of sources, local or at a URI, and fingerprints of their file status."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from featurestore.errors import (
    InvalidArgument,
    SourceError,
    SourceUnavailable,
    StorageError,
    listing,
)
from featurestore.model.paths import is_relative_path
from featurestore.plugins.credentials import needs_environment_error
from featurestore.plugins.source import SourceConfig
from featurestore.storage import storage_for
from featurestore.storage.connections import use_options_for_owner
from featurestore.storage.interface import FileStatus
from featurestore.storage.location import HDFS, OBJECT_STORES, Location, remove_owner, scheme_of
from featurestore.storage.settings import SECRET, USER, check_options

# The option with the local folder whose files a catalog or the log of a Delta table may name.
FOLDER = "folder"
# For registrations of tables of this store, whose paths are known.
ANY_FOLDER = "/"
# The settings of requests without credentials, by scheme.
_ANONYMOUS = {
    "s3": "aws_skip_signature",
    "gs": "google_skip_signature",
    "az": "azure_skip_signature",
}
# The buckets of locations that catalogs return, by the scheme of this package. An owner of the
# bucket is refused.
_BUCKETS = {
    "s3": re.compile(r"^s3[an]?://(?P<bucket>[^/@]+)/"),
    "gs": re.compile(r"^gs://(?P<bucket>[^/@]+)/"),
    "az": re.compile(
        r"^(?:abfss?|wasbs?)://(?P<bucket>[^/@]+)@(?P<account>[a-z0-9]+)"
        r"[.](?:dfs|blob)[.]core[.]windows[.]net/"
    ),
}
_GOOGLE = "https://storage.googleapis.com"
# Returns the settings of a bucket by its scheme and its account of Azure; None without credentials.
BucketSettings = Callable[[str, str | None], Mapping[str, str] | None]


@dataclass(frozen=True)
class SourceLocation:
    """A local path, or a URI with the storage settings of its source.

    With ``secret="environment"``, a URI without settings uses the store's settings if it has the same
    bucket, and those of the environment otherwise. Without a secret, requests are anonymous.
    """

    path: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def open(self, config: SourceConfig) -> str:
        """Return the path, or the URI after registering its settings for reading.

        Raises:
            SourceUnavailable: The location does not exist.
        """
        path = self.path
        settings = dict(self.settings)
        if config.secret is not None:
            settings[SECRET] = config.secret()
        elif not config.uses_environment:
            settings |= anonymous_settings(scheme_of(path))
        if settings:
            path = use_options_for_owner(path, config.name, settings)
        with storage_errors(config):
            return require_existing(config, path)


def anonymous_settings(scheme: str) -> dict[str, str]:
    """Return the settings with which no credentials are sent; {} for local paths."""
    return {_ANONYMOUS[scheme]: "true"} if scheme in _ANONYMOUS else {}


def parse_location(
    config: SourceConfig, *, prefix: str, noun: str, option_names: Sequence[str] = ()
) -> SourceLocation:
    """Parse the location of a source; options not in ``option_names`` are storage settings.

    Raises:
        InvalidArgument: The location does not support the options or the secret.
        UnsupportedLocation: The scheme of the URI is unknown.
    """
    settings_options = {
        name: value for name, value in config.options.items() if name not in option_names
    }
    uri = config.uri.removeprefix(f"{prefix}+")
    is_remote = not storage_for(uri).is_local and not uri.startswith(("file:", f"{prefix}:"))
    location = Location.parse(uri) if is_remote else None
    if location is not None and location.scheme == HDFS and not config.uses_environment:
        raise needs_environment_error(f"Source {config.name!r}", "the user or the Kerberos ticket")
    if location is None or location.scheme != "s3":
        if settings_options:
            hint = None
            if location is not None and location.scheme in OBJECT_STORES:
                hint = (
                    "set its credentials in the environment, such as $AZURE_STORAGE_ACCOUNT_NAME, "
                    "and secret='environment'"
                )
            raise InvalidArgument(
                f"Unknown options {listing(settings_options)} of a {noun}. Available: "
                f"{listing(option_names)}.",
                hint=hint,
            )
        if location is None:
            return SourceLocation(local_path(config, prefix=prefix))
        return SourceLocation(location.text)
    settings = check_options(settings_options, argument="options")
    if (config.secret is None) != (USER not in settings):
        raise InvalidArgument(
            f"Source {config.name!r} has only one of access key and secret.",
            hint=f"options={{{USER!r}: '...'}} and secret='env:NAME', or secret='environment'",
        )
    return SourceLocation(location.text, settings)


def local_path(config: SourceConfig, *, prefix: str) -> str:
    """Return the path of a URI ``<prefix>:///path``, ``<prefix>+/path`` or ``file:///path``.

    Raises:
        InvalidArgument: The URI has the host name of another machine.
    """
    path_text = (
        config.uri.removeprefix(f"{prefix}+").removeprefix(f"{prefix}:").removeprefix("file:")
    )
    if path_text.startswith("//"):
        path_text = path_text[2:].replace("//", "/", 1)
        if not path_text.startswith("/"):
            raise InvalidArgument(
                f"{config.uri!r} is not a path on this machine.",
                hint=f"write three slashes: {prefix}:///absolute/path",
            )
    if "://" in path_text:
        raise InvalidArgument(
            f"{config.uri!r} is not a local path.",
            hint="only local and mounted paths are supported",
        )
    path = os.path.expanduser(path_text)
    if not path.startswith("/"):
        raise InvalidArgument(
            f"{config.uri!r} is not an absolute path.", hint="pass an absolute path"
        )
    return path


def check_option_names(config: SourceConfig, allowed: Sequence[str], *, source: str) -> None:
    """Raise InvalidArgument for unknown options of a source such as "a Glue source"."""
    unknown = [name for name in config.options if name not in allowed]
    if unknown:
        raise InvalidArgument(
            f"Unknown options {listing(unknown)} of {source}. Available: {listing(allowed)}."
        )


def chosen_folder(config: SourceConfig) -> str | None:
    """Return the local folder whose files a catalog or a log may name; None without the option.

    Raises:
        InvalidArgument: The folder is not an absolute path. The grant of a source has the target of
            the path, which must not depend on the working directory.
    """
    folder = config.options.get(FOLDER)
    if folder is not None and not folder.startswith("/"):
        raise InvalidArgument(
            f"Source {config.name!r}: {FOLDER}={folder!r} is not an absolute path.",
            hint=f"options={{{FOLDER!r}: '/data/lake'}}",
        )
    return folder


def require_existing(config: SourceConfig, path: str) -> str:
    """Return the path; raise SourceUnavailable if it does not exist."""
    storage = storage_for(path)
    if not storage.exists(path):
        hint = "check the spelling, and whether it is mounted on this machine"
        if not storage.is_local:
            hint = "check the bucket and the path in it"
        raise SourceUnavailable(
            f"Source {config.name!r} cannot be reached: {remove_owner(path)} does not exist.",
            hint=hint,
        )
    return path


def catalog_path(
    location: str, *, subject: str, settings: BucketSettings, folder: str | None
) -> str:
    """Return the path for the storages of a location that a catalog returned.

    ``subject`` names source and table. ``settings`` returns the settings of this table for a bucket.
    Local paths must be below ``folder``, which the user of the source has chosen.

    Raises:
        SourceError: The location is neither below the folder nor in a supported bucket, or
            credentials are missing.
    """
    path = location.removeprefix("file:")
    if path.startswith("//"):
        path = path.removeprefix("//")
    if path.startswith("/"):
        # A catalog is another machine, which must not choose files of this machine.
        if folder is None or resolve_inside(os.path.realpath(folder), path) is None:
            raise SourceError(
                f"{subject}: the location {location!r} is a local path outside of the folder of the "
                "source.",
                hint=f"if the catalog is yours, add the source with options={{{FOLDER!r}: '/data/lake'}}",
            )
        return path
    scheme, match = next(
        (
            (scheme, match)
            for scheme, pattern in _BUCKETS.items()
            if (match := pattern.match(location))
        ),
        ("", None),
    )
    if match is None:
        raise SourceError(
            f"{subject}: the location {location!r} is neither a local path nor in a bucket of S3, "
            "Google Cloud Storage or Azure.",
            hint="supported are file:, s3:, s3a:, s3n:, gs: and abfss: (dfs.core.windows.net)",
        )
    account = match["account"] if scheme == "az" else None
    bucket_settings = settings(scheme, account)
    if bucket_settings is None:
        raise SourceError(
            f"{subject}: the catalog vends no credentials for {location!r}.",
            hint="let the catalog vend credentials to the user of the source (Unity Catalog: grant "
            "EXTERNAL USE SCHEMA and SELECT)",
        )
    # Otherwise the endpoint of the environment would get the credentials.
    if scheme == "gs":
        bucket_settings = {"google_base_url": _GOOGLE, **bucket_settings}
    if account is not None:
        bucket_settings = {
            "azure_endpoint": f"https://{account}.blob.core.windows.net",
            **bucket_settings,
            "azure_storage_account_name": account,
        }
    bucket_path = f"{scheme}://{match['bucket']}/{location[match.end() :]}"
    return use_options_for_owner(bucket_path, catalog_owner(subject, account), bucket_settings)


def catalog_owner(subject: str, account: str | None = None) -> str:
    """Return the owner of the connections of a catalog's table, to an account of Azure or others.

    Tables in one bucket have different credentials, and accounts have containers of one name.
    """
    owner = f"table-{hashlib.sha256(subject.encode()).hexdigest()[:16]}"
    return owner if account is None else f"{owner}-{account}"


def catalog_path_sql(column: str, *, subject: str) -> str:
    """Return SQL that converts locations in a column to the paths of ``catalog_path``."""
    owner = catalog_owner(subject)
    replacements = {
        "^file:(//)?": "",
        "^s3[an]?://": f"s3://{owner}@",
        "^gs://": f"gs://{owner}@",
        _BUCKETS["az"].pattern.replace("?P<bucket>", "").replace("?P<account>", ""): (
            rf"az://{owner}-\2@\1/"
        ),
    }
    for pattern, replacement in replacements.items():
        column = f"regexp_replace({column}, '{pattern}', '{replacement}')"
    return column


@contextmanager
def storage_errors(config: SourceConfig) -> Iterator[None]:
    """Convert storage errors to SourceUnavailable."""
    try:
        yield
    except StorageError as error:
        raise unreachable_error(config, error) from error


def unreachable_error(config: SourceConfig, error: StorageError) -> SourceUnavailable:
    """Return the error of a source whose storage fails."""
    return SourceUnavailable(
        f"Source {config.name!r} cannot be reached, or rejects the user: {error.message}",
        hint=error.hint,
    )


def resolve_inside(root: str, path: str) -> str | None:
    """Resolve a path below a root, or return None if it is outside the root.

    Local symbolic links are followed.
    """
    if not storage_for(root).is_local:
        path = path.strip("/")
        if path == ".":
            return root
        return f"{root}/{path}" if is_relative_path(path) else None
    # Symbolic links are resolved, so that they cannot lead outside of the folder.
    resolved = os.path.realpath(os.path.join(root, path))
    return resolved if resolved == root or storage_for(resolved).is_below(resolved, root) else None


@dataclass(frozen=True)
class FileListing:
    """The files of a source with their status, and the paths of hidden files, sorted by path."""

    statuses: Mapping[str, FileStatus]
    hidden: tuple[str, ...] = ()


def list_files(root: str) -> FileListing:
    """List the files at or below a path; hidden folders are omitted.

    Raises:
        SourceError: A file is a symbolic link to a file outside of the local folder.
    """
    storage = storage_for(root)
    if storage.is_file(root):
        return FileListing({root: storage.status(root)})
    statuses_by_path, hidden = {}, []
    if storage.prefers_listing:
        start = len(root) + 1
        for path, status in storage.walk_with_status(root):
            *folders, name = path[start:].split("/")
            if not all(map(is_visible, folders)):
                continue
            if is_visible(name):
                statuses_by_path[path] = status
            else:
                hidden.append(path)
        return FileListing(statuses_by_path, tuple(hidden))
    for path in storage.walk(root, enter=is_visible):
        if not is_visible(os.path.basename(path)):
            hidden.append(path)
            continue
        # The grant of a source is for its folder. A user who can write to the folder must not read other files.
        if not storage.is_below(path, root):
            raise SourceError(
                f"{path} is a symbolic link to a file outside of the folder of its source.",
                hint="replace it by a copy, or register the folder of the file as a source",
            )
        statuses_by_path[path] = storage.status(path)
    return FileListing(statuses_by_path, tuple(hidden))


def is_visible(name: str) -> bool:
    """Return whether the name of a file or folder does not begin with a point or an underscore."""
    # Spark and Hive use such names for temporary files and markers such as _SUCCESS.
    return not name.startswith((".", "_"))


def statuses(paths: Iterable[str]) -> dict[str, FileStatus]:
    """Return the status of each existing path."""
    return {
        path: storage_for(path).status(path) for path in paths if storage_for(path).exists(path)
    }


def are_unchanged(root: str, earlier: Mapping[str, FileStatus]) -> bool:
    """Return whether previously listed files are unchanged; new files are ignored."""
    # A listing costs fewer requests than the status of each file.
    prefers_listing = storage_for(root).prefers_listing
    present = list_files(root).statuses if prefers_listing else statuses(earlier)
    return all(present.get(path) == status for path, status in earlier.items())


def fingerprint(statuses: Mapping[str, FileStatus]) -> str:
    """Return a hash of file names, sizes and modification times, and of object etags."""
    digest = hashlib.sha256()
    for path, status in statuses.items():
        line = f"{remove_owner(path)} {status.size} {status.modified_ns}"
        # Object stores have an etag here, which also changes if size and time stay the same.
        if isinstance(status.inode, str):
            line = f"{line} {status.inode}"
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()[:32]
