"""A spool file of matched features, partitioned by chunks of the labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.arrow.batches import concat_arrays, take_values
from featurestore.storage.spool import BatchFile

Int64s = npt.NDArray[np.int64]

# Approximate bytes of the features of a chunk of labels; one chunk is in memory at a time.
_CHUNK_BYTES = 64 << 20
_LABEL_ID = "__fs_place"


def chunk_starts(row_id_batches: Iterable[Int64s], *, bytes_per_label: int) -> Int64s:
    """Return the label ids at which the second and later chunks of the labels start.

    Args:
        row_id_batches: The ids of all labels, ascending.
        bytes_per_label: Bytes of a label's features from all groups.
    """
    rows = max(_CHUNK_BYTES // bytes_per_label, 1)
    starts, row_count = [np.empty(0, dtype=np.int64)], 0
    for row_ids in row_id_batches:
        starts.append(row_ids[-row_count % rows :: rows])
        row_count += len(row_ids)
    return np.concatenate(starts)[1:]


class FeatureSpool:
    """Features in a spool file, one row for each matched label.

    Args:
        directory: The directory of the file.
        schema: The schema of the features.
        starts: The label ids at which the chunks start.
    """

    def __init__(self, directory: str, schema: pa.Schema, starts: Int64s) -> None:
        self.names = schema.names
        self._schema = pa.schema([pa.field(_LABEL_ID, pa.int64()), *schema])
        self._starts = starts
        # Numpy sorts narrow integers by radix.
        self._numbers = np.min_scalar_type(len(starts))
        self._file = BatchFile(directory, self._schema)
        self._reader: pa.RecordBatchFileReader | None = None
        self._batch_count = 0
        # The numbers of each chunk's batches in the file.
        self._batches: list[list[int]] = [[] for _ in range(len(starts) + 1)]

    def add(self, label_ids: Int64s, rows: pa.RecordBatch, positions: Int64s) -> None:
        """Spool the features of rows at ``positions``, the matches of ``label_ids``."""
        chunks = np.searchsorted(self._starts, label_ids, side="right").astype(self._numbers)
        chunk_order = np.argsort(chunks, kind="stable")
        arrays = [pa.array(label_ids[chunk_order])]
        for name in self.names:
            arrays.append(take_values(rows.column(name), positions[chunk_order]))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        boundaries = np.searchsorted(
            chunks[chunk_order], np.arange(len(self._batches) + 1)
        ).tolist()
        for chunk, (first, last) in enumerate(pairwise(boundaries)):
            if last > first:
                self._file.write(batch.slice(first, last - first))
                self._batches[chunk].append(self._batch_count)
                self._batch_count += 1

    def read_chunk(self, number: int) -> FeatureChunk:
        """Read the features of a chunk of labels; call it after the last ``add``."""
        if self._reader is None:
            self._reader = self._file.reader()
        batches = [self._reader.get_batch(batch_number) for batch_number in self._batches[number]]
        rows = pa.Table.from_batches(batches, schema=self._schema)
        label_ids = rows.column(_LABEL_ID).to_numpy()
        order = np.argsort(label_ids)
        columns = {}
        for name in self.names:
            columns[name] = take_values(_combine_chunks(rows.column(name)), order)
        return FeatureChunk(label_ids[order], columns)

    def close(self) -> None:
        """Close and remove the file."""
        self._file.close()


@dataclass(frozen=True)
class FeatureChunk:
    """The features of a chunk of labels, ordered by label id."""

    label_ids: Int64s
    columns: Mapping[str, pa.Array]

    def lookup(self, label_ids: Int64s) -> tuple[dict[str, pa.Array], npt.NDArray[np.bool_]]:
        """Return the features of labels with ascending ids, null without a match.

        Returns:
            The columns, and a mask of the matched labels.
        """
        positions = np.searchsorted(self.label_ids, label_ids)
        is_matched = np.zeros(len(label_ids), dtype=bool)
        in_range = positions < len(self.label_ids)
        is_matched[in_range] = self.label_ids[positions[in_range]] == label_ids[in_range]
        columns = {}
        if is_matched.all():
            # Labels are read sequentially, so their matches are contiguous: slice without a copy.
            for name, column in self.columns.items():
                columns[name] = column.slice(positions[0], len(label_ids))
        else:
            indices = pa.array(positions, mask=~is_matched)
            for name, column in self.columns.items():
                columns[name] = take_values(column, indices)
        return columns, is_matched


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 0:
        return pa.nulls(0, column.type)
    return concat_arrays(column.chunks)
