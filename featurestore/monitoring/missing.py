"""Missing values of a feature: one window by itself, and neighbouring windows counted together.

A share of missing values rests on few rows, so that a doubled share can hide in the noise of one
window. What two windows in a row say together is twice as many rows: half the noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np

from featurestore.model.monitor_report import Finding
from featurestore.monitoring import bounds
from featurestore.monitoring.profile import Profile

# Shares of missing values below are looked at from here on; a doubled share is, too.
_LEAST_SHARE = 0.005


@dataclass(frozen=True)
class Counted:
    """How many rows without a value there are, of how many; not whole where they are expected."""

    missing: float
    rows: float

    @property
    def share(self) -> float:
        """The share of rows without a value."""
        return self.missing / max(self.rows, 1.0)


@dataclass(frozen=True)
class Missing:
    """Missing values of one feature in a window, in its baseline, and in windows of its time.

    ``least`` is the smallest change that is looked at, ``alpha`` the chance of one test of one
    window, ``alone`` that of windows counted together. ``excess`` has, by how long before this
    window they were, how many more missing values other windows had than those like them.
    """

    feature: str
    now: Counted
    before: Counted
    least: float
    alpha: float
    alone: float
    excess: Mapping[timedelta, Counted] = field(default_factory=dict)

    @property
    def change(self) -> float:
        """How much the share differs from the baseline's."""
        return self.now.share - self.before.share

    @property
    def finding(self) -> Finding:
        """What this window says by itself."""
        usual = bounds.usual([abs(each.share) for each in self.excess.values()])
        low, high = _range(self.now, self.before, max(self.least, usual), self.alpha)
        share = self.now.share
        out = not low <= share <= high
        return Finding("nulls", self.feature, "null_share", round(share, 6), low, high, out)


def missing_of(
    feature: str,
    now: Profile,
    *,
    members: Sequence[Profile],
    others: Sequence[Profile],
    groups: Sequence[int],
    asked: float,
    alphas: tuple[float, float],
) -> Missing:
    """Return the missing values of a feature in a window and in those it is compared with.

    Args:
        feature: Its name.
        now: The window.
        members: The profiles that make the baseline.
        others: Windows of its time.
        groups: By which of the others are alike; empty: all are compared with the baseline.
        asked: The change that was asked for.
        alphas: The chance of one test of one window, and of windows counted together.
    """
    before = _sum([_counted(each, feature) for each in members if feature in each.columns])
    least = max(min(asked, before.share / 2), _LEAST_SHARE)
    excess = _excess(feature, now, others, groups, before.share)
    return Missing(feature, _counted(now, feature), before, least, *alphas, excess)


def together(chain: Sequence[Missing]) -> bool:
    """Tell whether neighbouring windows, counted together, have another share of missing values.

    All of them in one direction, each by half of what is looked at and by a quarter of the largest
    change (so that one window speaks for no other), and together by more than what is looked at,
    than chance, and than as many neighbours of the baseline's time did, the worst of them too.
    """
    directions = {np.sign(each.change) for each in chain}
    largest = max(abs(each.change) for each in chain)
    small = [each for each in chain if abs(each.change) < max(each.least / 2, largest / 4)]
    if len(directions) > 1 or small:
        return False
    now = _sum([each.now for each in chain])
    expected = sum(each.before.share * each.now.rows for each in chain) / max(now.rows, 1.0)
    # Baselines of neighbours share windows: they are not counted as more rows than one has.
    rows = max(each.before.rows for each in chain)
    apart = _apart_together(chain)
    least = max(each.least for each in chain)
    width = max(least, bounds.usual(apart), bounds.beyond_worst(apart))
    low, high = _range(now, Counted(expected * rows, rows), width, chain[-1].alone)
    return not low <= now.share <= high


def _range(now: Counted, before: Counted, width: float, alpha: float) -> tuple[float, float]:
    """Return between which shares a window stays: by a width, and by chance."""
    fewest, most = bounds.chance_count(before.missing, before.rows, now.rows, alpha)
    rows = max(now.rows, 1.0)
    low = min(before.share - width, fewest / rows)
    high = max(before.share + width, most / rows)
    return max(low, 0.0), min(high, 1.0)


def _apart_together(chain: Sequence[Missing]) -> list[float]:
    """Return how far as many neighbours were from what is usual, counted together."""
    found = []
    for distance in chain[-1].excess:
        if all(distance in each.excess for each in chain):
            found.append(abs(_sum([each.excess[distance] for each in chain]).share))
    return found


def _excess(
    feature: str,
    now: Profile,
    others: Sequence[Profile],
    groups: Sequence[int],
    before: float,
) -> dict[timedelta, Counted]:
    shares: dict[int, list[float]] = {}
    told = []
    for index, each in enumerate(others):
        if feature in each.columns and each.window is not None and now.window is not None:
            group = groups[index] if groups else 0
            counted = _counted(each, feature)
            shares.setdefault(group, []).append(counted.share)
            told.append((now.window.start - each.window.start, group, counted))
    found = {}
    for distance, group, counted in told:
        middle = before
        if groups:
            middle = float(np.median(shares[group]))
        found[distance] = Counted(counted.missing - middle * counted.rows, counted.rows)
    return found


def _counted(profile: Profile, feature: str) -> Counted:
    column = profile.columns[feature]
    return Counted(float(column.missing), float(column.rows + column.missing))


def _sum(parts: Sequence[Counted]) -> Counted:
    missing = rows = 0.0
    for each in parts:
        missing += each.missing
        rows += each.rows
    return Counted(missing, rows)
