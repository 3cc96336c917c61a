"""Shares of the values of label columns: in each split, and from one dataset to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from featurestore.model.manifest import Manifest

_LISTED = 5

Shares = dict[str, dict[str, float]]


def label_proportions(manifest: Manifest) -> dict[str, Shares]:
    """Return the share of each value of each counted label, per split: ``{split: {label: {value: share}}}``."""
    return {
        split.name: {label: _shares(counts) for label, counts in split.label_counts.items()}
        for split in manifest.splits
    }


def label_changes(manifest: Manifest, other: Manifest) -> Iterator[str]:
    """Yield a line for each label of each split whose shares differ between two datasets, the largest changes first."""
    mine, theirs = label_proportions(manifest), label_proportions(other)
    for split in mine:
        for label, before in mine[split].items():
            after = theirs.get(split, {}).get(label)
            if after is None or before == after:
                continue
            values = sorted(
                {*before, *after},
                key=lambda value: -abs(before.get(value, 0.0) - after.get(value, 0.0)),
            )
            listed = [
                f"{each}: {before.get(each, 0.0):.2%} -> {after.get(each, 0.0):.2%}"
                for each in values[:_LISTED]
            ]
            more = f" and {len(values) - _LISTED} more" if len(values) > _LISTED else ""
            yield f"label {label!r} in {split}: {', '.join(listed)}{more}"


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    rows = sum(counts.values())
    return {value: count / rows for value, count in counts.items()} if rows else {}
