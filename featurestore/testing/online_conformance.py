"""Conformance suite for online stores.

A subclass implements opening an empty store:

    class TestOurs(OnlineConformance):
        def store(self, directory):
            return OurStore(OnlineConfig("ours", uri))
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from featurestore.plugins.online import IdentifiesServer, OnlineStore, open_config

__all__ = ["OnlineConformance", "sequenced"]

# Keys that contain the special characters of patterns, zero bytes, and the greatest byte.
_KEYS = [
    b"",
    b"a",
    b"a*",
    b"a?[b]\\",
    b"a\x00",
    b"a\x00\x00b",
    b"a\xff",
    b"a\xff\xff",
    b"\xff",
    b"b",
]
_CLOCK_TOLERANCE = timedelta(seconds=5)


def sequenced(sequence: int, payload: bytes = b"") -> bytes:
    """Return a value with a sequence, as ``write_newer`` compares it."""
    return b"\x01" + sequence.to_bytes(8, "big") + payload


class OnlineConformance:
    """Tests for one online store."""

    def store(self, directory: Path) -> OnlineStore:
        """Return a new, empty store. ``directory`` is an empty folder."""
        raise NotImplementedError

    @pytest.fixture
    def online(self, tmp_path: Path) -> Iterator[OnlineStore]:
        """Open an empty store, and close it after the test."""
        store = self.store(tmp_path)
        yield store
        store.close()

    def test_read_of_a_new_store_returns_no_values(self, online: OnlineStore) -> None:
        assert online.read([b"a", b"b"]) == [None, None]
        assert online.read([]) == []

    def test_read_returns_written_values_in_order_of_keys(self, online: OnlineStore) -> None:
        values = [bytes(reversed(key)) + b"\x00\xff" for key in _KEYS]
        online.write(_KEYS, values)
        assert online.read(_KEYS) == values
        assert online.read([b"b", b"missing", b"a", b"b"]) == [
            b"b\x00\xff",
            None,
            b"a\x00\xff",
            b"b\x00\xff",
        ]
        assert asyncio.run(online.read_async([b"missing", b"\xff"])) == [None, b"\xff\x00\xff"]

    def test_write_replaces_values(self, online: OnlineStore) -> None:
        online.write([b"a", b"b"], [b"1", b"2"])
        online.write([b"b", b"c"], [b"", b"3" * 100_000])
        assert online.read([b"a", b"b", b"c"]) == [b"1", b"", b"3" * 100_000]
        online.write([], [])

    def test_write_and_read_many_keys(self, online: OnlineStore) -> None:
        keys = [number.to_bytes(4, "big") for number in range(25_000)]
        random.Random(0).shuffle(keys)
        values = [sequenced(0, key) for key in keys]
        online.write(keys, values)
        assert online.read(keys) == values
        assert online.write_newer(keys[:1_500], [sequenced(1)] * 1_500) == 1_500
        assert online.delete_prefix(b"\x00\x00") == 25_000
        assert online.read(keys[:3]) == [None, None, None]

    def test_write_newer_keeps_values_with_greater_sequences(self, online: OnlineStore) -> None:
        # The sequences differ in each half of the number, and in bytes beyond ASCII.
        sequences = [0, 1, 127, 128, 255, 256, 2**31, 2**32 - 1, 2**32, 2**53, 2**53 + 1, 2**64 - 1]
        keys = [bytes([number]) for number in range(len(sequences))]
        first = [sequenced(sequence, b"first") for sequence in sequences]
        assert online.write_newer(keys, first) == len(keys)
        assert (
            online.write_newer(keys, [sequenced(sequence, b"same") for sequence in sequences]) == 0
        )
        older = [sequenced(max(sequence - 1, 0), b"older") for sequence in sequences]
        assert online.write_newer(keys, older) == 0
        assert online.read(keys) == first
        newer = [sequenced(sequence + 1, b"newer") for sequence in sequences[:-1]]
        assert online.write_newer(keys[:-1], newer) == len(newer)
        assert online.read(keys) == [*newer, first[-1]]

    def test_last_value_of_a_call_is_written_last(self, online: OnlineStore) -> None:
        keys = [number.to_bytes(4, "big") for number in range(12_000)]
        # Keys in an order that differs from that of their bytes.
        random.Random(0).shuffle(keys)
        for sequence, write in enumerate((online.write, online.write_newer, online.write), 1):
            values = [sequenced(sequence)] * len(keys)
            with ThreadPoolExecutor(1) as pool:
                writing = pool.submit(write, keys, values)
                is_checked_at_end = False
                while not is_checked_at_end:
                    is_checked_at_end = writing.done()
                    last, *other_values = online.read([keys[-1], *keys[::97]])
                    assert last != values[0] or set(other_values) == {values[0]}
                writing.result()

    def test_server_identity_is_that_of_all_connections(self, online: OnlineStore) -> None:
        if not isinstance(online, IdentifiesServer):
            pytest.skip("the store does not identify its server")
        identity = online.server_identity()
        online.write([b"a"], [b"1"])
        reopened = open_config(online.config.with_resolved_secret())
        assert isinstance(reopened, IdentifiesServer)
        assert reopened.server_identity() == online.server_identity() == identity
        assert {risk.setting for risk in online.durability_risks()} == {
            risk.setting for risk in reopened.durability_risks()
        }
        reopened.close()

    def test_concurrent_writes_leave_the_newest_value(self, online: OnlineStore) -> None:
        keys = [bytes([number]) for number in range(20)]

        def write(seed: int) -> int:
            sequences = random.Random(seed).sample(range(100), 50)
            shuffled = random.Random(seed).sample(keys, len(keys))
            for sequence in [*sequences, 100]:
                online.write_newer(shuffled, [sequenced(sequence)] * len(keys))
            return max(sequences)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(write, range(4)))
        assert online.read(keys) == [sequenced(100)] * len(keys)

    def test_compare_and_set_lets_one_writer_win(self, online: OnlineStore) -> None:
        barrier = threading.Barrier(8)

        def claim(number: int) -> bool:
            barrier.wait()
            return online.compare_and_set(b"lease", None, b"%d" % number)

        with ThreadPoolExecutor(8) as threads:
            claims = list(threads.map(claim, range(8)))
        assert claims.count(True) == 1
        winner = b"%d" % claims.index(True)
        assert online.read([b"lease"]) == [winner]
        assert not online.compare_and_set(b"lease", b"another", b"next")
        assert online.compare_and_set(b"lease", winner, b"next")
        # As after a lost response.
        assert online.compare_and_set(b"lease", winner, b"next")
        assert not online.compare_and_set(b"lease", None, b"late")
        assert not online.compare_and_set(b"missing", b"expected", b"value")
        assert online.read([b"lease", b"missing"]) == [b"next", None]

    @pytest.mark.parametrize("prefix", [b"a", b"a*", b"a\xff", b"\xff", b"a?["])
    def test_delete_prefix_deletes_only_matching_keys(
        self, online: OnlineStore, prefix: bytes
    ) -> None:
        online.write(_KEYS, _KEYS)
        remaining = [key for key in _KEYS if not key.startswith(prefix)]
        assert online.delete_prefix(prefix) == len(_KEYS) - len(remaining)
        assert online.delete_prefix(prefix) == 0
        assert [value for value in online.read(_KEYS) if value is not None] == remaining

    @pytest.mark.parametrize("prefix", [b"", b"a", b"a*", b"a\xff", b"\xff", b"a?["])
    def test_scan_and_delete_use_only_matching_keys(
        self, online: OnlineStore, prefix: bytes
    ) -> None:
        numbers = [b"a\xff" + number.to_bytes(2, "big") for number in range(6_000)]
        online.write([*_KEYS, *numbers], [*_KEYS, *numbers])
        expected = {key for key in (*_KEYS, *numbers) if key.startswith(prefix)}
        scanned = {key for batch in online.scan(prefix) for key in batch}
        assert scanned == expected
        # Keys may be deleted during a scan.
        deleted = sum([online.delete(batch) for batch in online.scan(prefix)])
        assert deleted == len(expected)
        assert online.delete([b"missing", *list(scanned)[:1]]) == 0
        assert online.delete([]) == 0
        remaining = {key for batch in online.scan(b"") for key in batch}
        assert remaining == {*_KEYS, *numbers} - expected

    def test_reads_from_threads_never_mix_values(self, online: OnlineStore) -> None:
        keys = [bytes([number]) for number in range(50)]
        online.write(keys, keys)

        def read(seed: int) -> bool:
            selected_keys = random.Random(seed).choices(keys, k=7)
            return online.read(selected_keys) == selected_keys

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(read, range(400)))

        async def read_concurrently() -> list[list[bytes | None]]:
            return await asyncio.gather(*(online.read_async([key]) for key in keys))

        assert asyncio.run(read_concurrently()) == [[key] for key in keys]

    def test_a_forked_process_uses_its_own_connections(self, online: OnlineStore) -> None:
        online.write([b"a"], [b"1"])
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=_read_repeatedly, args=(online,)) for _ in range(2)]
        for process in processes:
            process.start()
        _read_repeatedly(online)
        for process in processes:
            process.join(30)
        assert [process.exitcode for process in processes] == [0, 0]
        assert online.read([b"a"]) == [b"1"]

    def test_a_pickled_config_opens_the_same_store(self, online: OnlineStore) -> None:
        online.write([b"a"], [b"1"])
        config = pickle.loads(pickle.dumps(online.config.with_resolved_secret()))
        reopened = open_config(config)
        assert reopened.read([b"a"]) == [b"1"]
        assert isinstance(reopened, OnlineStore)
        reopened.close()

    def test_a_closed_store_can_be_closed_again(self, online: OnlineStore) -> None:
        online.write([b"a"], [b"1"])
        online.close()
        online.close()

    def test_check_and_statistics(self, online: OnlineStore) -> None:
        online.check()
        online.write([b"a", b"b"], [b"1", b"2" * 1000])
        statistics = online.statistics()
        assert statistics["keys"] == 2
        assert statistics["bytes"] >= 1000
        assert abs(online.clock() - datetime.now(UTC)) < _CLOCK_TOLERANCE


def _read_repeatedly(store: OnlineStore) -> None:
    for _ in range(100):
        assert store.read([b"a"]) == [b"1"]
    assert asyncio.run(store.read_async([b"a"])) == [b"1"]
