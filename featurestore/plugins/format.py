"""The interface of file formats of training datasets: write a shard, read rows [a, b) of a shard.

Formats are entry points of the group ``featurestore.formats``, the built-in ones included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from featurestore.errors import (
    InvalidArgument,
    did_you_mean,
    listing,
)
from featurestore.plugins import find_plugin, load_plugin, plugin_names

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from featurestore.model.manifest import Manifest

Layout = Mapping[str, Any]


@dataclass(frozen=True)
class ColumnProfile:
    """Counts and extremes of a column over all splits, as input of a layout.

    Attributes:
        name: The column.
        rows: Number of rows.
        nulls: Number of null rows.
        minimum: Of integers, dates (days) and timestamps (microseconds), else None. For lists:
            of the items, if they were counted.
        maximum: As ``minimum``.
        longest: Maximum length: bytes of strings and binaries, items of lists, else 0.
        total_length: Sum of the lengths.
        inner_nulls: Number of null items of lists.
        longest_item: For lists of strings and binaries: bytes of the longest item.
        longest_bytes: For lists of strings and binaries: maximum bytes of all items of a row.
        declared: Whether the caller bounded the length and requires one width for all records.
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


@dataclass(frozen=True)
class WrittenFile:
    """One file that a format wrote: path relative to the dataset's directory, size and SHA-256.

    ``prefixes`` are truncated SHA-256 digests of its first 1, 2, ... MiB, from ``ShardFile``.
    """

    path: str
    bytes: int
    sha256: str
    prefixes: tuple[str, ...] = ()


@dataclass(frozen=True)
class WrittenShard:
    """One written shard; ``sidecars`` are accompanying files, such as an offset index."""

    file: WrittenFile
    rows: int
    sidecars: tuple[WrittenFile, ...] = ()


@dataclass(frozen=True)
class ShardProblem:
    """A defect of a shard, with its byte offset or row if known."""

    path: str
    message: str
    offset: int | None = None
    row: int | None = None


@dataclass(frozen=True)
class ColumnEncoding:
    """The representation of a column in a format.

    Attributes:
        tf_type: "int64", "float32" or "bytes"; formats that are not parsed as Example also use
            "float64" and "struct".
        shape: () for scalars, (n,) or (n, m) for fixed sizes, None for ragged lists.
        null: The representation of nulls.
        loss: The loss of precision, for example "float64 to float32"; None if lossless.
    """

    tf_type: str
    shape: tuple[int, ...] | None
    null: str
    loss: str | None = None


