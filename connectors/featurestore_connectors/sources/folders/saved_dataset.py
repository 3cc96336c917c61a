"""Folders that ``save_to_disk`` of Hugging Face ``datasets`` wrote: their files and types."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from featurestore.arrow.json_text import JsonError, parse_json
from featurestore.errors import InvalidArgument, listing
from featurestore.storage import files
from featurestore.storage.interface import FileStatus
from featurestore.storage.location import remove_owner
from featurestore_connectors.sources.folders.options import TableName

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class SavedDataset:
    """The Arrow files of a dataset in the order of its rows, and the type of each column."""

    paths: tuple[str, ...]
    features: Mapping[str, Any]


def dataset_folders(paths: Iterable[str]) -> list[str]:
    """Return the folders that have the metadata of a dataset.

    >>> dataset_folders(["/d/train/state.json", "/d/train/dataset_info.json", "/d/state.json"])
    ['/d/train']
    """
    folders: dict[str, set[str]] = {}
    for path in paths:
        folder, name = posixpath.split(path)
        folders.setdefault(folder, set()).add(name)
    return [folder for folder, names in folders.items() if {_STATE, _INFO} <= names]


def without_metadata(paths: Iterable[str]) -> list[str]:
    """Return the paths without the JSON files that describe datasets.

    >>> without_metadata(["/d/a.arrow", "/d/state.json", "/d/dataset_info.json", "/d/rows.json"])
    ['/d/a.arrow', '/d/rows.json']
    """
    all_paths = list(paths)
    folders = dataset_folders(all_paths)
    metadata = {f"{folder}/{name}" for folder in folders for name in (_STATE, _INFO)}
    metadata |= {f"{posixpath.dirname(folder)}/{_SPLITS}" for folder in folders}
    return [path for path in all_paths if path not in metadata]


def find_dataset(
    statuses: Mapping[str, FileStatus], folder: str, table: TableName
) -> SavedDataset | None:
    """Return the dataset in a folder, or None if neither it nor a folder below it is a dataset.

    Other Arrow files in the folder, such as the caches of ``datasets``, are not part of the dataset.

    Raises:
        InvalidArgument: The folder has the splits of a dataset, or several datasets.
        InvalidSourceFile: A file of the dataset is missing, or other files have the order of its rows.
    """
    folders = dataset_folders(statuses)
    if not folders:
        return None
    if folder not in folders:
        names = [path[len(folder) :].lstrip("/") for path in folders]
        parent = "" if table.path is None else f"{table.path.rstrip('/')}/"
        raise InvalidArgument(
            f"{remove_owner(folder)} has the splits, or datasets, {listing(names)}.",
            hint=replace(table, path=f"{parent}{names[0]}").call(),
        )
    state = _read_object(f"{folder}/{_STATE}", statuses, table)
    if state.get("_indices_data_files"):
        raise table.invalid_file_error(
            f"{_STATE} lists files with the order of the rows, as old releases of `datasets` wrote "
            "them.",
            hint="datasets.load_from_disk(path).save_to_disk(new_path) writes the rows in this order",
        )
    paths = []
    data_files = state.get("_data_files")
    for data_file in data_files if isinstance(data_files, list) else []:
        name = data_file.get("filename") if isinstance(data_file, dict) else data_file
        if not isinstance(name, str) or "/" in name or f"{folder}/{name}" not in statuses:
            raise table.invalid_file_error(
                f"{_STATE} lists the file {name!r}, which is not in its folder."
            )
        paths.append(f"{folder}/{name}")
    if not paths:
        raise table.invalid_file_error(f"{_STATE} lists no files.")
    features = _read_object(f"{folder}/{_INFO}", statuses, table).get("features")
    return SavedDataset(tuple(paths), features if isinstance(features, dict) else {})


def _read_object(path: str, statuses: Mapping[str, FileStatus], table: TableName) -> dict[str, Any]:
    """Return the JSON object in a file."""
    name = posixpath.basename(path)
    if statuses[path].size > _MAX_BYTES:
        raise table.invalid_file_error(f"{name} has more than {_MAX_BYTES:,} bytes.")
    try:
        content = parse_json(files.read_bytes(path).decode())
    except (JsonError, UnicodeDecodeError) as error:
        raise table.invalid_file_error(f"{name} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise table.invalid_file_error(f"{name} is not a JSON object.")
    return content
