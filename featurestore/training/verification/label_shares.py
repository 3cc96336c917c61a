"""Proportions of label values: per split, and their changes between datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from featurestore.model.manifest import Manifest

_MAX_LISTED = 5

Shares = dict[str, dict[str, float]]


def label_proportions(manifest: Manifest) -> dict[str, Shares]:
    """Return the proportion of each label value: ``{split: {label: {value: proportion}}}``."""
    proportions: dict[str, Shares] = {}
    for split in manifest.splits:
        proportions[split.name] = {}
        for label, counts in split.label_counts.items():
            proportions[split.name][label] = _shares(counts)
    return proportions


def label_changes(manifest: Manifest, other: Manifest) -> Iterator[str]:
    """Yield a line for each label of each split whose proportions differ."""
    proportions, other_proportions = label_proportions(manifest), label_proportions(other)
    for split in proportions:
        for label, before in proportions[split].items():
            after = other_proportions.get(split, {}).get(label)
            if after is None or before == after:
                continue
            yield f"label {label!r} in {split}: {_share_changes(before, after)}"


def _share_changes(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Return the largest changes in the proportions of a label."""
    changes = {
        value: abs(before.get(value, 0.0) - after.get(value, 0.0)) for value in {*before, *after}
    }
    values = sorted(changes, key=lambda value: (-changes[value], value))
    lines = [
        f"{value}: {before.get(value, 0.0):.2%} -> {after.get(value, 0.0):.2%}"
        for value in values[:_MAX_LISTED]
    ]
    if len(values) > _MAX_LISTED:
        lines[-1] += f" and {len(values) - _MAX_LISTED} more"
    return ", ".join(lines)


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    rows = sum(counts.values())
    if not rows:
        return {}
    shares = {value: count / rows for value, count in counts.items()}
    return shares
