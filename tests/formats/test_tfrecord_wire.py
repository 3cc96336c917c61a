"""TFRecord bytes: golden records, varints, framing, and damage that verify detects."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.errors import DatasetDamaged, FormatTooNew, InvalidArgument, UnsupportedType
from featurestore.plugins.format import ColumnProfile
from featurestore.testing.format_cases import SCALARS, example_table, profiles, supported
from featurestore.testing.format_conformance import build_layout, write
from featurestore_connectors.tfrecord import TFRecordFormat, wire

FORMAT = TFRecordFormat()
GOLDEN = bytes.fromhex(
    "290000000000000037ff5f000a270a0a0a016112051a030a01010a0d0a0162120812060a040000803f0a0a0a016312050a030a01780892b718"
)


def test_golden_record_is_written_byte_for_byte(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([1]), "b": pa.array([1.0], pa.float32()), "c": pa.array(["x"])})
    path, _ = write(FORMAT, tmp_path, table, build_layout(FORMAT, table))
    assert Path(path).read_bytes() == GOLDEN


def test_framed_records_have_valid_checksums() -> None:
    assert wire.header(5)[8:] == bytes.fromhex("eab2043e")
    assert wire.header(41)[8:] == bytes.fromhex("37ff5f00")
    assert wire.record(GOLDEN[12:-4]) == GOLDEN


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.integers(0, 6))
def test_padded_varints_encode_any_integer(values: list[int], offset: int) -> None:
    width = wire.varint_width(min(values), max(values))
    words = np.array(values, np.int64).view(np.uint64)
    target = np.zeros((len(values), offset + width + 2), np.uint8)
    slots = target[:, offset : offset + width]
    assert wire.write_varints(slots, words.copy(), width=width)
    for row, value in enumerate(values):
        assert bytes(slots[row]) == wire.varint(value % 2**64, width=width)
    assert (wire.read_varints(slots, width=width) == words).all()
    assert not target[:, :offset].any()
    assert not target[:, offset + width :].any()


def test_checksums_of_blocks_equal_checksums_of_records(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    rows = 2500
    words = [f"w{number:04d}"[: 1 + number % 5] for number in range(rows)]
    for columns, nulls in product((1, 3, 40), (False, True)):
        with subtests.test(columns=columns, nulls=nulls):
            random = np.random.default_rng(1)
            mask = random.random(rows) < 0.2 if nulls else None
            arrays = {}
            for number in range(columns):
                arrays |= {
                    f"i{number}": pa.array(random.integers(-(2**40), 2**40, rows), mask=mask),
                    f"d{number}": pa.array(random.random(rows), mask=mask),
                    f"w{number}": pa.array(words, mask=mask),
                }
            table = pa.table(arrays)
            folder = tmp_path / f"{columns} {nulls}"
            path, _ = write(FORMAT, folder, table, build_layout(FORMAT, table))
            records = np.frombuffer(Path(path).read_bytes(), np.uint8).reshape(rows, -1)
            checksums = records[:, -wire.FOOTER :].copy().view("<u4")[:, 0]
            assert (checksums == wire.payload_checksums(records)).all()


def test_narrow_columns_round_trip_in_large_blocks(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for nulls in (False, True):
        with subtests.test(nulls=nulls):
            random = np.random.default_rng(0)
            mask = random.random(3000) < 0.2 if nulls else None
            bits = pa.array(random.random(3000) < 0.5, mask=mask)
            signed = pa.array(np.arange(3000).astype(np.int8), mask=mask)
            counts = pa.array(random.integers(0, 128, 3000).astype(np.int8), mask=mask)
            table = pa.table({"bit": bits, "signed": signed, "count": counts}).slice(3)
            path, _ = write(FORMAT, tmp_path / str(nulls), table, build_layout(FORMAT, table))
            records = np.frombuffer(Path(path).read_bytes(), np.uint8).reshape(table.num_rows, -1)
            checksums = records[:, -wire.FOOTER :].copy().view("<u4")[:, 0]
            assert (checksums == wire.payload_checksums(records)).all()
            shard = FORMAT.open_shard(path, layout=build_layout(FORMAT, table))
            actual_table = shard.read(0, table.num_rows, table.schema.names)
            assert pa.Table.from_batches([actual_table]).equals(table.combine_chunks())
            shard.close()


def test_numbers_of_more_bytes_are_not_truncated(subtests: pytest.Subtests) -> None:
    for width in range(1, 10):
        with subtests.test(width=width):
            target = np.zeros((1, width), np.uint8)
            for number, is_written in ((2 ** (7 * width) - 1, True), (2 ** (7 * width), False)):
                numbers = np.array([number], np.uint64)
                assert bool(wire.write_varints(target, numbers, width=width)) == is_written


def test_fixed_width_records_have_regular_offsets(tmp_path: Path) -> None:
    kinds = supported(FORMAT, SCALARS)
    table = example_table(kinds)
    layout = build_layout(FORMAT, table)
    assert layout["kind"] == "fixed"
    assert layout["reason"] is None
    path, shard = write(FORMAT, tmp_path, table, layout)
    assert shard.file.bytes == 300 * layout["record_bytes"]
    assert shard.sidecars == ()
    data = np.fromfile(path, np.uint8).reshape(300, layout["record_bytes"])
    field = next(field for field in layout["fields"] if field["name"] == "c10")
    assert table.schema.field("c10").type == pa.float64()
    column = data[:, field["offset"] : field["offset"] + 4].copy().view("<f4")[:, 0]
    present = data[:, field["null_offset"]] != wire.SKIPPED
    assert column[present].tolist() == table["c10"].drop_null().to_pylist()


def test_texts_of_different_lengths_use_variable_layout(tmp_path: Path) -> None:
    even = pa.table({"text": ["x" * (80 + row % 20) for row in range(100)]})
    uneven = pa.table({"n": range(100), "text": ["x" * (row * 10) for row in range(100)]})
    assert build_layout(FORMAT, even)["kind"] == "fixed"
    layout = build_layout(FORMAT, uneven)
    assert layout["kind"] == "variable"
    assert "%" in layout["reason"]
    assert "'text'" in layout["reason"]
    assert FORMAT.record_access(layout) is None
    path, shard = write(FORMAT, tmp_path, uneven, layout)
    index = np.fromfile(tmp_path / shard.sidecars[0].path, "<u8")
    assert len(index) == 101
    assert index[-1] == Path(path).stat().st_size
    assert abs(layout["mean_bytes"] * 100 - Path(path).stat().st_size - index.nbytes) < 16


def test_lists_of_any_length_get_the_variable_layout() -> None:
    layout = build_layout(FORMAT, pa.table({"x": pa.array([[1], [], None], pa.list_(pa.int64()))}))
    assert layout["kind"] == "variable"
    assert "'x'" in layout["reason"]


# A record a line.
GOLDEN_LISTS = (
    "2600000000000000734fe3000a0d0a0b0a016112061a040a0287007a0200000a0d0a0b0a016212060a040a0278797a0200001b556c39"
    "2600000000000000734fe3000a0f0a0d0a016112081a060a04ac0281007a000a090a070a016212020a007a06000000000000bf798d0f"
    "2600000000000000734fe3007a0b0a090a016112041a020a007a04000000000a0e0a0c0a016212070a050a017a0a007a01007ec08a06"
)


def test_declared_lists_have_fixed_width_records(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a": pa.array([[7], [300, 1], None], pa.list_(pa.int64())),
            "b": pa.array([["xy"], [], ["z", ""]], pa.list_(pa.string())),
        }
    )
    layout = build_layout(FORMAT, table, declared=True)
    assert (layout["version"], layout["kind"]) == (3, "fixed")
    path, shard = write(FORMAT, tmp_path, table, layout)
    assert Path(path).read_bytes().hex() == GOLDEN_LISTS
    assert shard.file.bytes == 3 * layout["record_bytes"]
    assert shard.sidecars == ()


def test_declared_texts_always_have_fixed_width() -> None:
    uneven = pa.table({"n": range(100), "text": ["x" * (row * 10) for row in range(100)]})
    layout = build_layout(FORMAT, uneven, declared=True)
    assert (layout["version"], layout["kind"]) == (1, "fixed")


def test_damaged_lists_are_named_and_not_read(tmp_path: Path) -> None:
    texts = pa.array([[f"w{row}"] * (row % 3) for row in range(50)])
    numbers = pa.array([[300] * (row % 3) for row in range(50)])
    table = pa.table({"texts": texts, "numbers": numbers})
    layout = build_layout(FORMAT, table, declared=True)
    path, _ = write(FORMAT, tmp_path, table, layout)
    sound = Path(path).read_bytes()
    for field in layout["fields"]:
        for value in (0x7F, 1, 3):
            content = bytearray(sound)
            content[field["length_offset"] + layout["record_bytes"]] = value
            Path(path).write_bytes(content)
            assert FORMAT.verify_shard(path, layout=layout, rows=50)[0].row == 1
            with pytest.raises(DatasetDamaged, match=field["name"]):
                FORMAT.open_shard(path, layout=layout).read(0, 50, [field["name"]])


def test_varint_widths_fit_the_values() -> None:
    table = pa.table(
        {"small": [0, 100], "large": [0, 10**9], "negative": [-1, 1], "flag": [True, False]}
    )
    widths = {field["name"]: field["width"] for field in build_layout(FORMAT, table)["fields"]}
    assert widths == {"small": 1, "large": 5, "negative": 10, "flag": 1}


def test_pixels_are_encoded_in_two_bytes() -> None:
    image = pa.array([[0, 255, 7, 9]], pa.list_(pa.uint8(), 4))
    assert build_layout(FORMAT, pa.table({"image": image}))["fields"][0]["width"] == 2


def test_every_nan_is_written_without_a_warning(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for bits in (0x7FF0000000000001, 0xFFF4000000000000, 0x7FF8000000000001):
        with subtests.test(bits=hex(bits)):
            values = np.array([bits, 0], np.uint64).view(np.float64)
            pairs = pa.array([values.tolist()] * 2, pa.list_(pa.float64(), 2))
            table = pa.table({"x": pa.array(values), "v": pairs})
            layout = build_layout(FORMAT, table)
            path, _ = write(FORMAT, tmp_path / hex(bits), table, layout)
            actual_table = FORMAT.open_shard(path, layout=layout).read(0, 2, ["x", "v"])
            assert [repr(value) for value in actual_table["x"].to_pylist()] == ["nan", "0.0"]
            ragged = pa.table({"x": pa.array(values), "r": pa.array([[1.0], []])})
            layout = build_layout(FORMAT, ragged)
            assert write(FORMAT, tmp_path / f"ragged {bits}", ragged, layout)[1].rows == 2


# -- refusals -------------------------------------------------------------------------------------------------------


def test_numbers_above_int64_are_refused_first() -> None:
    table = pa.table(
        {
            "id": pa.array([2**63], pa.uint64()),
            "ids": pa.array([[1, 2**64 - 1]], pa.list_(pa.uint64())),
        }
    )
    with pytest.raises(UnsupportedType) as caught:
        build_layout(FORMAT, table)
    assert "id: 9223372036854775808" in caught.value.message
    assert "ids: 18446744073709551615" in caught.value.message
    fits = pa.table({"id": pa.array([2**63 - 1], pa.uint64())})
    assert build_layout(FORMAT, fits)["fields"][0]["width"] == 9


def test_nulls_inside_lists_are_refused_first() -> None:
    table = pa.table(
        {
            "a": pa.array([[1, None]], pa.list_(pa.int64())),
            "b": pa.array([[1.0, None]], pa.list_(pa.float32(), 2)),
        }
    )
    with pytest.raises(UnsupportedType) as caught:
        build_layout(FORMAT, table)
    assert "a: 1 nulls" in caught.value.message
    assert "b: 1 nulls" in caught.value.message


def test_nulls_inside_lists_are_refused_while_writing(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for number, dtype in enumerate(
        (pa.list_(pa.int64()), pa.list_(pa.int64(), 2), pa.list_(pa.list_(pa.int64(), 1), 2))
    ):
        with subtests.test(str(dtype)):
            row = [1, None] if pa.types.is_integer(dtype.value_type) else [[1], None]
            table = pa.table({"x": pa.array([row], dtype)})
            layout = FORMAT.layout(
                table.schema, [ColumnProfile("x", 1, 0, longest=2)], compression=None, block_rows=8
            )
            folder = tmp_path / str(number)
            with pytest.raises(UnsupportedType, match="nulls inside"):
                write(FORMAT, folder, table, layout)
            assert not list(folder.rglob("tfrecord*"))


# Values that a layout was built for, and values that are written.
DIFFERENT_VALUES = [
    ([1, 2], [1, 200]),
    ([1, 2], [1, None]),
    ([1, 2], [1, -2]),
    (["ab", "cd"], ["ab", "c"]),
    (["ab", "cd"], ["abc", "c"]),
    (["ab", "c"], ["ab", "cde"]),
    (["ab", "c" * 40], ["ab", "c" * 400]),
    ([[1], [2, 3]], [[1], [2, 300]]),
    ([["a"], ["b"]], [["a"], None]),
]


def test_rows_differing_from_profile_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases = product(DIFFERENT_VALUES, (False, True))
    for number, ((profile_values, written_values), declared) in enumerate(cases):
        with subtests.test(profile=profile_values, written=written_values, declared=declared):
            layout = build_layout(FORMAT, pa.table({"x": profile_values}), declared=declared)
            with pytest.raises(DatasetDamaged, match="'x' differs from its profile"):
                write(FORMAT, tmp_path / str(number), pa.table({"x": written_values}), layout)


def test_newer_layout_error_has_hint(tmp_path: Path) -> None:
    table = pa.table({"x": [1]})
    layout = {**build_layout(FORMAT, table), "version": 4}
    with pytest.raises(FormatTooNew, match="upgrade featurestore"):
        FORMAT.open_shard(str(tmp_path / "x"), layout=layout)


# -- GZIP -------------------------------------------------------------------------------------------------------------


def test_gzip_shards_contain_same_records(tmp_path: Path, subtests: pytest.Subtests) -> None:
    fixed = pa.table({"n": range(100), "f": pa.array(range(100), pa.float32())})
    ragged = fixed.append_column("r", pa.array([[row] * (row % 3) for row in range(100)]))
    for name, table in (("fixed", fixed), ("ragged", ragged)):
        with subtests.test(name):
            folder = tmp_path / name
            plain_path, _ = write(FORMAT, folder / "plain", table, build_layout(FORMAT, table))
            layout = build_layout(FORMAT, table, compression="GZIP")
            path, shard = write(FORMAT, folder / "gzip", table, layout)
            assert gzip.decompress(Path(path).read_bytes()) == Path(plain_path).read_bytes()
            assert shard.sidecars == ()
            assert Path(path).read_bytes()[4:8] == bytes(4), (
                "the time in the header would make bytes differ"
            )
            assert FORMAT.record_access(layout) is None
            assert "compression_type='GZIP'" in str(FORMAT.refuse_reading(layout))
            with pytest.raises(InvalidArgument, match="GZIP"):
                FORMAT.open_shard(path, layout=layout)
            assert FORMAT.verify_shard(path, layout=layout, rows=100) == []
            assert "99" in FORMAT.verify_shard(path, layout=layout, rows=99)[0].message
            columns = table.schema.names[::-1]
            batches = FORMAT.read_in_order(path, layout=layout, columns=columns)
            assert pa.Table.from_batches(batches).equals(table.select(columns))
            for damaged in (Path(path).read_bytes()[:-9], b"no gzip", zlib.compress(b"x")):
                Path(path).write_bytes(damaged)
                assert FORMAT.verify_shard(path, layout=layout, rows=100)
                with pytest.raises(DatasetDamaged, match=r"cannot be decoded|complete GZIP stream"):
                    list(FORMAT.read_in_order(path, layout=layout, columns=columns))
            # A directory cannot be mapped into memory.
            with pytest.raises(DatasetDamaged, match="cannot be read: No such device"):
                list(FORMAT.read_in_order(str(folder), layout=layout, columns=columns))


def test_gzip_records_longer_than_chunks_are_read(tmp_path: Path) -> None:
    sizes = [0, 3_000_000, 1, 1 << 20, (1 << 20) - 40, 2_500_000, 7, 5_000_000]
    table = pa.table({"n": range(len(sizes)), "text": [str(size)[0] * size for size in sizes]})
    layout = build_layout(FORMAT, table, compression="GZIP")
    path, _ = write(FORMAT, tmp_path, table, layout)
    assert FORMAT.verify_shard(path, layout=layout, rows=len(sizes)) == []
    batches = FORMAT.read_in_order(path, layout=layout, columns=["n", "text"])
    assert pa.Table.from_batches(batches).equals(table)


@pytest.mark.parametrize("length", [2**62, 2**31, 2**64 - 1])
def test_forged_length_in_gzip_shard_buffers_little(tmp_path: Path, length: int) -> None:
    layout = build_layout(FORMAT, pa.table({"x": [1]}), compression="GZIP")
    path = tmp_path / "shard"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(wire.header(length))
        for _ in range(256):
            stream.write(bytes(1 << 20))
    assert path.stat().st_size < 4 << 20
    tracemalloc.start()
    try:
        with pytest.raises(DatasetDamaged, match="its length is wrong"):
            list(FORMAT.read_in_order(str(path), layout=layout, columns=["x"]))
        problems = FORMAT.verify_shard(str(path), layout=layout, rows=1)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert [(problem.row, problem.offset) for problem in problems] == [(0, 0)]


# -- verify -----------------------------------------------------------------------------------------------------------


@given(st.data())
def test_verify_shard_locates_flipped_bit(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    ragged = data.draw(st.booleans())
    table = pa.table({"n": range(50), "text": [f"row {row % 10}" for row in range(50)]})
    if ragged:
        table = table.append_column("r", pa.array([[row] * (row % 3) for row in range(50)]))
    layout = build_layout(FORMAT, table)
    path, _ = write(FORMAT, tmp_path_factory.mktemp("flip"), table, layout)
    content = bytearray(Path(path).read_bytes())
    position, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    content[position] ^= 1 << bit
    Path(path).write_bytes(content)
    problem, *_ = FORMAT.verify_shard(path, layout=layout, rows=50)
    starts = np.fromfile(path + ".idx", "<u8") if ragged else np.arange(51) * layout["record_bytes"]
    row = int(np.searchsorted(starts, position, side="right")) - 1
    assert problem.row == row
    assert problem.offset is not None
    assert starts[row] <= problem.offset <= position


def test_verify_shard_detects_foreign_index(tmp_path: Path) -> None:
    table = pa.table({"r": pa.array([[row] * (row % 3) for row in range(50)])})
    layout = build_layout(FORMAT, table)
    path, _ = write(FORMAT, tmp_path, table, layout)
    index = Path(path + ".idx")
    offsets = np.fromfile(index, "<u8")
    offsets[7] += 1
    offsets.tofile(index)
    assert FORMAT.verify_shard(path, layout=layout, rows=50)[0].row == 7
    reader = FORMAT.open_shard(path, layout=layout)
    with pytest.raises(DatasetDamaged, match="cannot be decoded"):
        reader.read(0, 50, ["r"])
    reader.close()
    index.write_bytes(offsets[:-1].tobytes())
    with pytest.raises(DatasetDamaged, match="does not match"):
        FORMAT.open_shard(path, layout=layout)


def test_closed_shard_refuses_reads(tmp_path: Path) -> None:
    for name, table in (("fixed", pa.table({"x": [1]})), ("variable", pa.table({"x": [[1]]}))):
        layout = build_layout(FORMAT, table)
        reader = FORMAT.open_shard(write(FORMAT, tmp_path / name, table, layout)[0], layout=layout)
        reader.close()
        with pytest.raises(ValueError, match="closed"):
            reader.read(0, 1, ["x"])


def test_bytes_per_row_estimates_written_size(tmp_path: Path) -> None:
    table = example_table(supported(FORMAT), rows=500)
    layout = build_layout(FORMAT, table)
    _, shard = write(FORMAT, tmp_path, table, layout)
    size = shard.file.bytes + sum(file.bytes for file in shard.sidecars)
    assert FORMAT.bytes_per_row(layout, profiles(table)) == pytest.approx(size / 500, rel=0.2)
