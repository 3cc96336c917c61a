"""What an engine may offer besides: row hashes and counts of them without a pass through Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from featurestore.plugins.engine import Relation
from featurestore.plugins.format import ColumnProfile


@dataclass(frozen=True)
class HashCounts:
    """What hashed rows are: per group its rows by leading bits, the sum of its hashes modulo 2**64.

    ``histograms`` are counts of ``2**bits`` bins in the order of the hashes, int64 arrays.
    """

    bits: int
    histograms: dict[int, Any]
    hash_sums: dict[int, int]
    profiles: tuple[ColumnProfile, ...]


@runtime_checkable
class HashesRows(Protocol):
    """An engine that hashes rows where they are, bit for bit as ``featurestore.hashing`` does.

    What it has no hash for it answers with None; batches of Arrow are hashed then. Hashes are
    signed integers of the order that they have without a sign. Only ``count_hashes`` and
    ``hashes_of_groups`` run anything.
    """

    def with_row_hash(
        self, relation: Relation, columns: Sequence[str], *, seed: int, name: str
    ) -> Relation | None:
        """Return the rows with the row hash of columns as a further int64 column."""
        ...

    def with_range_number(
        self,
        relation: Relation,
        column: str,
        *,
        starts: Sequence[int],
        numbers: Sequence[int],
        name: str,
    ) -> Relation:
        """Return the rows with the number of the range in which an int64 column lies.

        The further column has int32. ``numbers`` are one more than the strictly ascending
        ``starts``, where the second and later ranges begin.
        """
        ...

    def count_hashes(
        self, relation: Relation, *, hashes: str, group: str, columns: Sequence[str]
    ) -> HashCounts | None:
        """Return the counts of hashed rows by group, and profiles of columns over all groups."""
        ...

    def hashes_of_groups(
        self, relation: Relation, *, hashes: str, group: str, bits: int
    ) -> dict[int, tuple[Any, Any]]:
        """Return the different hashes of each group in their order, and the rows of each.

        Of the hashes only the leading ``bits`` count; the others are 0. Both are int64 arrays. For
        few different hashes: all of them come to the caller.
        """
        ...
