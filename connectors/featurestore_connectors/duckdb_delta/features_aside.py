"""Features of labels, in a file by pieces of the labels, until each piece is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.arrow.arrow_rows import concat_arrays, take_values
from featurestore.storage.spool import BatchFile

Int64s = npt.NDArray[np.int64]

# The features of a piece of labels have about so many bytes; they are held at once.
_PIECE_BYTES = 64 << 20
_PLACE = "__fs_place"


def starts_of_pieces(places: Iterable[Int64s], *, bytes_per_label: int) -> Int64s:
    """Return the places at which the second and later pieces of some labels begin.

    Args:
        places: Those of all labels, ascending.
        bytes_per_label: Of the features of all groups.
    """
    rows = max(_PIECE_BYTES // bytes_per_label, 1)
    starts, seen = [np.empty(0, dtype=np.int64)], 0
    for some in places:
        starts.append(some[-seen % rows :: rows])
        seen += len(some)
    return np.concatenate(starts)[1:]


class FeaturesAside:
    """Features in a file, a row for each label that some row answers.

    Args:
        directory: Where the file is made.
        schema: Of the features.
        starts: The places at which pieces of the labels begin.
    """

    def __init__(self, directory: str, schema: pa.Schema, starts: Int64s) -> None:
        self.names = schema.names
        self._schema = pa.schema([pa.field(_PLACE, pa.int64()), *schema])
        self._starts = starts
        # Numpy sorts narrow integers by radix.
        self._numbers = np.min_scalar_type(len(starts))
        self._file = BatchFile(directory, self._schema)
        self._reader: pa.RecordBatchFileReader | None = None
        self._written = 0
        # The numbers of each piece's batches in the file.
        self._batches: list[list[int]] = [[] for _ in range(len(starts) + 1)]

    def add(self, labels: Int64s, rows: pa.RecordBatch, positions: Int64s) -> None:
        """Set aside the features of rows at some positions, each for the label at a place."""
        pieces = np.searchsorted(self._starts, labels, side="right").astype(self._numbers)
        order = np.argsort(pieces, kind="stable")
        arrays = [pa.array(labels[order])]
        for name in self.names:
            arrays.append(take_values(rows.column(name), positions[order]))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        cuts = np.searchsorted(pieces[order], np.arange(len(self._batches) + 1)).tolist()
        for piece, (first, last) in enumerate(pairwise(cuts)):
            if last > first:
                self._file.write(batch.slice(first, last - first))
                self._batches[piece].append(self._written)
                self._written += 1

    def of_piece(self, number: int) -> FeaturesOfPiece:
        """Return the features of a piece of the labels, after the last ``add``."""
        if self._reader is None:
            self._reader = self._file.reader()
        batches = []
        for written in self._batches[number]:
            batches.append(self._reader.get_batch(written))
        rows = pa.Table.from_batches(batches, schema=self._schema)
        places = rows.column(_PLACE).to_numpy()
        order = np.argsort(places)
        columns = {}
        for name in self.names:
            columns[name] = take_values(_in_one_piece(rows.column(name)), order)
        return FeaturesOfPiece(places[order], columns)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


@dataclass(frozen=True)
class FeaturesOfPiece:
    """The features of a piece of labels, in the order of the labels' places."""

    places: Int64s
    columns: Mapping[str, pa.Array]

    def at(self, places: Int64s) -> tuple[dict[str, pa.Array], npt.NDArray[np.bool_]]:
        """Return the features of labels at ascending places, null without an answer.

        Returns:
            The columns, and which of the labels have an answer.
        """
        positions = np.searchsorted(self.places, places)
        found = np.zeros(len(places), dtype=bool)
        inside = positions < len(self.places)
        found[inside] = self.places[positions[inside]] == places[inside]
        answers = {}
        if found.all():
            # The labels of a piece are read one after another, and so are their answers.
            for name, column in self.columns.items():
                answers[name] = column.slice(positions[0], len(places))
        else:
            indices = pa.array(positions, mask=~found)
            for name, column in self.columns.items():
                answers[name] = take_values(column, indices)
        return answers, found


def _in_one_piece(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 0:
        return pa.nulls(0, column.type)
    return concat_arrays(column.chunks)
