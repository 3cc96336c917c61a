"""The interface of file formats of training datasets: write a shard, read rows [a, b) of a shard.

A format is looked up by name among the entry points ``featurestore.formats``; ours come that way
too.
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
from featurestore.plugins.lookup import find_plugin, load_plugin, plugin_names

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from featurestore.model.manifest import Manifest

Layout = Mapping[str, Any]


@dataclass(frozen=True)
class ColumnProfile:
    """What a layout needs to know of a column over all splits: counts and extremes.

    ``minimum``/``maximum`` are of integers, dates (days) and timestamps (microseconds), else None;
    of lists they are those of the items where they were counted. ``longest``/``total_length`` are
    bytes of strings and binaries, items of lists; 0 for other types. ``inner_nulls`` counts nulls
    among the items of lists. Of lists of strings and binaries ``longest_item`` is the bytes of the
    longest one and ``longest_bytes`` those of the items of one row together, at most. ``declared``:
    the caller bounded the length and wants one width for all records, whatever it costs.
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

    ``prefixes`` are the beginnings of the SHA-256 of its first 1, 2, ... MiB, as ``ShardFile``
    gives them.
    """

    path: str
    bytes: int
    sha256: str
    prefixes: tuple[str, ...] = ()


@dataclass(frozen=True)
class WrittenShard:
    """One shard as written; ``sidecars`` are files beside it (an offset index)."""

    file: WrittenFile
    rows: int
    sidecars: tuple[WrittenFile, ...] = ()


@dataclass(frozen=True)
class ShardProblem:
    """Something wrong in a shard: what, and where (byte offset or row, as far as known)."""

    path: str
    message: str
    offset: int | None = None
    row: int | None = None


@dataclass(frozen=True)
class ColumnEncoding:
    """How a format holds a column.

    ``tf_type`` is "int64", "float32" or "bytes", or in formats that are not parsed as Example also
    "float64" and "struct"; ``shape`` is () for scalars, (n,) or (n, m) for fixed sizes and None for
    ragged lists; ``null`` says how nulls are written; ``loss`` names what the format cannot keep
    (for example "float64 to float32"), None when nothing is lost.
    """

    tf_type: str
    shape: tuple[int, ...] | None
    null: str
    loss: str | None = None


class ShardReader(Protocol):
    """An open shard. Used by one thread at a time and closed by who opened it; not picklable."""

    @property
    def rows(self) -> int:
        """Number of rows in the file."""
        ...

    def read(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Return rows ``[start, stop)`` of the shard as feature types of the manifest's schema.

        The batch is the caller's: it stays valid when the shard is closed. What it costs does not
        grow with ``start``, and columns that are not asked for are not decoded. Raises
        DatasetDamaged for bytes that the format does not write.
        """
        ...

    def close(self) -> None:
        """Release the file."""
        ...


@dataclass(frozen=True)
class Plane:
    """One row of an array: the numbers of a column, or which records have one."""

    column: str
    presence: bool = False


class PlaneReader(Protocol):
    """Writes columns of records into the rows of arrays.

    Many threads may call it, each with arrays of its own.
    """

    def __call__(
        self, records: npt.NDArray[Any], arrays: Sequence[npt.NDArray[Any]], start: int = 0
    ) -> None:
        """Write columns of records (n, record_bytes) into ``array[row, start .

        Start + n]``, one array for each group.

        The arrays are contiguous.
        """
        ...


class RecordAccess(Protocol):
    """Random access to records of one fixed width: the fastest way into a shard.

    Holds no file and no state, so that many threads may use it: memory maps belong to the caller,
    and so do the arrays that come back. Records come in any order and number, also none.
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

        Present is None without nulls.

        Values have the shape (n, *shape of the column). Booleans, integers and floats have the
        feature's own numpy type; dates are int64 days and timestamps int64 microseconds since 1970
        in UTC; strings, binaries and decimals (their text) are object arrays of bytes. Where a
        value is absent stand zeros or empty bytes. Lists of varying length are the rows of
        ``arrow.item_rows``, absent ones of length 0.
        """
        ...

    def present(self, records: npt.NDArray[Any], column: str) -> npt.NDArray[Any] | None:
        """Return which records have a value of a column, None for columns without nulls."""
        ...

    def padded_texts(self, records: npt.NDArray[Any], column: str) -> npt.NDArray[Any] | None:
        """Return strings, binaries or decimals as numpy's bytes of one width, ``S``.

        Empty where there is no value.

        None where they cannot be held so: numpy drops zeros at the end. Asked of single values, not
        of lists.
        """
        ...

    def byte_rows(self, records: npt.NDArray[Any], column: str) -> npt.NDArray[Any] | None:
        """Return strings or binaries of one length as a view of records, uint8 of (n, length).

        Anything stands where there is no value. None where lengths differ.
        """
        ...

    def plane_reader(self, groups: Sequence[Sequence[Plane | None]]) -> PlaneReader:
        """Return what writes columns of single numbers into arrays, as fast as the layout allows.

        A group is the rows of one array: columns of one numpy type (that of ``decode``), presence
        in arrays of booleans; rows of None are left alone.
        """
        ...


