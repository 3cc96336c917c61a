"""Checks of a dataset's rows: their order and their splits.

The checks need the columns that determine both, which some formats store with a loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featurestore.errors import FeatureStoreError
from featurestore.hashing import row_hash
from featurestore.model.manifest import Manifest
from featurestore.plugins.format import DatasetFormat
from featurestore.training.export.split_rules import SplitRule, assign_groups
from featurestore.training.reading import split_batches
from featurestore.training.verification.problems import Problem

UInt64s = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class _PossibleChecks:
    """The checks that are possible: rows can be hashed again only from columns without loss.

    ``order``: the order of rows inside their split; ``split``: the split of each row by the rule;
    ``distinct``: that no row is in two splits, if the rule cannot be evaluated.
    """

    rule: SplitRule
    order: bool
    split: bool
    distinct: bool

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> _PossibleChecks:
        lossless = {column.name for column in manifest.columns if column.loss is None}
        rule = SplitRule.from_json(manifest.split_rule)
        order = set(manifest.key) <= lossless
        split = order and not rule.stratify and set(rule.columns) <= lossless
        return cls(rule, order, split, not split and len(lossless) == len(manifest.columns))


def unchecked(manifest: Manifest, dataset_format: DatasetFormat) -> Iterator[str]:
    """Yield the checks that are not possible without running the plan again, with the reason."""
    refusal = dataset_format.refuse_reading(manifest.layout)
    if refusal is not None:
        yield f"row order and splits not checked: {refusal}"
        return
    possible = _PossibleChecks.from_manifest(manifest)
    lossy = ", ".join(column.name for column in manifest.columns if column.loss is not None)
    if not possible.order:
        yield f"row order not checked: the files store key columns with a loss ({lossy})"
    if len(manifest.splits) > 1 and not possible.split and not possible.distinct:
        yield f"splits not compared row by row: the files store columns with a loss ({lossy})"


def row_problems(directory: str, manifest: Manifest) -> Iterator[Problem]:
    """Check order and splits from the rows themselves."""
    possible = _PossibleChecks.from_manifest(manifest)
    digests: dict[str, UInt64s] = {}
    for number, split in enumerate(manifest.splits):
        scan = _SplitScan(manifest, possible, number, split.name)
        try:
            for batch in split_batches(directory, manifest, split.name):
                yield from scan.problems(batch)
        except FeatureStoreError as error:
            yield Problem(split.name, f"cannot be read: {error.message}")
        digests[split.name] = scan.distinct_rows()
    yield from _overlaps(digests)


class _SplitScan:
    """One pass over the rows of a split, batch by batch."""

    def __init__(
        self, manifest: Manifest, possible: _PossibleChecks, number: int, name: str
    ) -> None:
        self._manifest = manifest
        self._possible = possible
        self._number = number
        self._name = name
        self._last_hash = 0
        self._row = 0
        self._sorted = True
        self._digests: list[UInt64s] = []

    def problems(self, batch: pa.RecordBatch) -> Iterator[Problem]:
        """Yield the problems of the next rows."""
        manifest = self._manifest
        hashes = row_hash(batch, columns=manifest.key, seed=manifest.seed)
        if self._possible.order and self._sorted and not self._follow(hashes):
            self._sorted = False  # one break causes more; only the first is reported
            yield self._near("rows are not in the order of their hash")
        if self._possible.split and not self._belong(batch, hashes):
            yield self._near("has rows that the split rule assigns to another split,")
        if self._possible.distinct:
            self._digests.append(row_hash(batch, seed=0))
        self._row += batch.num_rows

    def distinct_rows(self) -> UInt64s:
        """Return the distinct digests of the scanned rows, sorted."""
        if not self._digests:
            return np.empty(0, dtype=np.uint64)
        return np.unique(np.concatenate(self._digests))

    def _follow(self, hashes: UInt64s) -> bool:
        """Return whether rows follow the previous ones in the order of their hash."""
        if not len(hashes):
            return True
        after_last = int(hashes[0]) >= self._last_hash
        self._last_hash = int(hashes[-1])
        return after_last and bool((hashes[1:] >= hashes[:-1]).all())

    def _belong(self, batch: pa.RecordBatch, hashes: UInt64s) -> bool:
        """Return whether the rule assigns all rows to this split."""
        seed = self._manifest.seed
        groups = assign_groups(batch, rule=self._possible.rule, hashes=hashes, seed=seed)
        return bool((groups == self._number).all())

    def _near(self, message: str) -> Problem:
        return Problem(self._name, f"{message} near row {self._row:,}")


def _overlaps(digests: dict[str, UInt64s]) -> Iterator[Problem]:
    names = list(digests)
    for index, name in enumerate(names):
        for other_name in names[index + 1 :]:
            shared = len(np.intersect1d(digests[name], digests[other_name], assume_unique=True))
            if shared:
                yield Problem(name, f"shares {shared:,} rows with split {other_name!r}")
