"""Recovery at connect: resolution of intents that dead processes left.

To resolve an intent, published data is registered, or unpublished data is removed. The steps are
the same for all kinds of versions; ``VersionKind`` has the functions that differ.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError, InvalidArgument, InvalidName, StorageError
from featurestore.model.paths import MODEL_FILE, VIEW_FILE, StorePaths
from featurestore.recovery import claims, datasets, groups, liveness, models, views
from featurestore.recovery.liveness import Store
from featurestore.registry import intents
from featurestore.storage import files, storage_for

_INTENT = re.compile(r"[0-9a-f]{32}")
_log = logging.getLogger("featurestore.recovery")


@dataclass(frozen=True)
class VersionKind:
    """The recovery functions for one kind of versioned object.

    A version is a directory. It is published when its directory contains a specific file, such as
    the manifest of a dataset.

    Attributes:
        intents: The intent kinds of writes; the first kind creates a version.
        removal: The intent kind of a removal.
        folder: The property of ``StorePaths`` with the folder of all versions.
        directory: Returns the directory of a version.
        is_published: Returns True if the directory contains a published version.
        register: Registers a published version.
        unregister: Removes a version from the registry.
        remove_files: Removes the files of a version, starting with the file that publishes it.
        registered_from: The source of the registration, for messages.
        content: The content that publishes a version, for messages.
        unpublished: The reason why a rebuild does not register a directory, for messages.
        is_revocable: Whether a version is claimed by a single export, which is revoked before its
            files are removed.
    """

    intents: tuple[str, ...]
    removal: str
    folder: str
    directory: Callable[[StorePaths, str, int], str]
    is_published: Callable[[str], bool]
    register: Callable[[Connection, str, str, int], object]
    unregister: Callable[[Connection, str, int], None]
    remove_files: Callable[[StorePaths, str, int], None]
    registered_from: str
    content: str
    unpublished: str
    is_revocable: bool = False


GROUPS = VersionKind(
    intents=("create", "write", "reclaim"),
    removal="delete",
    folder="featuregroups",
    directory=StorePaths.featuregroup,
    is_published=groups.is_group,
    register=groups.register,
    unregister=groups.unregister,
    remove_files=groups.remove_files,
    registered_from="table",
    content="rows",
    unpublished="it is not a Delta table with a data commit",
)
DATASETS = VersionKind(
    intents=(datasets.EXPORT,),
    removal=datasets.REMOVE,
    folder="training_datasets",
    directory=StorePaths.training_dataset,
    is_published=datasets.is_finished,
    register=datasets.register_from_files,
    unregister=datasets.unregister,
    remove_files=datasets.remove_files,
    registered_from="manifest",
    content="manifest",
    unpublished="it has no manifest",
    is_revocable=True,
)
VIEWS = VersionKind(
    intents=(views.DEFINE,),
    removal=views.UNDEFINE,
    folder="feature_views",
    directory=StorePaths.feature_view,
    is_published=views.is_view,
    register=views.register_from_files,
    unregister=views.unregister,
    remove_files=views.remove_files,
    registered_from="file",
    content="file",
    unpublished=f"it has no {VIEW_FILE}",
)
MODELS = VersionKind(
    intents=(models.REGISTER,),
    removal=models.REMOVE,
    folder="models",
    directory=StorePaths.model,
    is_published=models.is_model,
    register=models.register,
    unregister=models.unregister,
    remove_files=models.remove_files,
    registered_from="files",
    content="file",
    unpublished=f"it has no {MODEL_FILE}",
)
_KINDS = {
    intent: version_kind
    for version_kind in (GROUPS, DATASETS, VIEWS, MODELS)
    for intent in (*version_kind.intents, version_kind.removal)
}


def recover(store: Store) -> list[str]:
    """Resolve the intents of dead processes, and return a message for each.

    Intents are resolved independently: a failure, for example a damaged table, is logged and
    retried at the next connect.
    """
    registry, location = store.registry, store.location
    with registry.reading() as connection:
        all_intents = intents.list_all(connection)
        abandoned = [
            intent
            for intent in all_intents
            if not liveness.is_alive(connection, location, intent.owner)
        ]
        has_future_heartbeats = intents.has_future_heartbeats(connection)
    # After the clock of the registry was set back, the heartbeats of dead owners would be recent
    # for as long as the clock was ahead.
    if has_future_heartbeats:
        with registry.transaction() as connection:
            intents.correct_future_heartbeats(connection)
    actions = []
    for intent in abandoned:
        try:
            # Each intent has its own transaction, so that one failure does not undo the others.
            with registry.transaction() as connection:
                current = intents.find(connection, intent.run_id)
                if current is not None:  # else another process has resolved it
                    actions.append(resolve(connection, location, current))
        except FeatureStoreError as error:
            _log.warning(
                "%s of %s version %s could not be resolved: %s",
                intent.kind,
                intent.name,
                intent.version,
                error.message,
            )
    if abandoned:
        with registry.transaction() as connection:
            liveness.remove_dead_owners(connection, location)
    return actions


def resolve(connection: Connection, location: str, intent: intents.Intent) -> str:
    """Register the result of a write, or remove its files; return a message about the outcome."""
    paths = StorePaths(location)
    description = f"{intent.kind} of {intent.name} version {intent.version}"
    outcome = "removed its staged files"
    try:
        stage = paths.stage(intent.run_id)
        if intent.kind in _KINDS:
            outcome = _resolve_version(connection, paths, intent, _KINDS[intent.kind])
    except (InvalidName, InvalidArgument) as error:
        # An invalid row was not written by this library and must never cause the removal of files.
        intents.end(connection, intent.run_id)
        return f"dropped an invalid intent: {error.message}"
    try:
        files.remove(stage, below=location)
    except StorageError as error:  # published data is registered anyway
        return f"{description}: {outcome}; will be retried at the next connect: {error.message}"
    # The intent is removed last: after a crash, the resolution is repeated.
    intents.end(connection, intent.run_id)
    return f"{description}: {outcome}"


def _resolve_version(
    connection: Connection, paths: StorePaths, intent: intents.Intent, version_kind: VersionKind
) -> str:
    """Finish a removal, register a published version, or remove an incomplete one."""
    name, version = intent.name, intent.version
    directory = version_kind.directory(paths, name, version)
    if intent.kind == version_kind.removal:
        version_kind.unregister(connection, name, version)
        version_kind.remove_files(paths, name, version)
        if version_kind.is_revocable:
            claims.release(directory, below=paths.location)
        return "finished"
    if version_kind.is_published(directory):
        version_kind.register(connection, directory, name, version)
        return f"registered from its {version_kind.registered_from}"
    # Only the first kind creates the version. Other writes must never remove an existing version.
    if intent.kind != version_kind.intents[0]:
        return "nothing to do"
    is_local = liveness.is_on_this_machine(paths.location, intent.owner)
    if version_kind.is_revocable and not claims.revoke(directory, is_certainly_dead=is_local):
        return "kept for a day, because it was about to be published"
    if version_kind is GROUPS and liveness.is_on_another_machine(paths.location, intent.owner):
        claims.abandon(directory)
    version_kind.remove_files(paths, name, version)
    return f"removed, because it had no {version_kind.content} yet"


def remove_unclaimed_stages(store: Store) -> list[str]:
    """Remove staging directories without an intent, and return their paths.

    A write records its intent before it stages rows, so such directories belong to a lost registry.

    Raises:
        StorageError: A directory could not be removed; all other directories were removed.
    """
    first_error: StorageError | None = None
    staging = StorePaths(store.location).staging
    names = [name for name in files.list_directory(staging) if _INTENT.fullmatch(name)]
    removed = []
    for name in names:
        with store.registry.reading() as connection:
            # The intent is looked up after the directory was listed: a write that began in between
            # has its intent already.
            is_claimed = intents.find(connection, name) is not None
        path = os.path.join(staging, name)
        if is_claimed or (
            storage_for(path).needs_claims
            and not liveness.is_lease_expired(store.location, name, path)
        ):
            continue  # it may belong to a write of another registry
        try:
            files.remove(path, below=store.location)
        except StorageError as error:
            first_error = first_error or error
        else:
            removed.append(path)
    if first_error is not None:
        raise first_error
    return removed
