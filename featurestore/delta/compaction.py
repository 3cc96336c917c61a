"""Size-tiered compaction: when to merge the small files of a table.

Each tier has files of eight times the size of the tier below. When a tier of a partition has eight
files, they are merged with the files of the lower tiers to about one file of the next tier. So a
table has at most a few dozen small files, and a row is rewritten once per tier.
"""

from __future__ import annotations

from collections import Counter

from featurestore.delta.snapshot import Snapshot

_FILES_PER_TIER = 8
_TIERS = tuple((1 << 14) * _FILES_PER_TIER**number for number in range(5))


def size_to_merge_below(snapshot: Snapshot) -> int | None:
    """Return the size below which files should be merged, None if no tier is full."""
    if len(snapshot.files) < _FILES_PER_TIER:
        return None
    counts: Counter[tuple[object, int]] = Counter()
    for file in snapshot.files:
        tier = _tier_of(file.bytes)
        if tier < len(_TIERS):
            counts[(tuple(file.partition.values()), tier)] += 1
    full_tiers = [tier for (_, tier), count in counts.items() if count >= _FILES_PER_TIER]
    if not full_tiers:
        return None
    return _TIERS[max(full_tiers)]


def _tier_of(size: int) -> int:
    """Return the tier of a file; the number of tiers for large files.

    >>> _tier_of(100), _tier_of(20_000), _tier_of(1 << 30)
    (0, 1, 5)
    """
    for tier, below in enumerate(_TIERS):
        if size < below:
            return tier
    return len(_TIERS)
