"""The interface of training dataset formats: writing shards, and reading row ranges of a shard.

Formats, including the built-in formats, are entry points of the group ``featurestore.formats``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from featurestore.errors import (
    InvalidArgument,
    did_you_mean,
    listing,
)
from featurestore.plugins import find_plugin, load_plugin, plugin_names

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from featurestore.model.manifest import Manifest, ManifestColumn, ManifestSplit
    from featurestore.plugins.native import RecordPlan

# Rows of a shard that are read at once.
_READ_ROWS = 65_536
Layout = Mapping[str, Any]
NumpyArray: TypeAlias = "npt.NDArray[Any]"


@dataclass(frozen=True)
class ColumnProfile:
    """Counts and extremes of a column over all splits, from which a format derives its layout.

    Attributes:
        name: The column name.
        rows: The number of rows.
        nulls: The number of null rows.
        minimum: The minimum of integers, dates (in days), timestamps (in microseconds), or items of
            lists if they were counted; None for other types.
        maximum: The maximum, defined like ``minimum``.
        longest: The maximum length: bytes for strings and binaries, items for lists, else 0.
        total_length: The sum of all lengths.
        inner_nulls: The number of null items in lists.
        longest_item: The bytes of the longest item, for lists of strings and binaries.
        longest_bytes: The maximum total bytes of all items in a row, for lists of strings and
            binaries.
        declared: Whether the caller declared a maximum length, so that all records have the same
            width.
        largest: The finite float64 of the greatest magnitude, with its sign, also of list items; None
            for other types, and if the column was not counted.
    """

    name: str
    rows: int
    nulls: int
    minimum: int | None = None
    maximum: int | None = None
    longest: int = 0
    total_length: int = 0
    inner_nulls: int = 0
    longest_item: int = 0
    longest_bytes: int = 0
    declared: bool = False
    largest: float | None = None


@dataclass(frozen=True)
class WrittenFile:
    """A file that a format wrote: path relative to the dataset directory, size and SHA-256 digest.

    ``prefixes`` has truncated SHA-256 digests of the first 1, 2, ... MiB, computed by
    ``ShardFile``.
    """

    path: str
    bytes: int
    sha256: str
    prefixes: tuple[str, ...] = ()


@dataclass(frozen=True)
class WrittenShard:
    """A written shard; ``sidecars`` are additional files, such as an offset index."""

    file: WrittenFile
    rows: int
    sidecars: tuple[WrittenFile, ...] = ()


@dataclass(frozen=True)
class ShardProblem:
    """A defect in a shard, with its byte offset or row if known."""

    path: str
    message: str
    offset: int | None = None
    row: int | None = None


@dataclass(frozen=True)
class ColumnEncoding:
    """The representation of a column in a format.

    Attributes:
        tf_type: "int64", "float32" or "bytes"; formats that TensorFlow does not parse as Example
            also use "float64" and "struct".
        shape: () for scalars, (n,) or (n, m) for fixed-size lists, None for ragged lists.
        null: The representation of nulls.
        loss: The loss of precision, for example "float64 to float32"; None if lossless.
    """

    tf_type: str
    shape: tuple[int, ...] | None
    null: str
    loss: str | None = None


class DatasetContents(Protocol):
    """What the files of a dataset contain. A ``Manifest`` has these attributes, too."""

    @property
    def description(self) -> str:
        """The description of the dataset."""
        ...

    @property
    def columns(self) -> Sequence[ManifestColumn]:
        """The columns, in order."""
        ...

    @property
    def layout(self) -> Layout:
        """The layout of the shards."""
        ...

    @property
    def splits(self) -> Sequence[ManifestSplit]:
        """The splits with their shards and counts of nulls."""
        ...


class ShardReader(Protocol):
    """An open shard. Only one thread at a time may use it, and it cannot be pickled.

    The caller that opened the shard closes it.
    """

    @property
    def rows(self) -> int:
        """The number of rows in the shard."""
        ...

    def read(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Return the rows ``[start, stop)`` of the shard with the feature types in the manifest.

        The batch remains valid after the shard is closed. The cost must not depend on ``start``,
        and only the requested columns are decoded.

        Raises:
            DatasetDamaged: The bytes are not valid in this format.
        """
        ...

    def close(self) -> None:
        """Close the file."""
        ...


@dataclass(frozen=True)
class Plane:
    """One row of an output array: the values of a column, or its validity mask (``presence``)."""

    column: str
    presence: bool = False


class PlaneReader(Protocol):
    """A function that decodes columns of records into rows of arrays.

    It is thread-safe if each thread passes its own arrays.
    """

    def __call__(self, records: NumpyArray, arrays: Sequence[NumpyArray], start: int = 0) -> None:
        """Decode records of shape (n, record_bytes) into ``array[row, start:start + n]``.

        ``arrays`` contains one contiguous array for each group of planes.
        """
        ...


