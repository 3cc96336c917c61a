"""Resolution of an intent: register published data, remove unpublished data."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from featurestore.errors import InvalidArgument, InvalidName, StorageError
from featurestore.model.paths import StorePaths
from featurestore.recovery import claims, datasets, groups, models, owners, views
from featurestore.registry import intents
from featurestore.storage import files


def resolve(connection: Connection, location: str, intent: intents.Intent) -> str:
    """Register the data of a published write, or remove its remains; return a line of text."""
    paths = StorePaths(location)
    subject = f"{intent.kind} of {intent.name} version {intent.version}"
    try:
        stage = paths.stage(intent.run_id)
        if intent.kind in ("export", "remove"):
            outcome = _resolve_dataset(connection, paths, intent)
        elif intent.kind in (views.DEFINE, views.UNDEFINE):
            outcome = _resolve_view(connection, paths, intent)
        elif intent.kind in (models.REGISTER, models.REMOVE):
            outcome = _resolve_model(connection, paths, intent)
        elif intent.kind in ("create", "write", "delete", "reclaim"):
            outcome = _resolve_group(connection, paths, intent)
        else:
            outcome = "removed its staged files"
    except (InvalidName, InvalidArgument) as error:
        # An invalid row, not written by this store: never touch files because of it.
        intents.end(connection, intent.run_id)
        return f"an intent was dropped: {error.message}"
    try:
        files.remove(stage, below=location)
    except StorageError as error:  # published data is registered anyway
        return f"{subject}: {outcome}; retried at the next connect: {error.message}"
    intents.end(connection, intent.run_id)
    return f"{subject}: {outcome}"


def _resolve_group(connection: Connection, paths: StorePaths, intent: intents.Intent) -> str:
    name, version = intent.name, intent.version
    path = paths.featuregroup(name, version)
    if intent.kind == "delete":
        groups.forget(connection, name, version)
        groups.remove_files(paths, name, version)
        return "finished"
    if groups.is_group(path):
        groups.register(connection, path, name, version)
        return "registered from its table"
    if intent.kind == "create":
        groups.remove_files(paths, name, version)
        return "removed, it had no rows yet"
    return "nothing to do"


def _resolve_dataset(connection: Connection, paths: StorePaths, intent: intents.Intent) -> str:
    name, version = intent.name, intent.version
    directory = paths.training_dataset(name, version)
    if intent.kind == "remove":
        datasets.forget(connection, name, version)
        datasets.remove_files(paths, name, version)
        datasets.release(paths, name, version)
        return "finished"
    if datasets.is_finished(directory):
        datasets.register_from_files(connection, directory, name, version)
        return "registered from its manifest"
    if not claims.revoke(
        directory, certain=owners.is_on_this_machine(paths.location, intent.owner)
    ):
        return "kept for a day, it was about to be published"
    datasets.remove_files(paths, name, version)
    return "removed, it had no manifest yet"


def _resolve_view(connection: Connection, paths: StorePaths, intent: intents.Intent) -> str:
    name, version = intent.name, intent.version
    directory = paths.feature_view(name, version)
    if intent.kind == views.UNDEFINE:
        views.forget(connection, name, version)
        views.remove_files(paths, name, version)
        return "finished"
    if views.is_view(directory):
        views.register(connection, views.read(directory, name, version))
        return "registered from its file"
    views.remove_files(paths, name, version)
    return "removed, it had no file yet"


def _resolve_model(connection: Connection, paths: StorePaths, intent: intents.Intent) -> str:
    name, version = intent.name, intent.version
    directory = paths.model(name, version)
    if intent.kind == models.REMOVE:
        models.forget(connection, name, version)
        models.remove_files(paths, name, version)
        return "finished"
    if models.is_model(directory):
        models.register(connection, directory, name, version)
        return "registered from its files"
    models.remove_files(paths, name, version)
    return "removed, it had no file yet"
