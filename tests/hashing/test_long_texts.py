"""Hashes of strings longer than a block of words."""

from __future__ import annotations

import numpy as np
import pytest

from featurestore.hashing.mixing import GOLDEN, byte_sums, mix


@pytest.mark.parametrize("extra", [*range(9), 32_768 * 8])
def test_byte_sums_long_texts_equal_definition(extra: int) -> None:
    length = 32_768 * 8 + extra
    data = np.random.default_rng(extra).integers(0, 256, length + 3, dtype=np.uint8)
    text = data[3:].tobytes().ljust((length + 7) // 8 * 8, b"\0")
    expected = 0
    for number, word in enumerate(np.frombuffer(text, "<u8").tolist(), 1):
        expected += mix(word + number * GOLDEN)
    starts, lengths = np.array([3, 3]), np.array([length, 5])
    sums = byte_sums(data, starts, lengths)
    assert int(sums[0]) == expected % 2**64
    assert int(sums[1]) == mix(int.from_bytes(data[3:8].tobytes(), "little") + GOLDEN)
