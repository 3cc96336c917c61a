"""Conformance suite for the formats of training datasets.

A test class inherits ``FormatConformance`` and provides the fixture ``dataset_format``:

    @pytest.fixture
    def dataset_format():
        return MyFormat()

    class TestMyFormat(FormatConformance):
        pass
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featurestore.errors import InvalidArgument, UnsupportedType
from featurestore.plugins.format import (
    ColumnProfile,
    DatasetFormat,
    Layout,
    Plane,
    RecordAccess,
    RecordChecksums,
    WrittenFile,
    WrittenShard,
)
from featurestore.testing import format_cases as cases

BLOCK_ROWS = 8
# Most of these sizes do not divide the number of rows; the last one exceeds it.
BATCHES = (1, 7, 64, 1000)


def build_layout(
    dataset_format: DatasetFormat,
    table: pa.Table,
    *,
    compression: str | None = None,
    declared: bool = False,
) -> Layout:
    """Return the layout of a table, after a JSON round trip as in a manifest.

    ``declared`` marks the lengths of its lists and strings as declared.
    """
    column_profiles = [replace(profile, declared=declared) for profile in cases.profiles(table)]
    layout = dataset_format.layout(
        table.schema, column_profiles, compression=compression, block_rows=BLOCK_ROWS
    )
    # Readers receive the layout from the manifest, which is JSON.
    assert json.loads(json.dumps(layout)) == layout
    loaded: Layout = json.loads(json.dumps(layout))
    return loaded


def write(
    dataset_format: DatasetFormat,
    directory: Path,
    table: pa.Table,
    layout: Layout,
    *,
    batch_rows: int = 64,
) -> tuple[str, WrittenShard]:
    """Write a table as a dataset with a single shard; return its path and the written shard."""
    ending = ""
    if dataset_format.extension:
        ending = f".{dataset_format.extension}"
    path = f"train/{dataset_format.name}-00000-of-00001{ending}"
    batches = iter(table.to_batches(max_chunksize=batch_rows))
    return str(directory / path), dataset_format.write_shard(
        str(directory), path, batches, layout=layout
    )


def list_files(directory: Path) -> list[Path]:
    """Return all files below a directory, sorted."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _table_with_value_under_null(junk: int) -> pa.Table:
    """Return a table with a null in the middle row, and ``junk`` as the value under the null."""
    valid = pa.py_buffer(bytes([0b101]))
    # Arrow does not define the values under a null, so two equal tables may differ there.
    numbers = pa.py_buffer(np.array([1, junk, 3]))
    items = pa.array([1, 2, junk, junk, 5, 6], pa.float32())
    pair = pa.list_(pa.field("item", pa.float32()), 2)
    return pa.table(
        {
            "x": pa.Array.from_buffers(pa.int64(), 3, [valid, numbers]),
            "v": pa.Array.from_buffers(pair, 3, [valid], children=[items]),
        }
    )


def _to_presence_mask(present: Any) -> Any:
    """Return the mask of rows with a value; a mask of None means all rows."""
    if present is None:
        return np.True_
    return present


