"""Tables of WebDataset shards: tar archives with a few files for each row.

The extension of a file is the name of its column, and the last part of the extension decides how it is
read, as in the decoders of WebDataset: ``cls`` is an integer, ``txt`` a string, ``npy`` an array, all
others are bytes. The members of the object in ``json`` are columns of their own. Pickled files are
refused: they are code.

https://huggingface.co/docs/hub/datasets-webdataset
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore.arrow.numpy_files import HEADER_BYTES, ArrayHeader, read_header
from featurestore.arrow.types import feature_type
from featurestore.plugins.source import BadRow
from featurestore_connectors.sources.folders import sample_values
from featurestore_connectors.sources.folders.listing import FolderFile
from featurestore_connectors.sources.folders.sample_values import SampleDecoder, TarSample
from featurestore_connectors.sources.folders.scan import JsonScan, TextScan
from featurestore_connectors.sources.folders.tables import (
    BadRows,
    Column,
    FolderTable,
    TableRead,
    drop_rows,
    to_batch,
)

_INTEGERS = ("class", "cls", "cls2", "count", "id", "index", "inx")
_TEXTS = ("text", "transcript", "txt")
_PICKLES = ("dill", "joblib", "pickle", "pkl", "pt", "pth", "pyd")
# A batch ends after this many samples or bytes.
_BATCH_ROWS = 4096
_BATCH_BYTES = 32 << 20


class WebDatasetTable(FolderTable):
    """A table of tar archives, with a row for each sample; a missing file is null."""

    def columns(self) -> list[Column]:
        scan = _SampleScan(self)
        bad_rows = self.new_bad_rows()
        for file in self.folder_files.files:
            samples = sample_values.read_samples(file, self.table, self._scanned_bytes)
            while batch := list(islice(samples, _BATCH_ROWS)):
                scan.update(self._valid_samples(batch, file, bad_rows), file, bad_rows)
        columns = scan.columns()
        names = [column.name for column in columns]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise self.table.invalid_file_error(
                f"{self.folder_files.files[0].name}: {repeated} are files and members of the JSON "
                "object, or have the name of the column with the keys.",
                hint="rename the members of the JSON objects, or the extensions of the files",
            )
        if scan.has_samples:
            self.check_declared(names)
        elif not self.options.dtypes:
            raise self.table.invalid_file_error(
                f"{self.folder_files.files[0].name} has no samples, so its columns are unknown.",
                hint=f"{self.table.call(dtypes={'txt': 'string'})} declares them",
            )
        return columns

    def rows(self, file: FolderFile, read: TableRead) -> Iterator[pa.RecordBatch]:
        decoder = SampleDecoder(self.options, read.schema, read.columns)
        samples = sample_values.read_samples(file, self.table, decoder.needed_bytes)
        for batch in _sized_batches(samples):
            valid = self._valid_samples(batch, file, read.bad_rows)
            arrays, reasons = decoder.decode(valid)
            for row, (column, reason) in sorted(reasons.items()):
                sample = valid[row]
                read.bad_rows.add(BadRow(file.name, sample.number, column, reason, sample.key))
            yield drop_rows(to_batch(arrays, read.columns, len(valid)), list(reasons))

    def _scanned_bytes(self, extension: str) -> int | None:
        """Return the number of bytes of a file that determine the type of its column."""
        if extension in self.options.dtypes:
            return 0
        suffix = sample_values.last_part(extension)
        if suffix == sample_values.ARRAY_SUFFIX:
            return HEADER_BYTES
        return None if suffix in sample_values.JSON_SUFFIXES + _INTEGERS else 0

    def _valid_samples(
        self, samples: Sequence[TarSample], file: FolderFile, bad_rows: BadRows
    ) -> list[TarSample]:
        for sample in samples:
            if sample.problem is not None:
                row = BadRow(file.name, sample.number, None, sample.problem, sample.key)
                bad_rows.add(row)
        return [sample for sample in samples if sample.problem is None]


class _SampleScan:
    """Incremental inference of the columns of samples."""

    def __init__(self, table: WebDatasetTable) -> None:
        self._folder_table = table
        self._table = table.table
        self._options = table.options
        self.has_samples = False
        self._extensions: dict[str, None] = {}
        self._integers: dict[str, TextScan] = {}
        self._arrays: dict[str, _ArrayScan] = {}
        # The members are the extensions of JSON files.
        self._json = JsonScan(table.options.rules(""))

    def update(self, samples: Sequence[TarSample], file: FolderFile, bad_rows: BadRows) -> None:
        """Update the inference with samples of a file."""
        self.has_samples = self.has_samples or bool(samples)
        rows_of_json: list[dict[str, Any]] = []
        for sample in samples:
            if not sample.files.keys() <= self._extensions.keys():
                self._extensions |= dict.fromkeys(sample.files)
            values: dict[str, Any] = {}
            for extension, content in sample.files.items():
                try:
                    self._update_file(extension, content, values)
                except ValueError as error:
                    reason = f"{extension}: {error}"
                    bad_rows.add(BadRow(file.name, sample.number, extension, reason, sample.key))
            rows_of_json.append(values)
        numbers = [sample.number for sample in samples]
        self._json.update_members(rows_of_json, numbers, file.name, {})

    def _update_file(self, extension: str, content: bytes, values: dict[str, Any]) -> None:
        suffix = sample_values.last_part(extension)
        if extension in self._options.dtypes:
            return
        if suffix in sample_values.JSON_SUFFIXES:
            values[extension] = sample_values.parse_value(content, constant=float)
        elif suffix in _INTEGERS:
            rules = self._options.rules(extension)
            scan = self._integers.setdefault(extension, TextScan(rules, ("int64",)))
            scan.update(pa.array([content.decode().strip()]))
        elif suffix == sample_values.ARRAY_SUFFIX:
            self._arrays.setdefault(extension, _ArrayScan()).update(read_header(content))

    def columns(self) -> list[Column]:
        """Return the columns of the samples: the key, and the files in the order of the first ones.

        Raises:
            InvalidSourceFile: The values of a column have no common type.
        """
        columns = [Column(sample_values.KEY, pa.string())]
        if not self.has_samples:
            declared = self._options.dtypes.items()
            return columns + [Column(name, dtype, is_declared=True) for name, dtype in declared]
        for extension in self._extensions:
            scan = self._json.members.get(extension)
            if (
                extension in sample_values.JSON_SUFFIXES
                and scan is not None
                and scan.has_only_objects
            ):
                members = scan.members.items()
                columns += [self._json_column(name, member) for name, member in members]
            else:
                columns.append(self._file_column(extension))
        return columns

    def _file_column(self, extension: str) -> Column:
        suffix = sample_values.last_part(extension)
        declared = self._folder_table.declared_column(extension)
        if declared is not None:
            return declared
        if suffix in _PICKLES:
            return Column(extension, pa.null(), "a pickle, which is code")
        if suffix in sample_values.JSON_SUFFIXES and extension in self._json.members:
            return self._json_column(extension, self._json.members[extension])
        if suffix in _INTEGERS and extension in self._integers:
            meaning = self._integers[extension].meaning
            return Column(extension, pa.int64() if meaning == "int64" else pa.string())
        if suffix in _TEXTS:
            return Column(extension, pa.string())
        if suffix == sample_values.ARRAY_SUFFIX and extension in self._arrays:
            dtype = self._arrays[extension].dtype()
            if dtype is None:
                return Column(extension, pa.null(), "arrays of several types, or numbers of axes")
            return Column(extension, dtype)
        return Column(extension, pa.binary())

    def _json_column(self, name: str, scan: JsonScan) -> Column:
        return self._folder_table.declared_column(name) or Column(
            name, scan.infer_type(self._table, name, name), scan.meaning
        )


class _ArrayScan:
    """The common type of arrays: an axis whose lengths differ is a list of any size."""

    def __init__(self) -> None:
        self._dtypes: set[np.dtype[Any]] = set()
        self._axes: set[int] = set()
        self._lengths: dict[int, set[int]] = {}

    def update(self, header: ArrayHeader) -> None:
        self._dtypes.add(header.dtype.newbyteorder("="))
        self._axes.add(len(header.shape))
        for axis, length in enumerate(header.shape):
            self._lengths.setdefault(axis, set()).add(length)

    def dtype(self) -> pa.DataType | None:
        """Return the feature type of the arrays, or None if they have none in common."""
        if len(self._axes) > 1 or len({dtype.kind for dtype in self._dtypes}) > 1:
            return None
        dtype = feature_type(pa.from_numpy_dtype(np.result_type(*self._dtypes)))
        for axis in sorted(self._lengths, reverse=True):
            lengths = self._lengths[axis]
            item = pa.field("item", dtype)
            dtype = (
                pa.list_(item) if len(lengths) > 1 or lengths == {0} else pa.list_(item, *lengths)
            )
        return dtype


def _sized_batches(samples: Iterator[TarSample]) -> Iterator[list[TarSample]]:
    """Yield the samples in batches of bounded size."""
    batch: list[TarSample] = []
    size = 0
    for sample in samples:
        batch.append(sample)
        size += sum(map(len, sample.files.values()))
        if len(batch) == _BATCH_ROWS or size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch
