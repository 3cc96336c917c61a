"""Files outside of a table's folder in its log, for libraries that replay the log themselves.

Such libraries follow absolute paths, also in files of the log that ``replay`` does not read: other
checkpoints of a version, and compacted logs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from featurestore.delta import log
from featurestore.delta.checksums import Action
from featurestore.delta.datafile import file_path, unsupported_feature_error
from featurestore.delta.log import LOG_FOLDER, damaged_file, parse_actions, unreadable_file
from featurestore.delta.table_state import read_checkpoint
from featurestore.storage import storage_for

_SUMMARY = re.compile(r"(?:\d{20}\.)?(?P<last>\d{20})\.(?P<type>checkpoint|compacted)\.")
_ABSOLUTE = "p"


def summarized_version(name: str) -> int:
    """Return the last version in a checkpoint or a compacted log, or -1 for other files.

    >>> summarized_version("00000000000000000010.checkpoint.parquet")
    10
    """
    match = _SUMMARY.match(name)
    return -1 if match is None else int(match["last"])


def check_files_inside(path: str, version: int, *, folder: str | None = None) -> None:
    """Check that all files of a table version are in its folder, for all checkpoints that a library may use.

    Args:
        path: The folder of the table.
        version: The version.
        folder: A further folder whose files the table may have, as a shallow clone does.

    Raises:
        UnsupportedTable: A data file, deletion vector or sidecar is outside of the folders, or a
            file of the log or of the version is a link to a file outside.
        TableDamaged: A file of the log cannot be read.
    """
    storage = storage_for(path)
    folders = (path,) if folder is None else (path, folder)

    def check_target(file: str) -> None:
        if not any(storage.is_below(file, root) for root in folders):
            raise unsupported_feature_error(path, f"links to files outside its folder ({file})")

    for name in storage.list_directory(os.path.join(path, LOG_FOLDER)):
        check_target(os.path.join(path, LOG_FOLDER, name))
    first, _ = log.find_checkpoint_before(path, version)
    for add in _added_files(path, max(first, 0), version):
        check_target(file_path(path, add["path"], folder=folder))
        vector = add.get("deletionVector")
        if isinstance(vector, Mapping) and vector.get("storageType") == _ABSOLUTE:
            raise unsupported_feature_error(path, "deletion vectors outside its folder")


def _added_files(path: str, first: int, last: int) -> Iterator[Action]:
    """Yield the add actions in all files of the log between two versions."""
    storage = storage_for(path)
    folder = os.path.join(path, LOG_FOLDER)
    for name in storage.list_directory(folder):
        file = os.path.join(folder, name)
        if not first <= summarized_version(name) <= last:
            continue
        if ".compacted." in name:
            try:
                actions = parse_actions(storage.read_text(file))
            except OSError as error:
                raise unreadable_file(file, error) from error
            except (ValueError, RecursionError) as error:
                raise damaged_file(file, "is not a readable compacted log") from error
            yield from log.actions_of_kind(actions, "add")
        else:
            yield from read_checkpoint(path, [file]).adds
    for number in range(first, last + 1):
        if log.has_commit(path, number):
            yield from log.actions_of_kind(log.read_commit(log.commit_path(path, number)), "add")
