"""The row hash is equal for equal values in every representation, and stable across releases."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.errors import InvalidArgument, UnsupportedType
from featurestore.hashing import canonical_bytes, row_hash, tie_hash
from tests.hashing import reference
from tests.hashing.strategies import tables

DOCS = Path(__file__).parents[2] / "docs" / "row-hash.md"
UTC = dt.UTC
D = decimal.Decimal

# (as written in the docs, type, value, hash with seed 0).  Never change a line; add lines for new
# types.
VECTORS: list[tuple[str, pa.DataType, Any, int]] = [
    ("null", pa.int64(), None, 0xFE3282CFB8963162),
    ("bool false", pa.bool_(), False, 0xAE8C6B9E91A29992),
    ("bool true", pa.bool_(), True, 0x15A3B0C011563BA4),
    ("int 0", pa.int64(), 0, 0xF672DBC5B7CA5358),
    ("int 1", pa.int8(), 1, 0xEA5243D49ECCD4ED),
    ("int -1", pa.int32(), -1, 0x398AFFC4CF5582D9),
    ("int 9223372036854775807", pa.uint64(), 2**63 - 1, 0x916DC8CC80455746),
    ("int 18446744073709551615", pa.uint64(), 2**64 - 1, 0xAD9A9739664BAF40),
    ("float 0.0", pa.float64(), 0.0, 0x93367866D6CDA772),
    ("float -0.0", pa.float32(), -0.0, 0x93367866D6CDA772),
    ("float 1.5", pa.float32(), 1.5, 0x47E0A851AAEE078A),
    ("float NaN", pa.float32(), float("nan"), 0x03F960F97BA0D83D),
    ("float -infinity", pa.float64(), float("-inf"), 0xF120EF2786A5F306),
    ("text (empty)", pa.string(), "", 0xAC4B6F947A3D2B62),
    ("text abc", pa.large_string(), "abc", 0x238568DD6BCF6129),
    ("text 12345678", pa.string(), "12345678", 0x8B5C502C6CCEAE3D),
    ("text 123456789", pa.string(), "123456789", 0x132BC19997DE340D),
    ("text Grüße, 世界", pa.dictionary(pa.int8(), pa.string()), "Grüße, 世界", 0x1815F76901999BAE),
    ("bytes abc", pa.binary(), b"abc", 0x9776160E150DEE2C),
    ("date 1970-01-01", pa.date32(), dt.date(1970, 1, 1), 0x318EEAC8581B4D15),
    ("date 2024-02-29", pa.date64(), dt.date(2024, 2, 29), 0x9B2DDEC50320E3E2),
    (
        "time 2024-02-29T12:00:00Z",
        pa.timestamp("us", tz="UTC"),
        dt.datetime(2024, 2, 29, 12, tzinfo=UTC),
        0x5BB34039F01DD1D4,
    ),
    (
        "time 1969-12-31T23:59:59.999999Z",
        pa.timestamp("us"),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
        0x3F8E2014746B6E7F,
    ),
    ("time 1 ns after 1970", pa.timestamp("ns"), 1, 0xA939E9CC9F4FB2EA),
    ("decimal 0", pa.decimal128(10, 2), D("0.00"), 0x3EECF162EB6D0011),
    ("decimal 12.5", pa.decimal128(10, 2), D("12.50"), 0xE63A6FECBF326E04),
    ("decimal -12.5", pa.decimal128(38, 10), D("-12.5"), 0x4FC834F1FB49011F),
    (
        "decimal 99999999999999999999.99",
        pa.decimal128(22, 2),
        D("99999999999999999999.99"),
        0x164D1C5767D6D5CA,
    ),
    ("list of int [ ]", pa.list_(pa.int64()), [], 0xA6B260F86075C9F5),
    ("list of int [null]", pa.list_(pa.int64()), [None], 0x89DF9E8F234B298D),
    ("list of int [1, 2]", pa.list_(pa.int32(), 2), [1, 2], 0xFECFE774A1482F64),
    ("list of int [2, 1]", pa.large_list(pa.int8()), [2, 1], 0xB0BCE7D20C03442B),
    (
        "list of list of text [[a], []]",
        pa.list_(pa.list_(pa.string())),
        [["a"], []],
        0xF12689C627BFA518,
    ),
    (
        "struct (int 1, text a)",
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        {"x": 1, "y": "a"},
        0x2E07D3845416874C,
    ),
    (
        "struct (null, null)",
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        {"x": None, "y": None},
        0x9BFCF0FE58B572A0,
    ),
]


def build_array(value: Any, dtype: pa.DataType) -> Any:
    if pa.types.is_dictionary(dtype):
        return pa.array([value], dtype.value_type).dictionary_encode()
    return pa.array([value], dtype)


def hash_of(array: Any, *, seed: int = 0) -> list[int]:
    return [int(number) for number in row_hash(pa.table({"x": array}), seed=seed)]


def test_row_hash_of_every_type_is_frozen(subtests: pytest.Subtests) -> None:
    for text, dtype, value, expected in VECTORS:
        with subtests.test(text):
            assert [hex(number) for number in hash_of(build_array(value, dtype))] == [hex(expected)]


def test_docs_page_lists_frozen_hash_vectors() -> None:
    shown = dict(
        re.findall(
            r"^\| `(.+?)` \| `(0x[0-9a-f]{16})` \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    assert {text: f"0x{expected:016x}" for text, _, _, expected in VECTORS}.items() <= shown.items()


def test_row_hash_with_seeds_and_columns_is_frozen() -> None:
    rows = pa.table({"zone": ["JFK"], "hour": pa.array([dt.datetime(2013, 1, 1, 5, tzinfo=UTC)])})
    actual = [hex(row_hash(rows, seed=seed)[0]) for seed in (0, 1, -1, 2**64 - 1, 42)]
    assert actual == [
        "0x51f317598eb83c12",
        "0xffc6637463297b0f",
        "0x2b8c47ff27666cf5",
        "0x2b8c47ff27666cf5",
        "0x56904bf0fa8aac2f",
    ]
    assert hex(tie_hash(rows)[0]) == "0x5882e3d5369f1023"
    assert actual[2] == actual[3]


@given(tables(), st.integers(-(2**63), 2**64 - 1))
@settings(max_examples=40, deadline=None)
def test_row_hash_equals_reference_definition(table: pa.Table, seed: int) -> None:
    assert row_hash(table, seed=seed).tolist() == reference.row_hashes(table, seed=seed)
    assert tie_hash(table).tolist() == reference.tie_hashes(table)


@given(tables(max_rows=30), st.data())
@settings(max_examples=40, deadline=None)
def test_row_hash_ignores_slices_and_chunks(table: pa.Table, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, table.num_rows))
    length = data.draw(st.integers(0, table.num_rows))
    hashes, subset = row_hash(table), table.slice(start, length)
    assert row_hash(subset).tolist() == hashes[start : start + length].tolist()
    chunked = pa.concat_tables([table.slice(0, start), table.slice(start)])
    assert row_hash(chunked).tolist() == hashes.tolist()
    assert tie_hash(chunked).tolist() == tie_hash(table).tolist()
    assert (
        canonical_bytes(subset).to_pylist()
        == canonical_bytes(table).to_pylist()[start : start + length]
    )
    for batch in subset.to_batches():
        assert set(row_hash(batch)) <= set(hashes)


@given(st.lists(st.one_of(st.none(), st.integers(-128, 127)), max_size=20))
def test_row_hash_integer_widths_are_equal(numbers: list[int | None]) -> None:
    expected = hash_of(pa.array(numbers, pa.int64()))
    for dtype in (pa.int8(), pa.int16(), pa.int32()):
        assert hash_of(pa.array(numbers, dtype)) == expected
    positive = [None if number is None else abs(number) for number in numbers]
    expected = hash_of(pa.array(positive, pa.int64()))
    for dtype in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        assert hash_of(pa.array(positive, dtype)) == expected


@given(st.lists(st.one_of(st.none(), st.floats(width=32)), max_size=20))
def test_row_hash_float_widths_are_equal(numbers: list[float | None]) -> None:
    assert hash_of(pa.array(numbers, pa.float32())) == hash_of(pa.array(numbers, pa.float64()))


@given(st.lists(st.one_of(st.none(), st.text(max_size=20)), max_size=20))
def test_row_hash_text_encodings_are_equal(texts: list[str | None]) -> None:
    plain = pa.array(texts, pa.string())
    expected = hash_of(plain)
    assert hash_of(plain.cast(pa.large_string())) == expected
    assert hash_of(plain.dictionary_encode()) == expected
    assert hash_of(plain.dictionary_encode().slice(1)) == expected[1:]
    with_null = pa.DictionaryArray.from_arrays(pa.array(range(len(texts)), pa.int32()), plain)
    assert hash_of(with_null) == expected
    if hasattr(pa, "string_view"):
        assert hash_of(pa.array(texts, pa.string_view())) == expected
    assert [
        number for number in hash_of(plain.cast(pa.binary())) if number != reference_null()
    ] == [
        number
        for number in hash_of(pa.array([t and t.encode() for t in texts], pa.large_binary()))
        if number != reference_null()
    ]


def reference_null() -> int:
    return hash_of(pa.nulls(1))[0]


def test_row_hash_list_layouts_are_equal() -> None:
    rows = [[1, 2], [3, None], None, [5, 6]]
    expected = hash_of(pa.array(rows, pa.list_(pa.int64())))
    layouts = [pa.list_(pa.int8(), 2), pa.large_list(pa.uint16())]
    if hasattr(pa, "list_view"):
        layouts += [pa.list_view(pa.int32()), pa.large_list_view(pa.int64())]
    for dtype in layouts:
        array = pa.array(rows, dtype)
        assert hash_of(array) == expected, dtype
        assert hash_of(array.slice(1, 2)) == expected[1:3], dtype


def test_row_hash_ignores_values_under_null_lists() -> None:
    hidden = pa.ListArray.from_arrays(pa.array([0, 2, 4, 5]), pa.array([1, 2, 9, 9, 3]))
    buffers = [pa.py_buffer(bytes([0b101])), *hidden.buffers()[1:2]]
    masked = pa.ListArray.from_buffers(hidden.type, 3, buffers, children=[hidden.values])
    assert masked.to_pylist() == [[1, 2], None, [3]]
    clean = pa.array([[1, 2], None, [3]])
    assert hash_of(masked) == hash_of(clean)
    assert canonical_bytes(pa.table({"x": masked})).equals(canonical_bytes(pa.table({"x": clean})))


def test_row_hash_time_units_and_zones_are_equal() -> None:
    noon = dt.datetime(2024, 2, 29, 12, 0, 5, tzinfo=UTC)
    expected = hash_of(pa.array([noon], pa.timestamp("us", tz="UTC")))
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "UTC", "Asia/Tokyo"):
            array = pa.array([noon], pa.timestamp("us", tz="UTC")).cast(
                pa.timestamp(unit, tz="UTC")
            )
            assert hash_of(array.cast(pa.timestamp(unit, tz=zone))) == expected, (unit, zone)
    nanoseconds = pa.array([1_000, 1_001, -1, -1_000], pa.timestamp("ns"))
    actual = hash_of(nanoseconds)
    assert actual[0] == hash_of(pa.array([1], pa.timestamp("us")))[0]
    assert len(set(actual)) == 4


def test_row_hash_decimal_scales_are_equal() -> None:
    values = [D("12.50"), D("-12.50"), D("0.00"), None, D("1000.00"), D("-0.01")]
    expected = hash_of(pa.array(values, pa.decimal128(10, 2)))
    assert hash_of(pa.array(values, pa.decimal128(38, 20))) == expected
    assert len(set(expected)) == len(values)


def test_row_hash_type_kinds_differ() -> None:
    ones = [
        pa.array([1], pa.int64()),
        pa.array([True]),
        pa.array([1.0]),
        pa.array(["1"]),
        pa.array([b"1"]),
        pa.array([1], pa.int32()).cast(pa.date32()),
        pa.array([1], pa.timestamp("us")),
        pa.array([D(1)], pa.decimal128(3, 0)),
        pa.array([[1]]),
        pa.array([{"x": 1}]),
        pa.nulls(1),
    ]
    assert len({hash_of(array)[0] for array in ones}) == len(ones)


def test_row_hash_null_empty_and_inner_null_differ() -> None:
    actual = hash_of(
        pa.array([None, [], [None], [None, None], [[]], [[], None]], pa.list_(pa.list_(pa.int8())))
    )
    assert len(set(actual)) == 6
    assert len(set(hash_of(pa.array([None, ""])))) == 2
    assert len(set(hash_of(pa.array([None, {"x": None}], pa.struct([("x", pa.int8())]))))) == 2


@given(
    st.lists(
        st.tuples(st.text(alphabet="a,|\0", max_size=6), st.text(alphabet="a,|\0", max_size=6)),
        max_size=40,
    )
)
def test_row_hash_composite_keys_do_not_concatenate(pairs: list[tuple[str, str]]) -> None:
    rows = pa.table(
        {
            "a": pa.array([a for a, _ in pairs], pa.string()),
            "b": pa.array([b for _, b in pairs], pa.string()),
        }
    )
    assert len(set(row_hash(rows).tolist())) == len(set(pairs))


def test_row_hash_depends_on_column_order_not_names() -> None:
    rows = pa.table({"a": [1, 2], "b": [2, 1]})
    assert (
        row_hash(rows, columns=["a", "b"]).tolist() != row_hash(rows, columns=["b", "a"]).tolist()
    )
    assert row_hash(rows, columns=["a", "b"])[0] == row_hash(rows, columns=["b", "a"])[1]
    assert row_hash(rows.rename_columns(["x", "y"])).tolist() == row_hash(rows).tolist()


def test_row_hash_merges_zero_signs_tie_hash_differs() -> None:
    rows = pa.table({"x": [0.0, -0.0]})
    assert len(set(row_hash(rows))) == 1
    assert len(set(tie_hash(rows))) == 2
    assert len(set(canonical_bytes(rows).to_pylist())) == 2


def test_row_hash_merges_nan_payloads_tie_hash_differs(subtests: pytest.Subtests) -> None:
    payloads = np.array([0x7FC00000, 0x7FC00001, 0x7F800001, 0xFFC00000], dtype=np.uint32)
    wide = np.array(
        [0x7FF8 << 48, (0x7FF8 << 48) + 1, (0x7FF << 52) + 1, 0xFFF8 << 48], dtype=np.uint64
    )
    for numbers in (payloads.view(np.float32), wide.view(np.float64)):
        with subtests.test(str(numbers.dtype)):
            rows = pa.table({"x": pa.array(numbers, from_pandas=False)})
            assert len(set(row_hash(rows))) == 1
            assert len(set(tie_hash(rows))) == 4
            assert len(set(canonical_bytes(rows).to_pylist())) == 4


def test_tie_hash_added_null_column_is_unchanged() -> None:
    before = pa.table({"key": ["a", "b"], "x": [1.5, None]})
    after = before.append_column("later", pa.nulls(2, pa.int32())).append_column(
        "dictionary", pa.nulls(2).cast("string")
    )
    assert tie_hash(after).tolist() == tie_hash(before).tolist()
    assert tie_hash(after.select(["later", "x", "key"])).tolist() == tie_hash(before).tolist()
    assert tie_hash(before.rename_columns(["key", "y"]))[0] != tie_hash(before)[0]
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([None, "v"]))
    assert tie_hash(before.append_column("d", dictionary))[0] == tie_hash(before)[0]


def test_row_hash_is_uniform_without_collisions(subtests: pytest.Subtests) -> None:
    n = 400_000
    numbers = np.arange(n)
    arrays = {
        "id": pa.array(numbers),
        "text": pa.array([f"user-{number}" for number in numbers]),
        "time": pa.array(numbers * 3_600_000_000, pa.timestamp("us", tz="UTC")),
        "float": pa.array(numbers / 8.0),
    }
    for name, array in arrays.items():
        with subtests.test(name):
            hashes = row_hash(pa.table({"x": array, "y": pa.array(numbers % 7)}))
            assert len(np.unique(hashes)) == n
            for shift in (56, 28, 0):
                counts = np.bincount(
                    ((hashes >> np.uint64(shift)) & np.uint64(255)).astype(np.int64), minlength=256
                )
                chi2 = float(((counts - n / 256) ** 2 / (n / 256)).sum())
                assert 150 < chi2 < 380  # 255 degrees of freedom: about 1 in 10^6 outside


def test_row_hash_one_bit_flips_half_the_output() -> None:
    base = np.arange(2000, dtype=np.uint64) * np.uint64(7919)
    reference_hashes = row_hash(pa.table({"x": base, "y": base}))
    for bit in range(0, 64, 3):
        flipped = (
            row_hash(pa.table({"x": base ^ np.uint64(1 << bit), "y": base})) ^ reference_hashes
        )
        share = np.unpackbits(flipped.view(np.uint8)).mean()
        assert 0.49 < share < 0.51, bit


def test_row_hash_without_rows_is_empty() -> None:
    schema = pa.schema(
        [
            ("a", pa.string()),
            ("b", pa.list_(pa.int8(), 2)),
            ("c", pa.dictionary(pa.int8(), pa.string())),
        ]
    )
    for rows in (
        schema.empty_table(),
        pa.Table.from_batches([], schema),
        pa.RecordBatch.from_pylist([], schema),
    ):
        assert row_hash(rows).shape == tie_hash(rows).shape == (0,)
        assert row_hash(rows).dtype == np.uint64
        assert canonical_bytes(rows).to_pylist() == []


def test_row_hash_extension_type_equals_storage() -> None:
    class Zone(pa.ExtensionType):
        def __init__(self) -> None:
            super().__init__(pa.string(), "featurestore.test.zone")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Zone:
            return cls()

    storage = pa.array(["a", None])
    rows = pa.table({"x": pa.ExtensionArray.from_storage(Zone(), storage)})
    assert row_hash(rows).tolist() == hash_of(storage)
    assert tie_hash(rows).tolist() == tie_hash(pa.table({"x": storage})).tolist()


def test_row_hash_long_texts_use_every_byte() -> None:
    long = "x" * 3_000_000
    texts = [long, "", None, long + "y", "short", long[:-1]]
    rows = pa.table({"x": pa.array(texts * 3)})
    actual = row_hash(rows)
    assert len(set(actual.tolist())) == 6
    assert actual[:6].tolist() == actual[6:12].tolist()


def test_row_hash_unsupported_types_raise_together() -> None:
    rows = pa.table(
        {"a": [1], "d": pa.array([1], pa.duration("s")), "t": pa.array([1], pa.time32("s"))}
    )
    with pytest.raises(UnsupportedType, match=r"d: duration\[s\]; t: time32\[s\]"):
        row_hash(rows)
    with pytest.raises(UnsupportedType):
        row_hash(pa.table({"x": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}))


def test_row_hash_unknown_column_raises() -> None:
    with pytest.raises(InvalidArgument, match="unknown columns 'B'"):
        row_hash(pa.table({"b": [1]}), columns=["B"])
    with pytest.raises(InvalidArgument, match="no columns are selected"):
        canonical_bytes(pa.table({"b": [1]}), columns=[])
