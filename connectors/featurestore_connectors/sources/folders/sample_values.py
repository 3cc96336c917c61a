"""Values of WebDataset files: the conversion of samples to the columns of a table.

A sample has the adjacent files of a tar archive whose names share a base name. The base name ends
at the first point after the folders of a file, and the extension begins there: ``a/0001.left.jpg``
is the file ``left.jpg`` of the sample ``a/0001``. Only needed files are read. The last part of an
extension names the encoding of a file.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow import types
from featurestore.arrow.arrays import from_numpy
from featurestore.arrow.json_columns import JsonColumns
from featurestore.arrow.json_text import (
    JsonError,
    NonFinite,
    json_type_name,
    parse_json,
    short_repr,
)
from featurestore.arrow.numpy_files import read_array
from featurestore.arrow.text_values import parse_texts
from featurestore.errors import FeatureStoreError
from featurestore.storage.tar_files import TarMember, TarReader
from featurestore_connectors.sources.folders.listing import FolderFile
from featurestore_connectors.sources.folders.options import FolderOptions, TableName
from featurestore_connectors.sources.folders.tables import (
    Column,
    TableSchema,
    text_rules,
    unreadable_file_error,
)

# A file is read completely, for one cell.
_MAX_BYTES = 256 << 20
# Returns how many bytes of the files with an extension are needed; None for all.
NeededBytes = Callable[[str], int | None]


@dataclass
class TarSample:
    """The files of a sample by lowercase extension; files that are not needed are empty.

    ``number`` counts the samples of an archive from 1. ``problem`` is the reason why it is invalid.
    """

    number: int
    key: str
    files: dict[str, bytes] = field(default_factory=dict)
    problem: str | None = None


def read_samples(file: FolderFile, table: TableName, needed: NeededBytes) -> Iterator[TarSample]:
    """Yield the samples of an archive in order.

    Raises:
        InvalidSourceFile: The archive is damaged or truncated, has links, or the files of a sample are
            not adjacent.
    """
    sample = TarSample(0, "")
    # Hashes of the keys, which take less memory than the keys.
    earlier: set[int] = set()
    try:
        with file.open() as stream:
            reader = TarReader(stream)
            for member in reader:
                key, extension = split_name(member.name)
                if _is_hidden(key):
                    continue
                if key != sample.key or not sample.number:
                    if sample.number:
                        yield sample
                    sample = TarSample(sample.number + 1, key)
                    if hash(key) in earlier:
                        raise table.invalid_file_error(
                            f"{file.name}: the files of the sample {key!r} are not adjacent.",
                            hint="tar --sort=name -cf shard.tar folder",
                        )
                    earlier.add(hash(key))
                _add_file(sample, member, extension, reader, needed, table, file)
    except FeatureStoreError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise unreadable_file_error(file, table, error) from error
    if sample.number:
        yield sample


def split_name(name: str) -> tuple[str, str]:
    """Return the key and the lowercase extension of a file in an archive.

    >>> split_name("./a.b/0001.left.JPG"), split_name("README")
    (('a.b/0001', 'left.jpg'), ('README', ''))
    """
    folder, base = posixpath.split(name.removeprefix("./"))
    stem, _, extension = base.partition(".")
    return posixpath.join(folder, stem), extension.lower()


def _is_hidden(key: str) -> bool:
    # The names of files that systems add to archives, such as ``._0001.jpg``, begin with a point.
    name = posixpath.basename(key)
    return not name or (name.startswith("__") and name.endswith("__"))


def _add_file(
    sample: TarSample,
    member: TarMember,
    extension: str,
    reader: TarReader,
    needed: NeededBytes,
    table: TableName,
    file: FolderFile,
) -> None:
    """Add a file to a sample, with as many of its bytes as needed."""
    if not extension:
        sample.problem = f"the file {member.name!r} has no extension"
        return
    if extension in sample.files:
        sample.problem = f"it has two files {extension!r}"
        return
    size = needed(extension)
    if size is None and member.size > _MAX_BYTES:
        raise table.invalid_file_error(
            f"{file.name}: the file {member.name!r} has {member.size:,} bytes; at most "
            f"{_MAX_BYTES:,} are read.",
            hint="columns=[...] of the call reads other columns",
        )
    sample.files[extension] = reader.read(size)


KEY = "key"
JSON_SUFFIXES = ("json", "jsn")
ARRAY_SUFFIX = "npy"
# The column of an invalid value, None for the whole row, and the reason.
BadValue = tuple[str | None, str]


def last_part(extension: str) -> str:
    """Return the part of an extension that names the encoding.

    >>> last_part("left.jpg"), last_part("cls")
    ('jpg', 'cls')
    """
    return extension.rpartition(".")[2]


class SampleDecoder:
    """The conversion of samples to the requested columns of a table."""

    def __init__(
        self, options: FolderOptions, schema: TableSchema, columns: Sequence[Column]
    ) -> None:
        self._options = options
        self._columns = columns
        self._names = {column.name for column in schema.in_files}
        self._requested = {column.name for column in columns}
        readable = [column for column in columns if not pat.is_binary(column.dtype)]
        self._json = JsonColumns(
            pa.schema([(column.name, column.dtype) for column in readable]),
            texts_of_values=frozenset(
                column.name
                for column in readable
                if column.is_declared
                and (pat.is_string(column.dtype) or types.is_nested(column.dtype))
            ),
            rules=self._options.rules(""),
            rules_of={column.name: text_rules(column, self._options) for column in readable},
        )

    def needed_bytes(self, extension: str) -> int | None:
        """Return the number of bytes of a file that the columns need; None for all."""
        is_needed = extension in self._requested or self._has_members(extension)
        return None if is_needed else 0

    def decode(self, samples: Sequence[TarSample]) -> tuple[list[pa.Array], dict[int, BadValue]]:
        """Return the columns, and for each invalid row its column and the reason."""
        problems: dict[int, BadValue] = {}
        objects = []
        for row, sample in enumerate(samples):
            try:
                objects.append(self._members(sample))
            except ValueError as error:
                problems[row] = (None, str(error))
                objects.append({})
        json_columns, reasons = self._json.convert(objects)
        for row, reason in reasons.items():
            problems.setdefault(row, (None, reason))
        arrays = []
        for column in self._columns:
            if column.name == KEY:
                arrays.append(pa.array([sample.key for sample in samples], pa.string()))
                continue
            files = [sample.files.get(column.name) for sample in samples]
            has_files = any(content is not None for content in files)
            if column.name in json_columns and not (has_files and self._is_file(column.name)):
                arrays.append(json_columns[column.name])
                continue
            values, bad = self._decode_files(files, column)
            arrays.append(values)
            for row, reason in bad.items():
                problems.setdefault(row, (column.name, reason))
        return arrays, problems

    def _has_members(self, extension: str) -> bool:
        """Return whether the members of an object in a file are columns."""
        return extension in JSON_SUFFIXES and extension not in self._names

    def _is_file(self, name: str) -> bool:
        """Return whether a column is a file that is not JSON."""
        return last_part(name) not in JSON_SUFFIXES

    def _members(self, sample: TarSample) -> dict[str, Any]:
        """Return the values of the JSON files of a sample by column.

        Raises:
            ValueError: A file is not JSON, or has another column.
        """
        members: dict[str, Any] = {}
        exact = self._json.is_exact
        for extension, content in sample.files.items():
            if self._has_members(extension):
                value = parse_value(content, constant=NonFinite, exact=exact)
                if not isinstance(value, dict):
                    raise ValueError(f"{extension} is {json_type_name(value)}, not an object")
                members |= value
            elif extension not in self._names:
                raise ValueError(f"the file {extension!r} is not in the schema")
            elif extension in self._requested and not self._is_file(extension):
                members[extension] = parse_value(content, constant=NonFinite, exact=exact)
        unknown = [name for name in members if name not in self._names]
        if unknown:
            raise ValueError(f"the name {short_repr(unknown[0])} is not in the schema")
        repeated = [name for name in members if name in sample.files and self._is_file(name)]
        if repeated:
            raise ValueError(f"{short_repr(repeated[0])} is a file and a member of the JSON object")
        return members

    def _decode_files(
        self, files: Sequence[bytes | None], column: Column
    ) -> tuple[pa.Array, dict[int, str]]:
        """Return the values of files with one extension, and the reasons of invalid rows."""
        if pat.is_binary(column.dtype):
            return pa.array(files, pa.binary()), {}
        if last_part(column.name) == ARRAY_SUFFIX:
            return _decode_arrays(files, column.dtype)
        reasons: dict[int, str] = {}
        texts: list[str | None] = []
        for row, content in enumerate(files):
            text = None
            try:
                text = None if content is None else content.decode()
            except UnicodeDecodeError:
                reasons[row] = "the bytes are not UTF-8"
            texts.append(text if text is None or pat.is_string(column.dtype) else text.strip())
        values, bad = parse_texts(
            pa.array(texts, pa.string()), column.dtype, text_rules(column, self._options)
        )
        return values, bad | reasons


def parse_value(content: bytes, *, constant: Callable[[str], Any], exact: bool = False) -> Any:
    """Return the value of a JSON file.

    Raises:
        JsonError: The bytes are not JSON in UTF-8.
    """
    try:
        return parse_json(content.decode(), exact=exact, constant=constant)
    except UnicodeDecodeError:
        raise JsonError("the bytes are not UTF-8") from None


def _decode_arrays(
    files: Sequence[bytes | None], dtype: pa.DataType
) -> tuple[pa.Array, dict[int, str]]:
    """Return the arrays of .npy files, and the reasons of files with arrays of another type."""
    reasons: dict[int, str] = {}
    arrays: list[Any] = []
    item = np.dtype(types.innermost_type(dtype).to_pandas_dtype())
    for row, content in enumerate(files):
        array = None
        try:
            array = None if content is None else read_array(content)
        except ValueError as error:
            reasons[row] = str(error)
        if array is not None and not (
            np.can_cast(array.dtype, item, "safe") and _has_shape(array.shape, dtype)
        ):
            reasons[row] = f"an array of {array.dtype} and shape {array.shape} is not {dtype}"
            array = None
        arrays.append(array)
    valid = np.array([array is not None for array in arrays], np.bool_)
    shape = types.array_shape(dtype)
    if types.array_item_type(dtype) == types.innermost_type(dtype) and valid.any():
        zeros = np.zeros(shape, item)
        stacked = np.stack([zeros if array is None else array.astype(item) for array in arrays])
        if shape:
            return from_numpy(stacked, valid=valid), reasons
        return pa.array(stacked, dtype, mask=~valid), reasons
    lists = [None if array is None else array.astype(item).tolist() for array in arrays]
    return pa.array(lists, dtype), reasons


def _has_shape(shape: tuple[int, ...], dtype: pa.DataType) -> bool:
    """Return whether an array of a shape has a list type."""
    for length in shape:
        if not types.is_list_type(dtype):
            return False
        if pat.is_fixed_size_list(dtype) and dtype.list_size != length:
            return False
        dtype = dtype.value_type
    return not types.is_list_type(dtype)
