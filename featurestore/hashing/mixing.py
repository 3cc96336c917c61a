"""Arithmetic modulo 2**64 on arrays: the mixer, ordered folds, and position-dependent sums.

The mixer is the finalizer of SplitMix64 (Steele, Lea, Flood 2014; constants by Stafford, variant
13), a bijection on 64-bit words. Arrays are processed in blocks that fit the processor cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]

GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# Masks for the first 0 to 8 bytes of a little-endian word.
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64)
# 64 KiB of words and as much scratch space.
_BLOCK = 8192
_BLOCK_WORDS = 32_768


def mix(word: int) -> int:
    """Mix a single integer.

    >>> hex(mix(1))
    '0x5692161d100b05e5'
    """
    word &= _MASK
    word = ((word ^ (word >> 30)) * _FIRST) & _MASK
    word = ((word ^ (word >> 27)) * _SECOND) & _MASK
    return word ^ (word >> 31)


def tag(code: int) -> int:
    """Return the word that separates the hash domain of a value kind.

    >>> tag(0)
    0
    """
    return mix(code * GOLDEN)


def mix_all(words: Words) -> Words:
    """Mix all words in place and return the array."""
    # One buffer for all blocks, so that the mixer allocates no temporary arrays.
    scratch = np.empty(min(_BLOCK, len(words)), dtype=np.uint64)
    for block in _blocks(words):
        _mix_block(block, scratch[: len(block)])
    return words


def unmix_all(words: Words) -> Words:
    """Return the words that ``mix_all`` changes to these words.

    >>> unmix_all(np.array([mix(1), mix(2)], dtype=np.uint64)).tolist()
    [1, 2]
    """
    for shift, factor in ((31, _SECOND), (27, _FIRST), (30, 1)):
        words = words ^ (words >> np.uint64(shift)) ^ (words >> np.uint64(2 * shift))
        words = words * np.uint64(pow(factor, -1, 2**64))
    return words


def fold(state: Words, words: Words | int) -> Words:
    """Set ``state = mix(state + words)`` in place and return it; the fold order matters."""
    if isinstance(words, int):
        # NumPy 1 converts uint64 and a signed integer to float64, so all operands are uint64.
        state += np.uint64(words)
        return mix_all(state)
    scratch = np.empty(min(_BLOCK, len(state)), dtype=np.uint64)
    for start in range(0, len(state), _BLOCK):
        block = state[start : start + _BLOCK]
        block += words[start : start + _BLOCK]
        _mix_block(block, scratch[: len(block)])
    return state


def sums_by_position(words: Words, lengths: Int64s) -> Words:
    """Return ``sum(mix(word + (j + 1) * GOLDEN))`` over the words j of each sequence.

    ``words`` are the concatenated words of all sequences and are overwritten; ``lengths`` are the
    word counts.
    """
    ends = np.cumsum(lengths)
    positions = np.arange(1, len(words) + 1, dtype=np.int64) - np.repeat(ends - lengths, lengths)
    words += positions.view(np.uint64) * np.uint64(GOLDEN)
    totals = np.zeros(len(words) + 1, dtype=np.uint64)
    np.cumsum(mix_all(words), out=totals[1:])
    # Differences of prefix sums are exact modulo 2**64, also after an overflow.
    return totals[ends] - totals[ends - lengths]


def byte_sums(data: npt.NDArray[np.uint8], starts: Int64s, lengths: Int64s) -> Words:
    """Return ``sums_by_position`` for byte strings, as zero-padded little-endian words."""
    sums = np.zeros(len(starts), dtype=np.uint64)
    counts = (lengths + 7) >> 3
    for rows in _row_blocks(counts):
        word_counts = counts[rows]
        # A long string is summed block by block, since its words take several times its size.
        if len(word_counts) == 1 and word_counts[0] > _BLOCK_WORDS:
            sums[rows] = sum_of_bytes(data, int(starts[rows][0]), int(lengths[rows][0]))
        elif word_counts.max(initial=0) > 1:
            words = _split_words(data, starts[rows], lengths[rows], word_counts)
            sums[rows] = sums_by_position(words, word_counts)
        else:
            # Short strings are a single word each, without positions.
            words = words_at(data, starts[rows], lengths[rows])
            words += np.uint64(GOLDEN)
            sums[rows] = np.where(word_counts == 1, mix_all(words), np.uint64(0))
    return sums


def sum_of_bytes(data: npt.NDArray[np.uint8], start: int, length: int) -> np.uint64:
    """Return ``byte_sums`` of one long byte string, copying only one block at a time."""
    aligned = length - length % 8
    words = data[start : start + aligned].view("<u8")
    total = np.zeros(1, dtype=np.uint64)
    for first in range(0, len(words), _BLOCK_WORDS):
        block = words[first : first + _BLOCK_WORDS].astype(np.uint64)
        block += np.arange(first + 1, first + 1 + len(block), dtype=np.uint64) * np.uint64(GOLDEN)
        total += mix_all(block).sum(dtype=np.uint64)
    if aligned < length:
        # Zero padding, as in ``words_at``: the length is part of the hash.
        tail = data[start + aligned : start + length].tobytes().ljust(8, b"\0")
        word = int.from_bytes(tail, "little") + (len(words) + 1) * GOLDEN
        total += np.uint64(mix(word))
    return np.uint64(total[0])


def _split_words(
    data: npt.NDArray[np.uint8], starts: Int64s, lengths: Int64s, counts: Int64s
) -> Words:
    """Return the concatenated words of all byte strings."""
    first_words = np.cumsum(counts) - counts
    word_offsets = 8 * (
        np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(first_words, counts)
    )
    return words_at(
        data, np.repeat(starts, counts) + word_offsets, np.repeat(lengths, counts) - word_offsets
    )


def words_at(data: npt.NDArray[np.uint8], starts: Int64s, remaining: Int64s) -> Words:
    """Return the little-endian words of up to 8 of the ``remaining`` bytes at ``starts``."""
    low, high = 0, 0
    if len(starts):
        low, high = int(starts.min()), int((starts + np.minimum(remaining, 8)).max())
    # A padded copy, so that no word is read beyond the end of the Arrow buffer.
    padded = np.zeros(high - low + 8, dtype=np.uint8)
    padded[: high - low] = data[low:high]
    # A stride of one byte: strings begin at any byte of the buffer.
    overlapping_words: Words = np.ndarray(high - low + 1, dtype="<u8", buffer=padded, strides=(1,))
    words = overlapping_words[starts - low]
    if len(remaining) and remaining.min() < 8:
        words &= _FIRST_BYTES[np.clip(remaining, 0, 8)]
    return words.astype(np.uint64, copy=False)


def _mix_block(block: Words, scratch: Words) -> None:
    """Apply ``mix`` to a block in place."""
    np.right_shift(block, np.uint64(30), out=scratch)
    np.bitwise_xor(block, scratch, out=block)
    np.multiply(block, np.uint64(_FIRST), out=block)
    np.right_shift(block, np.uint64(27), out=scratch)
    np.bitwise_xor(block, scratch, out=block)
    np.multiply(block, np.uint64(_SECOND), out=block)
    np.right_shift(block, np.uint64(31), out=scratch)
    np.bitwise_xor(block, scratch, out=block)


def _blocks(words: Words) -> Iterator[Words]:
    for start in range(0, len(words), _BLOCK):
        yield words[start : start + _BLOCK]


def _row_blocks(counts: Int64s) -> Iterator[slice]:
    """Yield row slices with about ``_BLOCK_WORDS`` words."""
    ends = np.cumsum(counts + 1)
    start, previous_end = 0, 0
    while start < len(counts):
        stop = int(np.searchsorted(ends, previous_end + _BLOCK_WORDS, side="right"))
        # A single row may exceed the block.
        stop = max(stop, start + 1)
        yield slice(start, stop)
        start, previous_end = stop, int(ends[stop - 1])