class RecordAccess(Protocol):
    """Random access to fixed-width records, the fastest way to read a shard.

    It is stateless and thread-safe: memory maps and returned arrays belong to the caller. Any
    number of records may be passed in any order, including none.
    """

    @property
    def record_bytes(self) -> int:
        """The size of a record in bytes, including framing."""
        ...

    def records(self, path: str) -> NumpyArray:
        """Return a memory map of the shard, uint8 of shape (rows, record_bytes)."""
        ...

    def decode(
        self, records: NumpyArray, columns: Sequence[str]
    ) -> dict[str, tuple[NumpyArray, NumpyArray | None]]:
        """Return ``{column: (values, present)}`` for records of shape (n, record_bytes).

        Values have the shape (n, *column shape). Booleans, integers and floats have the numpy type
        of the feature. Dates are int64 days and timestamps int64 microseconds since 1970 in UTC.
        Strings, binaries and decimals (formatted) are object arrays of bytes. Nulls are zeros or
        empty bytes. Lists of varying length are encoded as ``arrow.batches.create_item_rows``, with length
        0 for nulls. Without nulls, None is returned for ``present``.
        """
        ...

    def present(self, records: NumpyArray, column: str) -> NumpyArray | None:
        """Return the validity mask of a column, or None for columns without nulls."""
        ...

    def padded_texts(self, records: NumpyArray, column: str) -> NumpyArray | None:
        """Return scalar strings, binaries or decimals as a numpy array of dtype ``S``.

        Nulls are empty. Return None if a value ends with a zero byte, which numpy would drop.
        """
        ...

    def byte_rows(self, records: NumpyArray, column: str) -> NumpyArray | None:
        """Return strings or binaries of equal length as a uint8 view of shape (n, length).

        The bytes of nulls are undefined. Return None if the lengths differ.
        """
        ...

    def plane_reader(self, groups: Sequence[Sequence[Plane | None]]) -> PlaneReader:
        """Return a function that decodes numeric scalar columns into arrays.

        A group describes the rows of one array: columns with the same numpy type (as in
        ``decode``), or validity masks in boolean arrays. Rows for which the group has None are not
        written.
        """
        ...


@runtime_checkable
class RecordChecksums(Protocol):
    """An optional capability of ``RecordAccess``: records that contain their checksum.

    Readers with ``verify=True`` check the records that they read. Without this capability, they
    compare the SHA-256 of complete shards.
    """

    def damaged_records(self, records: NumpyArray) -> npt.NDArray[np.int64]:
        """Return the positions of records with a wrong length or checksum, in ascending order.

        ``records`` are contiguous bytes of shape (n, record_bytes).
        """
        ...