@runtime_checkable
class NativeReading(Protocol):
    """What a format may offer besides.

    A reader of its own library, over one worker's share of a split.
    """

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
        """Return the library's own reader; ``options`` are the library's."""
        ...


@runtime_checkable
class NarrowProfile(Protocol):
    """What a format may offer whose layout does not depend on the values of every column."""

    def profiled(self, schema: pa.Schema) -> Sequence[str]:
        """Return the columns to look at; of the others a ``ColumnProfile`` tells the rows alone."""
        ...


@runtime_checkable
class ShardFitting(Protocol):
    """What a format may offer besides, when its layout depends on how many rows a shard has."""

    def fitted(self, layout: Layout, *, rows: int, shards: int) -> Layout:
        """Return the layout for a dataset whose largest split has these rows in these shards."""
        ...


class DatasetFormat(Protocol):
    """A file format. Every implementation passes ``featurestore.testing.FormatConformance``.

    **State.** A format has none: objects are picklable, several threads and processes use one or
    many, and executors and workers make their own from the name. They need no store, registry or
    engine.

    **Order of calls.** ``check`` and ``layout`` once in the process that makes a dataset;
    ``write_shard`` once for each shard, on any machine and in any order, perhaps again where a task
    is repeated; ``finish`` once, when all shards are there; then the manifest, which holds the
    layout. All other calls have path, layout or manifest alone: a format reads back what it wrote,
    also what its older releases wrote.

    **Layouts** are JSON objects and say all that decides the bytes. The same rows with the same
    layout give the same bytes, whatever batches they come in and whatever machine writes them.

    **Values.** Every feature type comes back as it was, with its nulls, or ``encodings`` names what
    is lost, or ``check`` refuses it. What stands in memory under a null decides no byte.

    **Files.** A shard and its sidecars appear whole or not at all
    (``storage.shardfile.ShardFile``): a failed or killed call leaves at most a temporary file.
    Paths are relative to ``directory`` and decided by the caller. A format writes nothing else,
    removes nothing, and reads no file that it was not given.

    **Errors.** ``UnsupportedType`` and ``InvalidArgument`` from ``check`` and ``layout``, before
    the first byte is written; ``UnsupportedType`` from ``write_shard`` for values that no layout
    can hold; ``DatasetDamaged`` for files that are not what was written; ``MissingExtra`` where a
    library is absent; ``StorageError`` for the file system.

    A format may offer more: ``NativeReading``, ``NarrowProfile``, ``ShardFitting`` and
    ``records.DescribesRecords`` are asked for by ``isinstance``.
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
        """Raise UnsupportedType (for all columns) or InvalidArgument where it cannot hold them."""
        ...

    def layout(
        self,
        schema: pa.Schema,
        profiles: Sequence[ColumnProfile],
        *,
        compression: str | None,
        block_rows: int,
    ) -> Layout:
        """Return the layout that fits the data.

        A JSON object with all that reading and writing need.
        """
        ...

    def encodings(self, layout: Layout) -> dict[str, ColumnEncoding]:
        """Return how each column is held."""
        ...

    def bytes_per_row(self, layout: Layout, profiles: Sequence[ColumnProfile]) -> float:
        """Return the expected bytes of one row, to choose the number of shards."""
        ...

    def write_shard(
        self, directory: str, path: str, batches: Iterator[pa.RecordBatch], *, layout: Layout
    ) -> WrittenShard:
        """Write one shard at ``directory/path`` atomically (temporary file, fsync, rename).

        ``batches`` is read once, to its end, by this call; it may yield no batch and empty ones.
        What it raises is passed on, and the shard does not appear.
        """
        ...

    def finish(self, directory: str, manifest: Manifest) -> Sequence[WrittenFile]:
        """Write files that describe the whole dataset (metadata, schema), before the manifest."""
        ...

    def open_shard(self, path: str, *, layout: Layout) -> ShardReader:
        """Return an open shard."""
        ...

    def record_access(self, layout: Layout) -> RecordAccess | None:
        """Return random access to records, or None when this layout has none."""
        ...

    def verify_shard(self, path: str, *, layout: Layout, rows: int) -> Sequence[ShardProblem]:
        """Return what is wrong in a shard.

        Framing, checksums, row count. Problems are returned, not raised.
        """
        ...

    def feature_spec(self, manifest: Manifest) -> dict[str, Any]:
        """Return ``{column: tf.io feature}``.

        InvalidArgument for formats that TensorFlow does not parse as Example.
        """
        ...

    def refuse_reading(self, layout: Layout) -> str | None:
        """Return why rows cannot be read at random (GZIP), or None."""
        ...


def find_format(name: str) -> DatasetFormat:
    """Return a format by the name of its entry point.

    Raises:
        InvalidArgument: No such format; lists those installed.
    """
    found = find_plugin("formats", name)
    if found is None and isinstance(name, str):
        found = find_plugin("formats", name.lower())
    if found is None:
        there = listing(plugin_names("formats"))
        raise InvalidArgument(
            f"data_format={name!r} is not installed; there are {there}.",
            hint=did_you_mean(name, plugin_names("formats"), write="data_format={!r}")
            or "data_format='tfrecord'",
        )
    result: DatasetFormat = load_plugin(found)()
    return result
