"""When small files of a table are worth merging: by tiers of size.

So every row is rewritten a few times only.

Files are sorted into tiers, each eight times the size of the one below. Where a tier of a partition
has eight files they are merged with those below them, which makes about one file of the next tier.
So a table of any number of commits has a few dozen small files at most, and a row is rewritten once
for each tier.
"""

from __future__ import annotations

from collections import Counter

from featurestore.delta.snapshot import Snapshot

_FILES_IN_A_TIER = 8
_TIERS = tuple((1 << 14) * _FILES_IN_A_TIER**number for number in range(5))


def size_to_merge_below(snapshot: Snapshot) -> int | None:
    """Return the size below which files should be merged, None while they need not be."""
    if len(snapshot.files) < _FILES_IN_A_TIER:
        return None
    counted: Counter[tuple[object, int]] = Counter()
    for file in snapshot.files:
        tier = _tier_of(file.bytes)
        if tier < len(_TIERS):
            counted[(tuple(file.partition.values()), tier)] += 1
    full = []
    for (_, tier), count in counted.items():
        if count >= _FILES_IN_A_TIER:
            full.append(tier)
    if not full:
        return None
    return _TIERS[max(full)]


def _tier_of(size: int) -> int:
    """Return which tier a file is in: the number of tiers for one that is no longer small.

    >>> _tier_of(100), _tier_of(20_000), _tier_of(1 << 30)
    (0, 1, 5)
    """
    for tier, below in enumerate(_TIERS):
        if size < below:
            return tier
    return len(_TIERS)
