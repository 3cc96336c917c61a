"""Detection of byte columns that contain encoded arrays, as petastorm's codecs write them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.column_lines import cell_line
from featurestore.errors import UnsupportedType, listing

_NPY = b"\x93NUMPY"  # magic number of .npy files: numpy.lib.format
_ZIP = b"PK\x03\x04"  # numpy.savez writes a ZIP file whose first member is an .npy file
_NAME_SIZE, _NAME = slice(26, 28), 30
# Conversion to an Arrow table for dataframes without Python cells.
_TO_ARROW_TABLE = {
    "pyarrow": "",
    "polars": "table = df.to_arrow(); ",
    "duckdb": "table = rows.to_arrow_table(); ",
}


def binary_columns(schema: pa.Schema) -> list[str]:
    """Return the names of byte columns.

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
    """A check that refuses byte columns whose first value is an .npy or .npz file.

    It is called for each batch and returns the batch. ``language`` is the kind of dataframe of the
    hint.
    """

    def __init__(self, names: Sequence[str], *, language: str) -> None:
        self.pending_columns = set(names)
        self._language = language

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch.

        Raises:
            UnsupportedType: Names the columns and the line that decodes them.
        """
        if not self.pending_columns:
            return batch
        encoded = {}
        for name in batch.schema.names:
            if name not in self.pending_columns:
                continue
            present = batch.column(batch.schema.get_field_index(name)).drop_null()
            # The values of a dictionary may be null as well.
            cell = next((each.as_py() for each in present if each.as_py() is not None), None)
            if cell is not None:
                self.pending_columns.discard(name)
                load = _load_expression(cell)
                if load is not None:
                    encoded[name] = load
        if encoded:
            name, load = next(iter(encoded.items()))
            raise UnsupportedType(
                f"{listing(list(encoded))} hold numpy arrays encoded as bytes, as petastorm's "
                "NdarrayCodec does; readers would return the bytes.",
                hint=_decode_hint(name, load, self._language),
            )
        return batch


def _load_expression(cell: bytes) -> str | None:
    """Return the expression that decodes a cell; None for bytes that are not an array."""
    if cell.startswith(_NPY):
        return "np.load(io.BytesIO(cell))"
    if not cell.startswith(_ZIP):
        return None
    end = _NAME + int.from_bytes(cell[_NAME_SIZE], "little")
    member = cell[_NAME:end]
    if not member.endswith(b".npy"):
        return None
    return f"np.load(io.BytesIO(cell))[{member[:-4].decode(errors='replace')!r}]"


def _decode_hint(name: str, load_expression: str, language: str) -> str:
    """Return the hint for a column: the line that decodes it, and how to store bytes instead."""
    line = cell_line(language, name, load_expression.replace("cell", "{v}"))
    if language == "pyspark":
        line = (
            "rows need no dict_to_spark_row: spark.createDataFrame([{"
            f"{name!r}: array.tolist(), ...}}]), or pass {{{name!r}: array, ...}}"
        )
    elif line is None or language in _TO_ARROW_TABLE:
        line = (
            f"{_TO_ARROW_TABLE.get(language, '')}columns = {{**dict(zip(table.column_names, "
            f"table.columns)), {name!r}: [None if cell is None else {load_expression} for cell in "
            f"table[{name!r}].to_pylist()]}}"
        )
    return (
        f"{line}; to store bytes, create the group from a table without rows, where {name!r} "
        "is pa.binary(), and insert them"
    )