class DatasetFormat(ABC):
    """Base class of the file formats of training datasets.

    Abstract methods are those that every format implements; the others have defaults for formats
    without the feature. Every implementation must pass ``featurestore.testing.FormatConformance``.

    **State.** A format is stateless, picklable and thread-safe; executors and workers create it
    from its name. It does not use the store, registry or engine.

    **Order of calls.** ``check`` and ``layout`` are called once in the process that exports a
    dataset. ``write_shard`` is called once for each shard, on any machine and in any order, and
    again if a task is retried. ``finish`` is called once after all shards are written. Then the
    manifest, which contains the layout and the files of ``finish``, is written. All other calls
    depend only on path, layout or manifest. A format must be able to read files of its older releases.

    **Layouts** are JSON objects that determine the bytes: the same rows with the same layout result
    in the same bytes, independent of batch boundaries and machine.

    **Values.** Each feature type is either read back unchanged, including nulls, or ``encodings``
    describes the loss, or ``check`` rejects the type. Memory contents of null values must not
    affect the bytes.

    **Files.** A shard and its sidecars are published atomically (``storage.shards.ShardFile``): a
    failed or killed call leaves at most a temporary file. The caller chooses the paths, which are
    relative to ``directory``. A format writes no other files, removes no files, and reads only
    files whose paths are passed to it.

    **Errors.** ``UnsupportedType`` and ``InvalidArgument`` from ``check`` and ``layout``, before
    any data is written; ``UnsupportedType`` from ``write_shard`` for values that no layout
    supports; ``DatasetDamaged`` for corrupt files; ``MissingExtra`` if a library is not installed;
    ``StorageError`` for file system errors.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The entry point's name."""

    @property
    @abstractmethod
    def extension(self) -> str:
        """The file extension of shards without the dot, or an empty string.

        The file names are ``<split>/<format>-00000-of-00008[.<extension>]``.
        """

    @property
    def shard_folder(self) -> str:
        """The name of a folder for the shards of a split, or an empty string.

        The shards in a folder are ``<split>/<folder>/<format>-00000-of-00008``.
        """
        return ""

    @abstractmethod
    def check(self, schema: pa.Schema, *, compression: str | None) -> None:
        """Raise UnsupportedType, listing all unsupported columns, or InvalidArgument.

        ``compression`` is a codec name in upper case.
        """

    def columns_to_profile(self, schema: pa.Schema) -> Sequence[str]:
        """Return the columns whose values determine the layout, by default all.

        Profiles of other columns have only the row count.
        """
        return list(schema.names)

    @abstractmethod
    def layout(
        self,
        schema: pa.Schema,
        profiles: Sequence[ColumnProfile],
        *,
        compression: str | None,
        block_rows: int,
    ) -> Layout:
        """Return the layout of a dataset, a JSON object for readers and writers."""

    def fitted(self, layout: Layout, *, rows: int, shards: int) -> Layout:
        """Return the layout for a dataset whose largest split has ``rows`` rows in ``shards`` shards.

        By default, a layout does not depend on the sizes of shards.
        """
        return layout

    @abstractmethod
    def encodings(self, layout: Layout) -> dict[str, ColumnEncoding]:
        """Return the representation of each column."""

    @abstractmethod
    def bytes_per_row(self, layout: Layout, profiles: Sequence[ColumnProfile]) -> float:
        """Return the expected bytes per row, from which the number of shards is derived."""

    @abstractmethod
    def write_shard(
        self, directory: str, path: str, batches: Iterator[pa.RecordBatch], *, layout: Layout
    ) -> WrittenShard:
        """Write a shard to ``directory/path`` atomically (temporary file, fsync, rename).

        ``batches`` is consumed once; it may be empty or yield empty batches. If it raises an
        exception, the exception is propagated and no shard is published.
        """

    def record_plan(self, layout: Layout) -> RecordPlan | None:
        """Return a plan by which engines encode records themselves (``Engine.write_records``).

        None, the default, if the layout has no such description. The bytes are those of
        ``write_shard``.
        """
        return None

    def finish(self, directory: str, contents: DatasetContents) -> Sequence[WrittenFile]:
        """Write files that describe the dataset (metadata, schema), before the manifest is written.

        By default, all data is in the shards.
        """
        return ()

    @abstractmethod
    def open_shard(self, path: str, *, layout: Layout) -> ShardReader:
        """Open a shard for reading."""

    def record_access(self, layout: Layout) -> RecordAccess | None:
        """Return an object for random access to records, or None if the layout has no such access.

        It is the fastest way to read records of one width. An object with ``RecordChecksums`` lets
        readers verify the records that they read.
        """
        return None

    @abstractmethod
    def verify_shard(self, path: str, *, layout: Layout, rows: int) -> Sequence[ShardProblem]:
        """Check framing, checksums and row count of a shard, and return its defects."""

    def feature_spec(self, contents: DatasetContents) -> dict[str, Any]:
        """Return ``{column: tf.io feature}``.

        Raises:
            InvalidArgument: TensorFlow does not parse the format as Example.
        """
        raise InvalidArgument(
            f"TensorFlow does not parse {self.name!r} files as tf.train.Example.",
            hint="use reader(...).tf_dataset(), or data_format='tfrecord'",
        )

    def refuse_reading(self, layout: Layout) -> str | None:
        """Return the reason why random access to rows is impossible (GZIP), or None."""
        return None

    def reads_in_order(self, layout: Layout) -> bool:
        """Return whether ``read_in_order`` reads a layout."""
        return self.refuse_reading(layout) is None

    def read_in_order(
        self, path: str, *, layout: Layout, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a shard, some at a time, with the feature types in the manifest.

        Formats override it, and ``reads_in_order``, for layouts that ``refuse_reading`` refuses.

        Raises:
            DatasetDamaged: The bytes are not valid in this format.
            InvalidArgument: The format cannot read the layout.
        """
        shard = self.open_shard(path, layout=layout)
        try:
            for start in range(0, shard.rows, _READ_ROWS):
                yield shard.read(start, min(shard.rows, start + _READ_ROWS), columns)
        finally:
            shard.close()

    def native_reader(
        self,
        directory: str,
        manifest: Manifest,
        *,
        split: str,
        worker: int,
        workers: int,
        **options: Any,
    ) -> Any:
        """Return a library's reader for a worker's rows; ``options`` are passed to the library.

        Raises:
            InvalidArgument: The format has no such reader, which is the default.
        """
        raise InvalidArgument(
            f"Training dataset {manifest.name!r} version {manifest.version} is "
            f"{manifest.data_format}, not petastorm.",
            hint="create it with data_format='petastorm', or use .reader()",
        )


def find_format(name: str) -> DatasetFormat:
    """Create a format by its entry point name.

    Raises:
        InvalidArgument: No format with this name is installed.
    """
    entry_point = find_plugin("formats", name)
    if entry_point is None and isinstance(name, str):
        # Names are accepted in any case, such as "TFRecord".
        entry_point = find_plugin("formats", name.lower())
    if entry_point is None:
        available = listing(plugin_names("formats"))
        raise InvalidArgument(
            f"Unknown data_format {name!r}. Available: {available}.",
            hint=did_you_mean(name, plugin_names("formats"), write="data_format={!r}")
            or "data_format='tfrecord'",
        )
    dataset_format: DatasetFormat = load_plugin(entry_point)()
    return dataset_format
