"""Words of strings: runs of ASCII letters, digits, "_" and non-ASCII characters."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

# Separators of words, as a pattern with one meaning in Python (bytes) and RE2 (UTF-8).
SEPARATORS = r"[\x00-/:-@\[-^`{-\x7f]+"
_SEPARATORS = re.compile(SEPARATORS.encode("ascii"))


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
