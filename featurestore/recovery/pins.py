"""Pins of running exports.

Which Delta versions they read, said before they read them, so that no vacuum takes their files.

A finished dataset pins by its manifest and by the registry; an export in flight by a file in its
stage.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from featurestore.delta import deltalog
from featurestore.model.paths import StorePaths
from featurestore.model.plan import Source
from featurestore.recovery.in_flight import InFlight
from featurestore.recovery.owners import Store
from featurestore.registry import intents
from featurestore.storage import files

_FILE = "sources.json"


def pin(write: InFlight, sources: Iterable[Source]) -> None:
    """Pin the Delta versions that an export is about to read, until it ends."""
    pinned = [
        {
            "featuregroup": source.spec.name,
            "version": source.spec.version,
            "delta_version": source.delta_version,
        }
        for source in sources
    ]
    files.write_json(os.path.join(write.staging, _FILE), {"sources": pinned})


def check_pinned(sources: Iterable[Source]) -> None:
    """Make sure, just before publication, that every file of the pinned versions is still there.

    Raises:
        TableDamaged: A vacuum that began before the export has removed one; nothing was published.
    """
    for source in sources:
        deltalog.check_files(deltalog.table_state(source.path, source.delta_version).files)


def pinned_by_exports(store: Store, name: str, version: int) -> set[int]:
    """Return the Delta versions of a group that exports in flight read."""
    with store.registry.reading() as connection:
        exports = [each for each in intents.every(connection) if each.kind == "export"]
    paths = StorePaths(store.location)
    pinned = set()
    for export in exports:
        file = os.path.join(paths.stage(export.run_id), _FILE)
        if not files.exists(file):
            continue
        for source in files.read_json(file)["sources"]:
            if (source["featuregroup"], source["version"]) == (name, version):
                pinned.add(int(source["delta_version"]))
    return pinned
