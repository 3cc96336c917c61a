"""Prefetched blocks: few requests, bounded memory, and none after close."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from featurestore.readers.prefetch import PrefetchedBlocks, PrefetchLimits, Records
from featurestore.readers.shardfiles import ROW_BITS

BLOCKS = 200
EVERY = np.ones(BLOCKS, np.bool_)


class Server:
    """Blocks that contain their key, and the recorded requests."""

    def __init__(self) -> None:
        self.requests: list[list[int]] = []
        self.failing = False

    def __call__(self, keys: Sequence[int]) -> list[Records]:
        self.requests.append(list(keys))
        if self.failing:
            raise OSError("the server is gone")
        rows = np.array([[key >> ROW_BITS, key & 0xFF] for key in keys], np.uint8)
        return [rows[position : position + 1] for position in range(len(keys))]


def test_prefetched_blocks_use_few_requests_within_room() -> None:
    server, random = Server(), np.random.default_rng(5)
    room = PrefetchLimits(unread_blocks=120, read_blocks=45, request_blocks=16, gap_blocks=4)
    blocks = PrefetchedBlocks(server, room)
    order = random.permutation(BLOCKS)
    keys = ((order // 67) << ROW_BITS) + order
    later = EVERY.copy()
    for start in range(0, BLOCKS, 40):
        window = sorted(keys[start : start + 40].tolist())
        later[[key & 0xFF for key in window]] = False
        blocks.expect(window, later)
        for key, actual in zip(window, blocks.get(window), strict=True):
            assert actual.result().tolist() == [[key >> ROW_BITS, key & 0xFF]]
        assert len(blocks._blocks) <= room.unread_blocks + room.read_blocks
    # Most prefetched blocks were kept until they were read.
    assert len(server.requests) < BLOCKS / 2
    assert max(len(request) for request in server.requests) <= room.request_blocks + room.gap_blocks
    assert sum(len(request) for request in server.requests) < 3 * BLOCKS


def test_failed_block_is_requested_again() -> None:
    server = Server()
    blocks = PrefetchedBlocks(
        server, PrefetchLimits(unread_blocks=8, read_blocks=8, request_blocks=4, gap_blocks=0)
    )
    server.failing = True
    blocks.expect([3, 4], EVERY)
    with pytest.raises(OSError, match="gone"):
        blocks.get([3])[0].result()
    server.failing = False
    assert [block.result().tolist() for block in blocks.get([3, 4])] == [[[0, 3]], [[0, 4]]]


def test_blocks_of_closed_reader_are_not_fetched() -> None:
    going_on = threading.Event()
    requests = []

    def fetch(keys: Sequence[int]) -> list[Records]:
        requests.append(keys)
        going_on.wait(20)
        return [np.zeros((1, 2), np.uint8) for _ in keys]

    blocks = PrefetchedBlocks(
        fetch, PrefetchLimits(unread_blocks=100, read_blocks=1, request_blocks=1, gap_blocks=0)
    )
    pool = blocks.pool
    blocks.expect(range(100), EVERY)
    while len(requests) < 8:
        time.sleep(0.001)
    del blocks
    gc.collect()
    going_on.set()
    pool.shutdown(wait=True)
    assert len(requests) == 8
