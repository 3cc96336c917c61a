"""Bytes that hold encoded arrays, as petastorm's codecs write them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import UnsupportedType, listing

_NPY = b"\x93NUMPY"  # how every .npy file begins: numpy.lib.format


def binary_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the columns of bytes.

    >>> binary_columns(pa.schema([("id", pa.int64()), ("image", pa.binary())]))
    ['image']
    """
    names = []
    for field in schema:
        if pat.is_binary(field.type) or pat.is_large_binary(field.type):
            names.append(field.name)
    return names


def refuse_encoded_arrays(rows: pa.RecordBatch, *, library: str) -> None:
    """Refuse bytes that are numpy arrays in the form of .npy files; the first value decides.

    Raises:
        UnsupportedType: Names the columns, and the line that gives the arrays themselves.
    """
    encoded = []
    for name in binary_columns(rows.schema):
        present = rows.column(name).drop_null()
        if len(present) and present[0].as_py().startswith(_NPY):
            encoded.append(name)
    if encoded:
        raise UnsupportedType(
            f"{listing(encoded)} hold numpy arrays encoded as .npy bytes, as petastorm's "
            "NdarrayCodec does; readers would give the bytes back.",
            hint=_plain_call(encoded[0], library),
        )


def _plain_call(name: str, library: str) -> str:
    if library == "pyspark":
        line = (
            "rows need no dict_to_spark_row: spark.createDataFrame([{"
            f'"{name}": array.tolist(), ...}}]), or hand over {{"{name}": array, ...}}'
        )
    else:
        line = f'df["{name}"] = [cell and np.load(io.BytesIO(cell)) for cell in df["{name}"]]'
    return f"{line}; if bytes are meant, say so by Arrow's type: pa.array(cells, pa.binary())"
