"""Arrow streams that expand to far more than was sent or declare wrong lengths."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featurestore.errors import InvalidArgument, LimitExceeded
from featurestore.server import bounds
from featurestore.server.uploads import Upload

MOST = 1 << 30
ROWS = (1 << 31) - 1
MEMORY = 96 << 20


def stream(
    batches: list[pa.RecordBatch], *, compression: str | None = None, repeats: int = 1
) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for _ in range(repeats):
            for batch in batches:
                writer.write_batch(batch)
    return bytes(sink.getvalue())


def batch_of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def upload_of(body: bytes, *, most: int = MOST) -> Upload:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by remove()
    file.write(body)
    file.flush()
    return Upload(b"{}", most, file)


def read(body: bytes, *, most: int = MOST) -> pa.Table:
    upload = upload_of(body, most=most)
    try:
        table = upload.table()
        assert table is not None
        return table
    finally:
        upload.remove()


@pytest.fixture
def memory() -> Iterator[pa.MemoryPool]:
    """The memory allocated by Arrow during a test."""
    before = pa.default_memory_pool()
    proxy = pa.proxy_memory_pool(before)
    pa.set_memory_pool(proxy)
    yield proxy
    pa.set_memory_pool(before)


def zeros(bytes_each: int, columns: int = 1) -> pa.RecordBatch:
    """Return columns that share one buffer, which compresses to almost nothing."""
    values = pa.array(np.zeros(bytes_each // 8))
    return pa.RecordBatch.from_arrays([values] * columns, [f"c{n}" for n in range(columns)])


def dictionary_of(value_bytes: int, rows: int) -> pa.Array:
    indices = pa.array(np.zeros(rows, "i1"))
    return pa.DictionaryArray.from_arrays(indices, pa.array(["x" * value_bytes]))


BOMBS = {
    "one batch": lambda: stream([zeros(8 << 20, 64)], compression="zstd"),
    "small batches": lambda: stream([zeros(1 << 20)], compression="zstd", repeats=2048),
    "a dictionary": lambda: stream([batch_of(a=dictionary_of(1 << 20, 100_000))]),
    "a compressed dictionary": lambda: stream(
        [batch_of(a=dictionary_of(65 << 20, 1))], compression="zstd"
    ),
    "many dictionaries": lambda: stream(
        [batch_of(**{f"c{n}": dictionary_of(60 << 20, 1) for n in range(5)})], compression="zstd"
    ),
    "a nested dictionary": lambda: stream(
        [batch_of(a=pa.StructArray.from_arrays([dictionary_of(1 << 20, 100_000)], ["d"]))]
    ),
    "one row": lambda: stream(
        [batch_of(a=pa.ListArray.from_arrays([0, 100], dictionary_of(1 << 20, 100)))]
    ),
    "nulls": lambda: stream([pa.RecordBatch.from_arrays([pa.nulls(ROWS)], ["a"])]),
    "structs of nothing": lambda: stream(
        [
            pa.RecordBatch.from_arrays(
                [pa.StructArray.from_buffers(pa.struct([]), ROWS, [None])], ["a"]
            )
        ]
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_oversized_streams_are_refused_in_little_memory(bomb: str, memory: pa.MemoryPool) -> None:
    body = BOMBS[bomb]()
    before = memory.bytes_allocated()
    pa.set_memory_pool(fresh := pa.proxy_memory_pool(memory))
    with pytest.raises(LimitExceeded, match=r"[\d,]{5,}"):
        read(body, most=256 << 20)
    assert fresh.max_memory() < MEMORY
    assert memory.bytes_allocated() <= before + (1 << 20)


def test_small_compressed_batches_are_read_from_disk(memory: pa.MemoryPool) -> None:
    body = stream([zeros(1 << 20)], compression="zstd", repeats=256)
    assert len(body) < 1 << 20
    pa.set_memory_pool(fresh := pa.proxy_memory_pool(memory))
    table = read(body)
    assert table.nbytes == 256 << 20
    assert table.column(0).num_chunks <= 64
    assert fresh.max_memory() < MEMORY


def test_arrow_bodies_of_any_compression_round_trip() -> None:
    texts = ["a", None, "ccc"] * 100
    plain = pa.table({"t": texts, "l": [[1], None, []] * 100, "n": range(300)})
    texts_in_structs = pa.StructArray.from_arrays([pa.array(texts).dictionary_encode()], ["d"])
    packed = plain.set_column(0, "t", pa.array(texts).dictionary_encode())
    packed = packed.append_column("s", texts_in_structs)
    expected = plain.append_column("s", pa.StructArray.from_arrays([pa.array(texts)], ["d"]))
    for compression in (None, "zstd", "lz4"):
        for rows in (1, 7, 300):
            batches = packed.to_batches(max_chunksize=rows)
            assert (
                read(stream(batches, compression=compression)).to_pydict() == expected.to_pydict()
            )
    assert read(stream([packed.to_batches()[0].slice(0, 0)])).num_rows == 0


def test_declared_length_is_checked_before_allocation(memory: pa.MemoryPool) -> None:
    body = bytearray(stream([zeros(1 << 16)], compression="zstd"))
    declared = struct.pack("<q", 1 << 16)
    assert body.count(declared) == 1
    for lie, error in (
        (1 << 62, LimitExceeded),
        (-2, InvalidArgument),
        ((1 << 16) - 8, InvalidArgument),
    ):
        changed = bytes(body.replace(declared, struct.pack("<q", lie)))
        with pytest.raises(error):
            read(changed)
    assert memory.max_memory() < MEMORY


def views_of(value: str, count: int) -> pa.Array:
    """Return many views of the same string."""
    array = pa.array([value]).cast(pa.string_view())
    view = np.frombuffer(array.buffers()[1], np.uint8)[:16]
    buffers = [None, pa.py_buffer(np.tile(view, count).tobytes()), *array.buffers()[2:]]
    return pa.Array.from_buffers(pa.string_view(), count, buffers)


needs_views = pytest.mark.skipif(not hasattr(pa, "string_view"), reason="an older pyarrow")


@needs_views
def test_views_of_the_same_bytes_are_refused(memory: pa.MemoryPool) -> None:
    texts = views_of("x" * (1 << 20), 100_000)
    zeros = pa.array(np.zeros(100_000, "i4"))
    lists = pa.ListViewArray.from_arrays(zeros, pa.array(np.full(100_000, 1000, "i4")), zeros)
    nested = pa.StructArray.from_arrays([texts], ["t"])
    for array in (texts, lists, nested):
        body = stream([pa.RecordBatch.from_arrays([array], ["a"])])
        pa.set_memory_pool(fresh := pa.proxy_memory_pool(memory))
        with pytest.raises(LimitExceeded):
            read(body, most=256 << 20)
        assert fresh.max_memory() < 2 * MEMORY


@needs_views
def test_string_views_round_trip() -> None:
    texts = pa.array(["a" * 50, None, "c"] * 100)
    column = texts.cast(pa.string_view())
    lists = pa.ListArray.from_arrays(pa.array([0, 100, 300], pa.int32()), column)
    batch = pa.RecordBatch.from_arrays([column], ["t"])
    for original in (batch, batch.slice(7), pa.RecordBatch.from_arrays([lists], ["l"])):
        assert read(stream([original])).to_pydict() == original.to_pydict()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    number=st.integers(0, 2),
    position=st.integers(0, 10_000),
    value=st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]),
    length=st.sampled_from([1, 4, 8]),
)
def test_damaged_streams_are_refused_or_read(
    number: int, position: int, value: int, length: int
) -> None:
    batch = batch_of(
        t=pa.array(["a", "b", None] * 20).dictionary_encode(),
        l=[[1, 2], [], None] * 20,
        n=range(60),
    )
    body = bytearray(stream([batch], compression=[None, "zstd", "lz4"][number]))
    start = position % len(body)
    body[start : start + length] = bytes([value]) * len(body[start : start + length])
    fresh = pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(fresh)
    try:
        table = read(bytes(body))
        table.validate(full=True)
    except InvalidArgument:
        pass
    finally:
        pa.set_memory_pool(pa.system_memory_pool())
    assert fresh.max_memory() < MEMORY


def test_each_message_within_the_bound_is_accepted() -> None:
    body = stream([zeros(bounds.MESSAGE_BYTES // 2, 2)], compression="zstd")
    assert read(body).nbytes == bounds.MESSAGE_BYTES
