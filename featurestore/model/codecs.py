"""Bytes that hold encoded arrays, as petastorm's codecs write them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import UnsupportedType, listing
from featurestore.model.column_lines import cell_line

_NPY = b"\x93NUMPY"  # how every .npy file begins: numpy.lib.format
_ZIP = b"PK\x03\x04"  # numpy.savez writes a ZIP file, whose first member is an .npy file
_NAME_SIZE, _NAME = slice(26, 28), 30
# How dataframes whose cells are no Python objects become an Arrow table.
_TO_TABLE = {
    "pyarrow": "",
    "polars": "table = df.to_arrow(); ",
    "duckdb": "table = rows.to_arrow_table(); ",
}


def binary_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the columns of bytes.

    >>> binary_columns(pa.schema([("id", pa.int64()), ("image", pa.binary())]))
    ['image']
    """
    names = []
    for field in schema:
        kind = field.type
        if pat.is_dictionary(kind):
            kind = kind.value_type
        if pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind):
            names.append(field.name)
    return names


class EncodedArrayCheck:
    """Refuses columns of bytes whose first value is an array in the form of an .npy or .npz file.

    It is called with one batch after the other and returns each as it is. ``language``
    is the kind of dataframe whose words the hint uses.
    """

    def __init__(self, names: Sequence[str], *, language: str) -> None:
        self.undecided = set(names)
        self._language = language

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch.

        Raises:
            UnsupportedType: Names the columns, and the line that gives the arrays themselves.
        """
        if not self.undecided:
            return batch
        encoded = {}
        for name in batch.schema.names:
            if name not in self.undecided:
                continue
            present = batch.column(batch.schema.get_field_index(name)).drop_null()
            if len(present):
                self.undecided.discard(name)
                load = _loading(present[0].as_py())
                if load is not None:
                    encoded[name] = load
        if encoded:
            name, load = next(iter(encoded.items()))
            raise UnsupportedType(
                f"{listing(list(encoded))} hold numpy arrays encoded as bytes, as petastorm's "
                "NdarrayCodec does; readers would give the bytes back.",
                hint=_decoding(name, load, self._language),
            )
        return batch


def _loading(cell: bytes) -> str | None:
    """Return the expression that makes an array of a cell; None for bytes that are no array."""
    if cell.startswith(_NPY):
        return "np.load(io.BytesIO(cell))"
    if not cell.startswith(_ZIP):
        return None
    end = _NAME + int.from_bytes(cell[_NAME_SIZE], "little")
    member = cell[_NAME:end]
    if not member.endswith(b".npy"):
        return None
    return f"np.load(io.BytesIO(cell))[{member[:-4].decode(errors='replace')!r}]"


def _decoding(name: str, load: str, language: str) -> str:
    """Return the hint for a column: the line that decodes it, and what to do where bytes are meant."""
    line = cell_line(language, name, load.replace("cell", "{v}"))
    if language == "pyspark":
        line = (
            "rows need no dict_to_spark_row: spark.createDataFrame([{"
            f"{name!r}: array.tolist(), ...}}]), or hand over {{{name!r}: array, ...}}"
        )
    elif line is None or language in _TO_TABLE:
        line = (
            f"{_TO_TABLE.get(language, '')}columns = {{**dict(zip(table.column_names, "
            f"table.columns)), {name!r}: [None if cell is None else {load} for cell in "
            f"table[{name!r}].to_pylist()]}}"
        )
    return (
        f"{line}; if bytes are meant, create the group from a table without rows, where {name!r} "
        "is pa.binary(), and insert them"
    )
