"""Recovery at connect: the intents of dead processes are resolved.

To resolve an intent, published data is registered and unpublished data removed. The steps are the
same for every kind of version; ``VersionKind`` has what differs.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError, InvalidArgument, InvalidName, StorageError
from featurestore.model.feature_view import VIEW_FILE
from featurestore.model.paths import StorePaths
from featurestore.model.registered_model import MODEL_FILE
from featurestore.recovery import claims, datasets, groups, liveness, models, views
from featurestore.recovery.liveness import Store
from featurestore.registry import intents
from featurestore.storage import files, storage_for

_INTENT = re.compile(r"[0-9a-f]{32}")
_log = logging.getLogger("featurestore.recovery")


@dataclass(frozen=True)
class VersionKind:
    """The recovery of one kind of versions, each of which is a directory.

    Attributes:
        intents: The kinds of intents that write; the first one creates a version.
        removal: The kind of intent that removes a version.
        folder: The folder of all versions, as a property of ``StorePaths``.
        directory: Returns the directory of a version.
        is_published: Returns True if the directory has the content that publishes it.
        register: Registers a published version.
        forget: Removes a version from the registry.
        remove_files: Removes the files of a version, the publishing content first.
        registered_from: The content that the registration is read from, for messages.
        content: The publishing content, for messages.
        unpublished: The reason for which a rebuild does not register a directory.
        is_revocable: Whether each version is claimed once, by an export that is revoked before its
            files are removed.
    """

    intents: tuple[str, ...]
    removal: str
    folder: str
    directory: Callable[[StorePaths, str, int], str]
    is_published: Callable[[str], bool]
    register: Callable[[Connection, str, str, int], object]
    forget: Callable[[Connection, str, int], None]
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
    forget=groups.forget,
    remove_files=groups.remove_files,
    registered_from="table",
    content="rows",
    unpublished="it is not a Delta table with a commit of data",
)
DATASETS = VersionKind(
    intents=(datasets.EXPORT,),
    removal=datasets.REMOVE,
    folder="training_datasets",
    directory=StorePaths.training_dataset,
    is_published=datasets.is_finished,
    register=datasets.register_from_files,
    forget=datasets.forget,
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
    forget=views.forget,
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
    forget=models.forget,
    remove_files=models.remove_files,
    registered_from="files",
    content="file",
    unpublished=f"it has no {MODEL_FILE}",
)
_KINDS = {
    intent: kind
    for kind in (GROUPS, DATASETS, VIEWS, MODELS)
    for intent in (*kind.intents, kind.removal)
}


def recover(store: Store) -> list[str]:
    """Resolve every write of a dead process; return one line of text for each.

    Writes are resolved independently: a failure, for example a damaged table, is logged, and retried
    at the next connect.
    """
    registry, location = store.registry, store.location
    with registry.reading() as connection:
        all_intents = intents.list_all(connection)
        abandoned = [
            each for each in all_intents if not liveness.is_alive(connection, location, each.owner)
        ]
        has_future_heartbeats = intents.has_future_heartbeats(connection)
    if has_future_heartbeats:
        with registry.transaction() as connection:
            intents.correct_future_heartbeats(connection)
    actions = []
    for intent in abandoned:
        try:
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
    """Register the data of a published write, or remove its remains; return a line of text."""
    paths = StorePaths(location)
    subject = f"{intent.kind} of {intent.name} version {intent.version}"
    outcome = "removed its staged files"
    try:
        stage = paths.stage(intent.run_id)
        if intent.kind in _KINDS:
            outcome = _resolve_version(connection, paths, intent, _KINDS[intent.kind])
    except (InvalidName, InvalidArgument) as error:
        # An invalid row, not written by this store, must never remove files.
        intents.end(connection, intent.run_id)
        return f"an intent was dropped: {error.message}"
    try:
        files.remove(stage, below=location)
    except StorageError as error:  # published data is registered anyway
        return f"{subject}: {outcome}; retried at the next connect: {error.message}"
    intents.end(connection, intent.run_id)
    return f"{subject}: {outcome}"


def _resolve_version(
    connection: Connection, paths: StorePaths, intent: intents.Intent, kind: VersionKind
) -> str:
    name, version = intent.name, intent.version
    directory = kind.directory(paths, name, version)
    if intent.kind == kind.removal:
        kind.forget(connection, name, version)
        kind.remove_files(paths, name, version)
        if kind.is_revocable:
            claims.release(directory, below=paths.location)
        return "finished"
    if kind.is_published(directory):
        kind.register(connection, directory, name, version)
        return f"registered from its {kind.registered_from}"
    if intent.kind != kind.intents[0]:
        return "nothing to do"
    if kind.is_revocable:
        is_local = liveness.is_on_this_machine(paths.location, intent.owner)
        if not claims.revoke(directory, certain=is_local):
            return "kept for a day, it was about to be published"
    kind.remove_files(paths, name, version)
    return f"removed, it had no {kind.content} yet"


def remove_unclaimed_stages(store: Store) -> list[str]:
    """Remove staged rows without an intent; return their directories.

    A write records its intent before it stages rows, so these belong to a lost registry.

    Raises:
        StorageError: A directory could not be removed; the others were.
    """
    first_error: StorageError | None = None
    staging = StorePaths(store.location).staging
    names = [name for name in files.list_directory(staging) if _INTENT.fullmatch(name)]
    removed = []
    for name in names:
        with store.registry.reading() as connection:
            is_claimed = intents.find(connection, name) is not None
        path = os.path.join(staging, name)
        if is_claimed or (
            storage_for(path).needs_claims and not liveness.is_expired(store.location, name, path)
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
