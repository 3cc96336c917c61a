"""An optional capability of engines: row hashes and their counts without a pass through Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from featurestore.plugins.engine import Relation
from featurestore.plugins.format import ColumnProfile


@dataclass(frozen=True)
class HashCounts:
    """Statistics of hashed rows by group.

    Attributes:
        bits: Leading bits of the hash that select a bin.
        histograms: Rows per bin, int64 arrays of ``2**bits`` in the order of the hashes.
        hash_sums: Sum of the hashes modulo 2**64.
        profiles: Column profiles over all groups.
    """

    bits: int
    histograms: dict[int, Any]
    hash_sums: dict[int, int]
    profiles: tuple[ColumnProfile, ...]


@runtime_checkable
class HashesRows(Protocol):
    """An engine that computes the hashes of ``featurestore.hashing`` where the rows are.

    Methods return None for types that the engine cannot hash; Arrow batches are hashed instead.
    Hashes are mapped to signed integers in the order of the unsigned hashes. Only ``count_hashes``
    and ``hashes_of_groups`` run a query.
    """

    def with_row_hash(
        self, relation: Relation, columns: Sequence[str], *, seed: int, name: str
    ) -> Relation | None:
        """Return the rows with an additional int64 column, the row hash of ``columns``."""
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
        """Return the rows with an additional int32 column, the number of the value's range.

        ``starts`` are the strictly ascending starts of the second and later ranges; ``numbers`` has
        one more element than ``starts``.
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
        """Return {group: (distinct hashes in order, rows of each)} as int64 arrays.

        Only the leading ``bits`` of the hashes are kept; the others are 0. For few distinct hashes:
        all of them are collected in the calling process.
        """
        ...