class FormatConformance:
    """Tests for one format; the subclass's module provides ``dataset_format``."""

    def test_shard_round_trip_keeps_every_type(
        self, dataset_format: DatasetFormat, tmp_path: Path
    ) -> None:
        kinds = cases.supported(dataset_format)
        assert set(map(str, cases.REQUIRED)) <= set(map(str, kinds))
        table = cases.example_table(kinds)
        layout = build_layout(dataset_format, table)
        path, _ = write(dataset_format, tmp_path, table, layout)
        reader = dataset_format.open_shard(path, layout=layout)
        actual = reader.read(0, reader.rows, table.schema.names)
        actual.validate(full=True)
        assert cases.is_identical(
            actual, cases.apply_losses(table, dataset_format.encodings(layout))
        )
        reader.close()

    @settings(
        max_examples=60,
        deadline=None,
        suppress_health_check=[
            # A format is stateless, so all examples of a test may share the fixture.
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.differing_executors,
        ],
    )
    @given(data=st.data())
    def test_shard_round_trip_keeps_random_tables(
        self,
        dataset_format: DatasetFormat,
        tmp_path_factory: pytest.TempPathFactory,
        data: st.DataObject,
    ) -> None:
        table = data.draw(cases.tables(cases.supported(dataset_format)))
        layout = build_layout(dataset_format, table)
        path, shard = write(dataset_format, tmp_path_factory.mktemp("random"), table, layout)
        assert shard.rows == table.num_rows
        assert list(dataset_format.verify_shard(path, layout=layout, rows=table.num_rows)) == []
        reader = dataset_format.open_shard(path, layout=layout)
        start = data.draw(st.integers(0, table.num_rows))
        stop = data.draw(st.integers(start, table.num_rows))
        columns = data.draw(st.permutations(table.schema.names))
        actual = reader.read(start, stop, columns)
        actual.validate(full=True)
        assert cases.is_identical(
            actual,
            cases.apply_losses(table, dataset_format.encodings(layout))
            .select(columns)
            .slice(start, stop - start),
        )
        reader.close()

    def test_read_returns_any_row_range(
        self, dataset_format: DatasetFormat, tmp_path: Path
    ) -> None:
        table = cases.example_table(cases.supported(dataset_format), rows=200)
        layout = build_layout(dataset_format, table)
        path, _ = write(dataset_format, tmp_path, table, layout)
        reader = dataset_format.open_shard(path, layout=layout)
        assert reader.rows == 200
        expected = cases.apply_losses(table, dataset_format.encodings(layout))
        for start, stop in ((0, 200), (0, 1), (199, 200), (63, 65), (64, 128), (50, 50), (7, 193)):
            assert cases.is_identical(
                reader.read(start, stop, table.schema.names), expected.slice(start, stop - start)
            )
        some = [table.schema.names[-1], table.schema.names[0]]
        assert cases.is_identical(reader.read(3, 9, some), expected.select(some).slice(3, 6))
        reader.close()

    def test_shard_bytes_are_independent_of_batches(
        self, dataset_format: DatasetFormat, tmp_path: Path
    ) -> None:
        table = cases.example_table(cases.supported(dataset_format))
        layout = build_layout(dataset_format, table)
        # The slice has the same rows in arrays with offsets.
        sliced = pa.concat_tables([table.slice(0, 11), table]).slice(11)
        _, first = write(dataset_format, tmp_path / "sliced", sliced, layout)
        for rows in BATCHES:
            folder = tmp_path / str(rows)
            _, shard = write(dataset_format, folder, table, layout, batch_rows=rows)
            assert shard == first

    def test_shard_bytes_ignore_values_under_nulls(
        self, dataset_format: DatasetFormat, tmp_path: Path
    ) -> None:
        clean, littered = _table_with_value_under_null(0), _table_with_value_under_null(77)
        layout = build_layout(dataset_format, clean)
        _, first = write(dataset_format, tmp_path / "clean", clean, layout)
        _, second = write(dataset_format, tmp_path / "littered", littered, layout)
        assert first == second

    def test_declared_lengths_keep_values(
        self, dataset_format: DatasetFormat, tmp_path: Path
    ) -> None:
        kinds = [dtype for dtype in cases.supported(dataset_format) if "decimal" not in str(dtype)]
        table = cases.example_table(kinds)
        layout = build_layout(dataset_format, table, declared=True)
        path, shard = write(dataset_format, tmp_path / "whole", table, layout)
        _, small = write(dataset_format, tmp_path / "small", table, layout, batch_rows=7)
        assert small == shard
        assert list(dataset_format.verify_shard(path, layout=layout, rows=300)) == []
        reader = dataset_format.open_shard(path, layout=layout)
        expected = cases.apply_losses(table, dataset_format.encodings(layout))
        for start, stop in ((0, 300), (7, 8), (50, 50)):
            actual = reader.read(start, stop, table.schema.names)
            actual.validate(full=True)
            assert cases.is_identical(actual, expected.slice(start, stop - start))
        reader.close()
        access = dataset_format.record_access(layout)
        if access is None:
            return
        # Records may be passed in any order and repeatedly.
        records = access.records(path)[[5, 299, 5, 0]]
        for name, (values, present) in access.decode(records, table.schema.names).items():
            column = expected[name].combine_chunks().take(pa.array([5, 299, 5, 0]))
            if not pa.types.is_list(column.type):
                assert len(values) == 4
                continue
            lengths = pc.fill_null(pc.list_value_length(column), 0)
            assert values["length"].tolist() == lengths.to_pylist()
            assert np.all(
                column.is_valid().to_numpy(zero_copy_only=False) == _to_presence_mask(present)
            )

    def test_empty_shard_is_readable(self, dataset_format: DatasetFormat, tmp_path: Path) -> None:
        table = cases.example_table(cases.supported(dataset_format), rows=20)
        for number, layout in enumerate(
            (build_layout(dataset_format, table), build_layout(dataset_format, table.slice(0, 0)))
        ):
            path, shard = write(dataset_format, tmp_path / str(number), table.slice(0, 0), layout)
            assert shard.rows == 0
            reader = dataset_format.open_shard(path, layout=layout)
            assert reader.rows == 0
            assert reader.read(0, 0, table.schema.names).schema == table.schema
            reader.close()
            assert list(dataset_format.verify_shard(path, layout=layout, rows=0)) == []
            access = dataset_format.record_access(layout)
            if access is not None:
                assert access.records(path).shape == (0, access.record_bytes)

    def test_written_files_report_size_and_hash(
        self, dataset_format: DatasetFormat, tmp_path: Path
    ) -> None:
        table = cases.example_table(cases.supported(dataset_format))
        layout = build_layout(dataset_format, table)
        _, shard = write(dataset_format, tmp_path, table, layout)
        files = [shard.file, *shard.sidecars]
        files += dataset_format.finish(
            str(tmp_path), cases.build_manifest(dataset_format, table, layout, [shard])
        )
        for file in files:
            check_file(tmp_path, file)
        expected = [tmp_path / file.path for file in files]
        assert list_files(tmp_path) == sorted(set(expected))
        assert dataset_format.bytes_per_row(layout, cases.profiles(table)) > 0

    def test_finish_is_deterministic(self, dataset_format: DatasetFormat, tmp_path: Path) -> None:
        table = cases.example_table(cases.supported(dataset_format))
        layout = build_layout(dataset_format, table)
        _, shard = write(dataset_format, tmp_path, table, layout)
        manifest = cases.build_manifest(dataset_format, table, layout, [shard])
        first = list(dataset_format.finish(str(tmp_path), manifest))
        assert list(dataset_format.finish(str(tmp_path), manifest)) == first

    def test_layout_ignores_unprofiled_columns(self, dataset_format: DatasetFormat) -> None:
        table = cases.example_table(cases.supported(dataset_format))
        profiled_names = list(dataset_format.columns_to_profile(table.schema))
        assert profiled_names == [name for name in table.schema.names if name in profiled_names]
        all_profiles = cases.profiles(table)
        needed_profiles = [
            profile
            if profile.name in profiled_names
            else ColumnProfile(profile.name, profile.rows, 0)
            for profile in all_profiles
        ]
        options: dict[str, Any] = {"compression": None, "block_rows": BLOCK_ROWS}
        layout = dataset_format.layout(table.schema, all_profiles, **options)
        assert layout == dataset_format.layout(table.schema, needed_profiles, **options)
        size = dataset_format.bytes_per_row(layout, all_profiles)
        assert size == dataset_format.bytes_per_row(layout, needed_profiles)

    def test_encodings_name_every_column(self, dataset_format: DatasetFormat) -> None:
        table = cases.example_table(cases.supported(dataset_format), rows=20)
        encodings = dataset_format.encodings(build_layout(dataset_format, table))
        assert list(encodings) == table.schema.names
        for field in table.schema:
            dtype = field.type
            shape: tuple[int, ...] = ()
            while pa.types.is_fixed_size_list(dtype):
                dtype, shape = dtype.value_type, (*shape, dtype.list_size)
            if pa.types.is_list(dtype):
                assert encodings[field.name].shape is None
            else:
                assert encodings[field.name].shape == shape

    def test_check_names_all_unsupported_types(self, dataset_format: DatasetFormat) -> None:
        supported_types = cases.supported(dataset_format)
        unsupported_types = [dtype for dtype in cases.EVERY_TYPE if dtype not in supported_types]
        if not unsupported_types:
            return
        schema = pa.schema([("good", pa.int64())])
        for number, dtype in enumerate(unsupported_types):
            schema = schema.append(pa.field(f"bad{number}", dtype))
        with pytest.raises(UnsupportedType) as caught:
            dataset_format.check(schema, compression=None)
        for name in schema.names[1:]:
            assert name in caught.value.message
        assert caught.value.hint
        assert "good" not in caught.value.message

    def test_check_refuses_unknown_compression(self, dataset_format: DatasetFormat) -> None:
        with pytest.raises(InvalidArgument, match="LZ5"):
            dataset_format.check(pa.schema([("x", pa.int64())]), compression="LZ5")

    def test_write_shard_failure_leaves_no_files(
        self, dataset_format: DatasetFormat, tmp_path: Path
    ) -> None:
        table = cases.example_table(cases.supported(dataset_format))
        layout = build_layout(dataset_format, table)

        def batches() -> Iterator[pa.RecordBatch]:
            yield from table.to_batches(max_chunksize=64)[:2]
            raise RuntimeError("the source failed")

        with pytest.raises(RuntimeError, match="the source failed"):
            dataset_format.write_shard(str(tmp_path), "train/shard", batches(), layout=layout)
        assert list_files(tmp_path) == []

    def test_write_shard_is_deterministic(
        self, dataset_format: DatasetFormat, tmp_path: Path
    ) -> None:
        table = cases.example_table(cases.supported(dataset_format))
        layout = build_layout(dataset_format, table)
        _, first = write(dataset_format, tmp_path, table, layout)
        _, again = write(dataset_format, tmp_path, table, layout)
        assert first == again
        assert len(list_files(tmp_path)) == 1 + len(first.sidecars)

    def test_verify_shard_detects_truncated_and_missing_files(
        self, dataset_format: DatasetFormat, tmp_path: Path
    ) -> None:
        table = cases.example_table(cases.supported(dataset_format))
        layout = build_layout(dataset_format, table)
        path, shard = write(dataset_format, tmp_path, table, layout)
        assert list(dataset_format.verify_shard(path, layout=layout, rows=300)) == []
        assert "300" in str(dataset_format.verify_shard(path, layout=layout, rows=299)[0].message)
        content = Path(path).read_bytes()
        for size in (len(content) - 1, len(content) // 2, 1):
            Path(path).write_bytes(content[:size])
            assert dataset_format.verify_shard(path, layout=layout, rows=300)
        Path(path).write_bytes(content)
        for sidecar in shard.sidecars:
            os.remove(tmp_path / sidecar.path)
            assert dataset_format.verify_shard(path, layout=layout, rows=300)
        os.remove(path)
        assert dataset_format.verify_shard(path, layout=layout, rows=300)

    def test_format_is_picklable(self, dataset_format: DatasetFormat) -> None:
        copy = pickle.loads(pickle.dumps(dataset_format))
        assert (copy.name, copy.extension) == (dataset_format.name, dataset_format.extension)

    def test_decoded_records_equal_read_rows(
        self, dataset_format: DatasetFormat, tmp_path: Path
    ) -> None:
        kinds = [dtype for dtype in cases.supported(dataset_format) if pa.types.is_primitive(dtype)]
        table = cases.example_table(kinds)
        access_and_records = write_records(dataset_format, tmp_path, table)
        if access_and_records is None:
            return
        access, records = access_and_records
        assert records.shape == (300, access.record_bytes)
        row_numbers = np.array([299, 5, 5, 0, 64])
        decoded = access.decode(records[row_numbers], table.schema.names)
        expected = cases.apply_losses(
            table, dataset_format.encodings(build_layout(dataset_format, table))
        ).take(pa.array(row_numbers))
        for name, (values, present) in decoded.items():
            column = expected[name].combine_chunks()
            assert values.shape == (5,)
            is_valid = column.is_valid().to_numpy(zero_copy_only=False)
            assert (is_valid == _to_presence_mask(present)).all()
            if pa.types.is_date(column.type):
                column = column.view(pa.int32())
            elif pa.types.is_timestamp(column.type):
                column = column.view(pa.int64())
            if pa.types.is_decimal(column.type):
                continue
            assert values[is_valid].tolist() == column.drop_null().to_pylist()

    def test_damaged_records_have_wrong_checksums(
        self, dataset_format: DatasetFormat, tmp_path: Path
    ) -> None:
        table = cases.example_table(cases.supported(dataset_format))
        access_and_records = write_records(dataset_format, tmp_path, table)
        if access_and_records is None or not isinstance(access_and_records[0], RecordChecksums):
            return
        access, records = access_and_records[0], access_and_records[1][:3].copy()
        assert access.damaged_records(records).tolist() == []
        for position in range(records.shape[1]):
            records[1, position] ^= 0x20
            assert access.damaged_records(records).tolist() == [1]
            records[1, position] ^= 0x20

    def test_plane_reader_equals_decoded_records(
        self, dataset_format: DatasetFormat, tmp_path: Path
    ) -> None:
        table = cases.example_table(
            [dtype for dtype in cases.supported(dataset_format) if pa.types.is_primitive(dtype)]
        )
        access_and_records = write_records(dataset_format, tmp_path, table)
        if access_and_records is None:
            return
        access, records = access_and_records[0], access_and_records[1][20:]
        decoded = access.decode(records, table.schema.names)
        names_of: dict[np.dtype[Any], list[str]] = {}
        for name, (values, _) in decoded.items():
            if values.dtype != object:
                names_of.setdefault(values.dtype, []).append(name)
        for dtype, names in names_of.items():
            # The array is larger than the decoded range, so that writes outside of the range are
            # detected.
            array = np.full((len(names) + 1, len(records) + 7), 1, dtype)
            access.plane_reader([[*map(Plane, names), None]])(records, [array], 5)
            for row, name in zip(array, names, strict=False):
                assert row[5:-2].tobytes() == decoded[name][0].tobytes(), name
            assert (array[-1] == 1).all()
            assert (array[:, :5] == 1).all()
            assert (array[:, -2:] == 1).all()
        masks = np.zeros((len(decoded), len(records)), np.bool_)
        access.plane_reader([[Plane(name, presence=True) for name in decoded]])(records, [masks])
        for row, (name, (_, present)) in zip(masks, decoded.items(), strict=True):
            assert (row == _to_presence_mask(present)).all()
            assert (row == _to_presence_mask(access.present(records, name))).all()

    def test_padded_texts_are_exact_or_none(
        self, dataset_format: DatasetFormat, tmp_path: Path
    ) -> None:
        texts: dict[str, list[str | None]] = {
            "same": ["ab", "cd", "ef"],
            "longer": ["", "a", "bcd"],
            "null": ["ab", None, "cd"],
            "absent": ["abc", None, ""],
            "zero": ["ab", "a\0", "cd"],
            "zeros": ["", "abc\0", "\0"],
            "inside": ["a\0b", "c", "def"],
        }
        table = pa.table(texts)
        access_and_records = write_records(dataset_format, tmp_path, table)
        if access_and_records is None:
            return
        access, records = access_and_records
        for name, values in texts.items():
            padded = access.padded_texts(records, name)
            expected = [(value or "").encode() for value in values]
            # numpy drops trailing zero bytes of fixed-width strings.
            if any(text.endswith(b"\0") for text in expected):
                assert padded is None, name
            else:
                assert padded is not None, name
                assert padded.tolist() == expected

    def test_byte_rows_are_exact_or_none(
        self, dataset_format: DatasetFormat, tmp_path: Path
    ) -> None:
        cells: dict[str, list[bytes | None]] = {
            "same": [b"a\0", b"\0\0", b"ef"],
            "null": [b"ab", None, b"\0d"],
            "longer": [b"a", b"bc", b""],
        }
        table = pa.table({name: pa.array(column, pa.binary()) for name, column in cells.items()})
        access_and_records = write_records(dataset_format, tmp_path, table)
        if access_and_records is None:
            return
        access, records = access_and_records
        assert access.byte_rows(records, "longer") is None
        for name in ("same", "null"):
            byte_rows = access.byte_rows(records, name)
            if byte_rows is None:
                continue
            assert byte_rows.shape == (3, 2)
            assert byte_rows.dtype == np.uint8
            for row, value in zip(byte_rows, cells[name], strict=True):
                assert value is None or row.tobytes() == value


def write_records(
    dataset_format: DatasetFormat, directory: Path, table: pa.Table
) -> tuple[RecordAccess, Any] | None:
    """Write a table; return the record access and the records, or None without random access."""
    layout = build_layout(dataset_format, table)
    access = dataset_format.record_access(layout)
    if access is None:
        return None
    path, _ = write(dataset_format, directory, table, layout)
    return access, access.records(path)


def check_file(directory: Path, file: WrittenFile) -> None:
    """Verify the size and hash of a file as reported by the format."""
    data = (directory / file.path).read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (file.bytes, file.sha256)
