"""Shares of the values of label columns: in each split, and from one dataset to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from featurestore.model.manifest import Manifest

_LISTED = 5

Shares = dict[str, dict[str, float]]


def label_proportions(manifest: Manifest) -> dict[str, Shares]:
    """Return the share of each value of each counted label.

    ``{split: {label: {value: share}}}``.
    """
    proportions: dict[str, Shares] = {}
    for split in manifest.splits:
        proportions[split.name] = {}
        for label, counts in split.label_counts.items():
            proportions[split.name][label] = _shares(counts)
    return proportions


def label_changes(manifest: Manifest, other: Manifest) -> Iterator[str]:
    """Yield a line for each label of each split whose shares differ, the largest changes first."""
    mine, theirs = label_proportions(manifest), label_proportions(other)
    for split in mine:
        for label, before in mine[split].items():
            after = theirs.get(split, {}).get(label)
            if after is None or before == after:
                continue
            yield f"label {label!r} in {split}: {_listed(before, after)}"


def _listed(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Return what changed most of the shares of a label."""
    changes = {}
    for value in {*before, *after}:
        changes[value] = abs(before.get(value, 0.0) - after.get(value, 0.0))
    values = sorted(changes, key=lambda value: (-changes[value], value))
    listed = []
    for value in values[:_LISTED]:
        listed.append(f"{value}: {before.get(value, 0.0):.2%} -> {after.get(value, 0.0):.2%}")
    if len(values) > _LISTED:
        listed[-1] += f" and {len(values) - _LISTED} more"
    return ", ".join(listed)


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    rows = sum(counts.values())
    if not rows:
        return {}
    shares = {}
    for value, count in counts.items():
        shares[value] = count / rows
    return shares
