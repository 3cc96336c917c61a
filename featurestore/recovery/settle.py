"""Settling one write: what was published is registered, what was not is removed."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from featurestore.errors import InvalidArgument, InvalidName, StorageError
from featurestore.model.paths import StorePaths
from featurestore.recovery import claims, datasets, groups, models, owners, views
from featurestore.registry import intents
from featurestore.storage import files


def settle(connection: Connection, location: str, intent: intents.Intent) -> str:
    """Register what a write published, or remove what it left half made; return what was done."""
    paths = StorePaths(location)
    what = f"{intent.kind} of {intent.name} version {intent.version}"
    try:
        stage = paths.stage(intent.run_id)
        if intent.kind in ("export", "remove"):
            done = _settle_dataset(connection, paths, intent)
        elif intent.kind in (views.DEFINE, views.UNDEFINE):
            done = _settle_view(connection, paths, intent)
        elif intent.kind in (models.ENTER, models.LEAVE):
            done = _settle_model(connection, paths, intent)
        elif intent.kind in ("create", "write", "delete", "reclaim"):
            done = _settle_group(connection, paths, intent)
        else:
            done = "removed what it staged"
    except (InvalidName, InvalidArgument) as error:
        # No write of this store: whoever wrote the row decides nothing about files.
        intents.end(connection, intent.run_id)
        return f"an intent was dropped: {error.message}"
    try:
        files.remove(stage, below=location)
    except StorageError as error:  # what was published is registered all the same
        return f"{what}: {done}; tried again at the next connect: {error.message}"
    intents.end(connection, intent.run_id)
    return f"{what}: {done}"


def _settle_group(connection: Connection, paths: StorePaths, intent: intents.Intent) -> str:
    name, version = intent.name, intent.version
    path = paths.featuregroup(name, version)
    if intent.kind == "delete":
        groups.forget(connection, name, version)
        groups.remove_files(paths, name, version)
        return "finished"
    if groups.is_group(path):
        groups.register(connection, path, name, version)
        return "registered as the table is"
    if intent.kind == "create":
        groups.remove_files(paths, name, version)
        return "removed, it had no rows yet"
    return "nothing to do"


def _settle_dataset(connection: Connection, paths: StorePaths, intent: intents.Intent) -> str:
    name, version = intent.name, intent.version
    directory = paths.training_dataset(name, version)
    if intent.kind == "remove":
        datasets.forget(connection, name, version)
        datasets.remove_files(paths, name, version)
        datasets.release(paths, name, version)
        return "finished"
    if datasets.is_finished(directory):
        datasets.register_found(connection, directory, name, version)
        return "registered as its manifest says"
    if not claims.give_up(directory, certain=owners.is_here(paths.location, intent.owner)):
        return "left for a day, it was about to be published"
    datasets.remove_files(paths, name, version)
    return "removed, it had no manifest yet"


def _settle_view(connection: Connection, paths: StorePaths, intent: intents.Intent) -> str:
    name, version = intent.name, intent.version
    directory = paths.feature_view(name, version)
    if intent.kind == views.UNDEFINE:
        views.forget(connection, name, version)
        views.remove_files(paths, name, version)
        return "finished"
    if views.is_view(directory):
        views.register(connection, views.read(directory, name, version))
        return "registered as its file says"
    views.remove_files(paths, name, version)
    return "removed, it had no file yet"


def _settle_model(connection: Connection, paths: StorePaths, intent: intents.Intent) -> str:
    name, version = intent.name, intent.version
    directory = paths.model(name, version)
    if intent.kind == models.LEAVE:
        models.forget(connection, name, version)
        models.remove_files(paths, name, version)
        return "finished"
    if models.is_model(directory):
        models.register(connection, directory, name, version)
        return "registered as its files say"
    models.remove_files(paths, name, version)
    return "removed, it had no file yet"
