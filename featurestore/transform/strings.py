"""Operations on the bytes of strings: words, and SipHash-2-4 (Aumasson and Bernstein 2012).

TensorFlow has SipHash as ``tf.strings.to_hash_bucket_strong``, so that a graph and numpy
assign equal buckets.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

# Separators of words, as a pattern with one meaning in Python (bytes) and RE2 (UTF-8).
SEPARATORS = r"[\x00-/:-@\[-^`{-\x7f]+"
_SEPARATORS = re.compile(SEPARATORS.encode("ascii"))


Words = npt.NDArray[np.uint64]

# An arbitrary key; changing it would change the bucket of every string.
KEY = (0x6665617475726573, 0x746F7265)
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def split_words(
    texts: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None, *, lower: bool, length: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the first words of each string as (rows, length), and their mask.

    Only ASCII letters are converted to lower case.

    >>> strings = np.array([b"Gate A3, late!"], object)
    >>> words, present = split_words(strings, None, lower=True, length=4)
    >>> words.tolist(), present.tolist()
    ([[b'gate', b'a3', b'late', b'']], [[True, True, True, False]])
    """
    words = np.full((len(texts), length), b"", dtype=object)
    is_word = np.zeros((len(texts), length), dtype=np.bool_)
    for row, text in enumerate(texts.tolist()):
        if present is not None and not present[row]:
            continue
        if lower:
            text = text.lower()
        first_words = [word for word in _SEPARATORS.split(text) if word][:length]
        words[row, : len(first_words)] = first_words
        is_word[row, : len(first_words)] = True
    return words, is_word


def siphash(texts: list[bytes]) -> Words:
    """Return the 64-bit hash of each string.

    >>> hex(int(siphash([b""])[0]))
    '0xb43a1ef6cc251682'
    """
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    result = np.empty(len(texts), dtype=np.uint64)
    # Strings with an equal number of 64-bit words are hashed together.
    words = lengths // 8
    for count in np.unique(words).tolist():
        rows = np.flatnonzero(words == count)
        width = (count + 1) * 8
        padded = b"".join(texts[row].ljust(width, b"\0") for row in rows.tolist())
        blocks = np.frombuffer(padded, dtype="<u8").reshape(len(rows), count + 1).copy()
        blocks[:, -1] |= (lengths[rows].astype(np.uint64) & np.uint64(0xFF)) << np.uint64(56)
        result[rows] = _mixed(blocks)
    return result


def bucket_of_texts(texts: npt.NDArray[Any], buckets: int) -> npt.NDArray[np.int64]:
    """Return the bucket of each string, hashing distinct strings once."""
    import pyarrow as pa

    encoded = pa.array(texts.tolist(), pa.large_binary()).dictionary_encode()
    hashes = siphash(encoded.dictionary.to_pylist()) % np.uint64(buckets)
    return hashes.astype(np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]


def _mixed(blocks: Words) -> Words:
    key = [np.uint64(word) for word in KEY]
    state = [
        np.full(len(blocks), np.uint64(start) ^ key[index % 2], dtype=np.uint64)
        for index, start in enumerate(_START)
    ]
    for column in range(blocks.shape[1]):
        block = blocks[:, column]
        state[3] ^= block
        _rounds(state, 2)
        state[0] ^= block
    state[2] ^= np.uint64(0xFF)
    _rounds(state, 4)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _rounds(state: list[Words], count: int) -> None:
    """Mix the four state words of each string in place."""
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 += v1
        v1[:] = _rotated(v1, 13) ^ v0
        v0[:] = _rotated(v0, 32)
        v2 += v3
        v3[:] = _rotated(v3, 16) ^ v2
        v0 += v3
        v3[:] = _rotated(v3, 21) ^ v0
        v2 += v1
        v1[:] = _rotated(v1, 17) ^ v2
        v2[:] = _rotated(v2, 32)


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
