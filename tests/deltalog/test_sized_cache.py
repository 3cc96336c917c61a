"""The cache of parsed commits evicts by total size, as a plain list of entries does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from featurestore.delta.log import SizedCache

LIMIT = 10


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, LIMIT + 2)), max_size=60))
def test_cache_evicts_least_recently_used_by_size(calls: list[tuple[int, int]]) -> None:
    cache, entries = SizedCache[int, int](LIMIT), list[tuple[int, int]]()
    for number, (key, size) in enumerate(calls):
        expected = next((entry for entry in entries if entry[0] == key), None)
        loads: list[int] = []

        def load(number: int = number, loads: list[int] = loads) -> int:
            loads.append(number)
            return number

        cache.find(key, load, size=size)
        assert bool(loads) == (expected is None)
        if expected is not None:
            entries.remove(expected)
        if expected is not None or size <= LIMIT:
            entries.append(expected or (key, size))
        while sum(size for _, size in entries) > LIMIT:
            del entries[0]
        assert len(cache) == len(entries)
