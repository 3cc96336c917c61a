"""Words of texts: runs of ASCII letters, digits, "_" and of all that is not ASCII."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

# What parts words, in a form that Python (over bytes) and RE2 (over UTF-8) read alike.
SEPARATORS = r"[\x00-/:-@\[-^`{-\x7f]+"
_SEPARATORS = re.compile(SEPARATORS.encode("ascii"))


def words_of(
    texts: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None, *, lower: bool, length: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the first words of each text as (rows, length), and where there are any.

    Lower case is that of ASCII; other letters stay as they are.

    >>> words, there = words_of(np.array([b"Gate A3, late!"], object), None, lower=True, length=4)
    >>> words.tolist(), there.tolist()
    ([[b'gate', b'a3', b'late', b'']], [[True, True, True, False]])
    """
    words = np.full((len(texts), length), b"", dtype=object)
    there = np.zeros((len(texts), length), dtype=np.bool_)
    for row, text in enumerate(texts.tolist()):
        if present is not None and not present[row]:
            continue
        if lower:
            text = text.lower()
        found = [word for word in _SEPARATORS.split(text) if word][:length]
        words[row, : len(found)] = found
        there[row, : len(found)] = True
    return words, there