class ShardReader(Protocol):
    """An open shard, used by one thread at a time and closed by its opener; not picklable."""

    @property
    def rows(self) -> int:
        """Number of rows in the file."""
        ...

    def read(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Return rows ``[start, stop)`` of the shard as feature types of the manifest's schema.

        The batch stays valid after the shard is closed. The cost does not grow with ``start``, and
        only the requested columns are decoded.

        Raises:
            DatasetDamaged: The bytes are not valid in this format.
        """
        ...

    def close(self) -> None:
        """Release the file."""
        ...


@dataclass(frozen=True)
class Plane:
    """One row of an output array: the values of a column, or its validity (``presence``)."""

    column: str
    presence: bool = False


class PlaneReader(Protocol):
    """A function that decodes columns of records into rows of arrays.

    Thread-safe as long as each thread passes its own arrays.
    """

    def __call__(
        self, records: npt.NDArray[Any], arrays: Sequence[npt.NDArray[Any]], start: int = 0
    ) -> None:
        """Decode records of shape (n, record_bytes) into ``array[row, start:start + n]``.

        ``arrays`` has one contiguous array for each group.
        """
        ...


class RecordAccess(Protocol):
    """Random access to fixed-width records, the fastest way to read a shard.

    Stateless and thread-safe: memory maps and returned arrays belong to the caller. Records may be
    passed in any order and number, also none.
    """

    @property
    def record_bytes(self) -> int:
        """Bytes of one record, framing included."""
        ...

    def records(self, path: str) -> npt.NDArray[Any]:
        """Return a memory map of the shard, uint8 of shape (rows, record_bytes)."""
        ...

    def decode(
        self, records: npt.NDArray[Any], columns: Sequence[str]
    ) -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any] | None]]:
        """Return ``{column: (values, present)}`` for records of shape (n, record_bytes).

        Values have the shape (n, *shape of the column). Booleans, integers and floats have the
        feature's own numpy type; dates are int64 days and timestamps int64 microseconds since 1970
        in UTC; strings, binaries and decimals (their text) are object arrays of bytes. Nulls are
        zeros or empty bytes. Lists of varying length are the rows of ``arrow.batches.create_item_rows``, nulls of
        length 0. Without nulls, ``present`` is not set (None).
        """
        ...

    def present(self, records: npt.NDArray[Any], column: str) -> npt.NDArray[Any] | None:
        """Return the validity mask of a column, None for columns without nulls."""
        ...

    def padded_texts(self, records: npt.NDArray[Any], column: str) -> npt.NDArray[Any] | None:
        """Return scalar strings, binaries or decimals as a numpy array of dtype ``S``.

        Nulls are empty. None if a value ends with a zero byte, which numpy would drop.
        """
        ...

    def byte_rows(self, records: npt.NDArray[Any], column: str) -> npt.NDArray[Any] | None:
        """Return strings or binaries of one length as a view of records, uint8 of (n, length).

        Nulls have undefined bytes. None if lengths differ.
        """
        ...

    def plane_reader(self, groups: Sequence[Sequence[Plane | None]]) -> PlaneReader:
        """Return a function that decodes numeric scalar columns into arrays.

        A group describes the rows of one array: columns of one numpy type (that of ``decode``), or
        validity in arrays of booleans. Rows of None are not written.
        """
        ...


@runtime_checkable
class NativeReading(Protocol):
    """An optional capability of formats: the library's own reader of one worker's rows."""

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
        """Return the library's own reader; ``options`` are passed to the library."""
        ...


@runtime_checkable
class NarrowProfile(Protocol):
    """An optional capability of formats whose layout depends on the values of some columns only."""

    def columns_to_profile(self, schema: pa.Schema) -> Sequence[str]:
        """Return the columns to profile; the ``ColumnProfile`` of others has only the row count."""
        ...


@runtime_checkable
class ShardFitting(Protocol):
    """An optional capability of formats whose layout depends on the rows of a shard."""

    def fitted(self, layout: Layout, *, rows: int, shards: int) -> Layout:
        """Return the layout for a dataset whose largest split has these rows in these shards."""
        ...


class DatasetFormat(Protocol):
    """A file format. Every implementation passes ``featurestore.testing.FormatConformance``.

    **State.** A format is stateless, picklable and thread-safe; executors and workers create it
    from its name. It needs no store, registry or engine.

    **Order of calls.** ``check`` and ``layout`` once in the process that exports a dataset;
    ``write_shard`` once for each shard, on any machine and in any order, and again if a task is
    retried; ``finish`` once after all shards; then the manifest, which contains the layout. All
    other calls depend only on path, layout or manifest. A format reads files of its older releases.

    **Layouts** are JSON objects that determine the bytes: the same rows with the same layout give
    the same bytes, independent of batch boundaries and machine.

    **Values.** Every feature type is read back unchanged, with its nulls; or ``encodings`` names
    the loss; or ``check`` rejects it. The memory under a null does not affect the bytes.

    **Files.** A shard and its sidecars are published atomically (``storage.shards.ShardFile``):
    a failed or killed call leaves at most a temporary file. Paths are relative to ``directory`` and
    chosen by the caller. A format writes no other file, removes nothing, and reads only files whose
    path it receives.

    **Errors.** ``UnsupportedType`` and ``InvalidArgument`` from ``check`` and ``layout``, before
    the first byte is written; ``UnsupportedType`` from ``write_shard`` for values that no layout
    supports; ``DatasetDamaged`` for corrupt files; ``MissingExtra`` if a library is not installed;
    ``StorageError`` for the file system.

    Optional capabilities are detected with ``isinstance``: ``NativeReading``, ``NarrowProfile``,
    ``ShardFitting`` and ``records.DescribesRecords``.
    """

    @property
    def name(self) -> str:
        """The entry point's name."""
        ...

    @property
    def extension(self) -> str:
        """The ending of shard files without a dot, or empty.

        ``<split>/<format>-00000-of-00008[.<extension>]``.
        """
        ...

    def check(self, schema: pa.Schema, *, compression: str | None) -> None:
        """Raise UnsupportedType (naming all such columns) or InvalidArgument."""
        ...

    def layout(
        self,
        schema: pa.Schema,
        profiles: Sequence[ColumnProfile],
        *,
        compression: str | None,
        block_rows: int,
    ) -> Layout:
        """Return the layout of a dataset, a JSON object for readers and writers."""
        ...

    def encodings(self, layout: Layout) -> dict[str, ColumnEncoding]:
        """Return the representation of each column."""
        ...

    def bytes_per_row(self, layout: Layout, profiles: Sequence[ColumnProfile]) -> float:
        """Return the expected bytes of one row, to choose the number of shards."""
        ...

    def write_shard(
        self, directory: str, path: str, batches: Iterator[pa.RecordBatch], *, layout: Layout
    ) -> WrittenShard:
        """Write one shard at ``directory/path`` atomically (temporary file, fsync, rename).

        ``batches`` is consumed once; it may be empty or yield empty batches. If it raises, the
        exception propagates and no shard is published.
        """
        ...

    def finish(self, directory: str, manifest: Manifest) -> Sequence[WrittenFile]:
        """Write files that describe the dataset (metadata, schema), before the manifest."""
        ...

    def open_shard(self, path: str, *, layout: Layout) -> ShardReader:
        """Open a shard for reading."""
        ...

    def record_access(self, layout: Layout) -> RecordAccess | None:
        """Return random access to records, or None if the layout does not support it."""
        ...

    def verify_shard(self, path: str, *, layout: Layout, rows: int) -> Sequence[ShardProblem]:
        """Check framing, checksums and row count of a shard, and return its defects."""
        ...

    def feature_spec(self, manifest: Manifest) -> dict[str, Any]:
        """Return ``{column: tf.io feature}``.

        Raises:
            InvalidArgument: TensorFlow does not parse the format as Example.
        """
        ...

    def refuse_reading(self, layout: Layout) -> str | None:
        """Return the reason why rows cannot be read at random (GZIP), or None."""
        ...


def find_format(name: str) -> DatasetFormat:
    """Create a format from the name of its entry point.

    Raises:
        InvalidArgument: No such format is installed.
    """
    entry_point = find_plugin("formats", name)
    if entry_point is None and isinstance(name, str):
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
