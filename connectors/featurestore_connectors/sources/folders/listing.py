"""File listing of a folder: formats, compression, partition folders and ignored files.

``save_to_disk`` of Hugging Face ``datasets`` writes folders that name their own files and types.
"""

from __future__ import annotations

import io
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any
from urllib.parse import unquote

import pyarrow as pa

from featurestore.arrow.json_text import JsonError, parse_json
from featurestore.errors import InvalidArgument, listing
from featurestore.storage import storage_for
from featurestore.storage.interface import FileStatus
from featurestore.storage.location import remove_owner
from featurestore_connectors.sources.folders.compression import COMPRESSIONS, decompress
from featurestore_connectors.sources.folders.options import ENDINGS, FolderOptions, TableName
from featurestore_connectors.sources.locations import FileListing

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
        content = parse_json(storage_for(path).read_bytes(path).decode())
    except (JsonError, UnicodeDecodeError) as error:
        raise table.invalid_file_error(f"{name} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise table.invalid_file_error(f"{name} is not a JSON object.")
    return content


# Files of these formats are ignored if the folder has files of other formats.
_SECONDARY = ("arrow", "webdataset")
# Hive and Spark write null partition values as this folder name.
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class FolderFile:
    """A data file of a folder table.

    ``name`` is the path relative to the source, for messages. ``partitions`` are the keys and
    values of the parent folders ``key=value``.
    """

    path: str
    name: str
    status: FileStatus
    ending: str
    compression: str | None
    partitions: tuple[tuple[str, str | None], ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The partition keys of the file's parent folders."""
        return tuple(key for key, _ in self.partitions)

    def open(self) -> pa.NativeFile:
        """Open the file as a decompressed binary stream."""
        source_file = storage_for(self.path).open_ranges(self.path)
        stream = (
            pa.OSFile(source_file)
            if isinstance(source_file, str)
            else pa.PythonFile(source_file, mode="r")
        )
        return stream if self.compression is None else decompress(stream, self.compression)

    def is_empty(self) -> bool:
        """Return whether the decompressed file has no bytes."""
        with self.open() as stream:
            return not stream.read(1)

    def open_text(self, encoding: str, *, errors: str = "strict") -> io.TextIOWrapper:
        """Open the file as text, with unchanged line endings and without a byte order mark.

        ``errors`` is an error handler of Python for bytes that are not text in the encoding.
        """
        raw: IO[bytes] = io.BufferedReader(self.open(), 1 << 20)
        # The csv module needs unchanged line ends, since quoted fields may contain them.
        name = "utf-8-sig" if encoding == "utf-8" else encoding
        return io.TextIOWrapper(raw, encoding=name, errors=errors, newline="")


@dataclass(frozen=True)
class FolderFiles:
    """The files of one table in one format, and the names of ignored files."""

    root: str
    format: str
    files: tuple[FolderFile, ...]
    unread: tuple[str, ...]

    @property
    def partitions(self) -> tuple[str, ...]:
        """The keys of the partition folders, outermost first."""
        return self.files[0].keys

    @property
    def statuses(self) -> dict[str, FileStatus]:
        """The file status at the time of the listing."""
        return {file.path: file.status for file in self.files}


@dataclass(frozen=True)
class DatasetFiles(FolderFiles):
    """The files of a saved dataset, with the Hugging Face type of each column."""

    features: Mapping[str, Any] = field(default_factory=dict)


def formats_by_path(paths: Sequence[str], required: str | None) -> dict[str, str]:
    """Return the formats of the files that can be read; other files are omitted.

    By default the extensions determine the formats. With a required format, files with another
    extension are read only if no file has an extension of this format, and all have the same one.

    >>> formats_by_path(["a.csv", "b.txt"], None), formats_by_path(["a.txt", "b.txt"], "csv")
    ({'a.csv': 'csv'}, {'a.txt': 'csv', 'b.txt': 'csv'})
    """
    formats = {path: _format_of(path, required) for path in paths}
    by_extension = {path: name for path, name in formats.items() if name is not None}
    if required is None:
        by_extension = {path: by_extension[path] for path in without_metadata(by_extension)}
        tables = {path: name for path, name in by_extension.items() if name not in _SECONDARY}
        return tables or by_extension
    if by_extension:
        return by_extension
    # A single file has the required format in any case.
    other_paths = [path for path in paths if len(paths) == 1 or not is_known(path)]
    endings = {split_extensions(path)[0] for path in other_paths}
    return dict.fromkeys(other_paths, required) if len(endings) == 1 else {}


def split_by_format(
    file_listing: FileListing,
    *,
    root: str,
    files_root: str,
    options: FolderOptions,
    table: TableName,
) -> FolderFiles | None:
    """Return the files at or below a path in their common format, or None if there are none.

    Raises:
        InvalidArgument: The files have several formats, or their partition folders have different
            keys.
    """
    statuses = file_listing.statuses
    if options.format in (None, "arrow"):
        dataset = find_dataset(statuses, files_root, table)
        if dataset is not None:
            dataset_files = [_folder_file(path, statuses[path], root) for path in dataset.paths]
            return DatasetFiles(files_root, "arrow", tuple(dataset_files), (), dataset.features)
    formats = formats_by_path(list(statuses), options.format)
    names = sorted(set(formats.values()))
    if not names:
        return None
    if len(names) > 1:
        raise InvalidArgument(
            f"{remove_owner(files_root)} has files of several formats: {listing(names)}.",
            hint=table.call(format=names[0]),
        )
    unread = [path for path in statuses if path not in formats]
    unread += filter(is_known, file_listing.hidden)
    folder_files = FolderFiles(
        files_root,
        names[0],
        tuple(_folder_file(path, statuses[path], root) for path in formats),
        tuple(relative_path(root, path) for path in unread),
    )
    _check_partitions(folder_files)
    return folder_files


def list_partitioned_files(
    statuses: Mapping[str, FileStatus],
    *,
    root: str,
    keys: Sequence[str],
    partitions: Mapping[str, Sequence[str | None]],
) -> FolderFiles:
    """Return the Parquet files in the folders of partitions, with the values of these.

    The extension of a file is irrelevant. Files in other folders and empty files are omitted.
    """
    partition_files = []
    for path, status in statuses.items():
        folder = posixpath.dirname(path)
        while folder not in partitions and len(folder) > len(root):
            folder = posixpath.dirname(folder)
        # Some engines mark folders by empty files.
        if folder not in partitions or not status.size:
            continue
        values = [None if value == _NULL_PARTITION else value for value in partitions[folder]]
        pairs = tuple(zip(keys, values, strict=True))
        name = relative_path(root, path)
        partition_files.append(FolderFile(path, name, status, ".parquet", None, pairs))
    return FolderFiles(root, "parquet", tuple(partition_files), ())


def is_known(path: str) -> bool:
    """Return whether a file name has the extension of a supported format."""
    return _format_of(path, None) is not None


def _format_of(path: str, required: str | None) -> str | None:
    """Return the format of a file by its extension, or None if it is not the required format."""
    ending, compression = split_extensions(path)
    formats = [name for name, endings in ENDINGS.items() if ending in endings]
    # A compressed Parquet file has no random access, and its pages are compressed already.
    if compression is not None and not {"arrow", "parquet"}.isdisjoint(formats):
        return None
    if required is None:
        return formats[0] if formats else None
    return required if required in formats else None


def split_extensions(path: str) -> tuple[str, str | None]:
    """Return the lowercase extension of a file name, and its compression.

    >>> split_extensions("/data/Orders.CSV.gz"), split_extensions("orders.tsv")
    (('.csv', 'gzip'), ('.tsv', None))
    """
    stem, ending = posixpath.splitext(posixpath.basename(path).lower())
    if ending not in COMPRESSIONS:
        return ending, None
    return posixpath.splitext(stem)[1], COMPRESSIONS[ending]


def _folder_file(path: str, status: FileStatus, root: str) -> FolderFile:
    """Return a listed file with its compression and partition values."""
    name = relative_path(root, path)
    ending, compression = split_extensions(path)
    partitions = []
    for folder in name.split("/")[:-1]:
        key, separator, value = folder.partition("=")
        if separator and key:
            # Hive and Spark escape special characters of folder names with percent signs.
            text = None if value == _NULL_PARTITION else unquote(value)
            partitions.append((unquote(key), text))
    return FolderFile(path, name, status, ending, compression, tuple(partitions))


def relative_path(root: str, path: str) -> str:
    """Return the path of a file below a root, or its name if the root is the file."""
    return path[len(root) :].lstrip("/") or posixpath.basename(path)


def _check_partitions(folder_files: FolderFiles) -> None:
    """Refuse files whose partition folders have different keys."""
    first = folder_files.files[0]
    for file in folder_files.files:
        # The folder keys are columns, and all files of a table have the same columns.
        if file.keys != first.keys:
            raise InvalidArgument(
                f"{first.name!r} and {file.name!r} have different partition keys: "
                f"{_partition_path(first)} and {_partition_path(file)}.",
                hint="path='...' reads only the files below one folder",
            )


def _partition_path(file: FolderFile) -> str:
    return listing([f"{key}=" for key in file.keys])
