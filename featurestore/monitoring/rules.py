"""The rules: what of a window is out of bounds.

Each rule is a function of profiles and of what is asked for, and gives findings with their bounds.
Whether a finding becomes an alarm (``confirm`` windows in a row) is said by ``confirmed``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import numpy as np

from featurestore.model.durations import format_duration
from featurestore.model.monitor import Watched
from featurestore.model.monitor_acceptance import Subject
from featurestore.model.monitor_report import Finding, FindingKind, Shares
from featurestore.monitoring import bounds
from featurestore.monitoring.comparison import Measured, Sides, measure, measure_mixture
from featurestore.monitoring.metric_rules import metrics
from featurestore.monitoring.missing import Missing, missing_of, together
from featurestore.monitoring.profile import ColumnProfile, Profile

_FEWEST_HISTORY = 3
# A value that held this many rows of such a window on average is missed when it is gone.
_MISSED = 10
# An empty window and times out of bounds need no second one.
_AT_ONCE: tuple[FindingKind, ...] = ("freshness", "schema")


@dataclass(frozen=True)
class Compared:
    """What a window is compared with.

    ``members`` are the profiles of the baseline, oldest first; a rolling one would have
    ``expected`` of them if the group were old enough. ``others`` are windows of its time, by
    ``groups`` of those that are alike where the baseline rolls. ``same`` are earlier windows of the
    same place in the week, ``history`` all windows before, without those before the first row.
    """

    members: Sequence[Profile] = ()
    others: Sequence[Profile] = ()
    groups: Sequence[int] = ()
    expected: int = 1
    same: Sequence[Profile] = ()
    history: Sequence[Profile] = ()


@dataclass(frozen=True)
class Anchor:
    """A moving baseline as it was in the time ``[start, end)``."""

    start: datetime
    end: datetime
    compared: Compared


class Comparison(Protocol):
    """Returns what each subject of one window is compared with."""

    def compared(self, subject: Subject | None = None) -> Compared:
        """Return the comparison of a subject; None: of one that was never out of bounds."""

    def anchor(self, subject: Subject) -> Anchor | None:
        """Return the anchor of the subject's moving baseline, None where there is none."""


@dataclass(frozen=True)
class SameForAll:
    """One comparison for every subject, without an anchor."""

    comparison: Compared

    def compared(self, subject: Subject | None = None) -> Compared:
        """Return the comparison."""
        return self.comparison

    def anchor(self, subject: Subject) -> Anchor | None:
        """Return None."""
        return None


@dataclass(frozen=True)
class Judged:
    """The findings of one window, the shares to draw, and the missing values by feature."""

    findings: tuple[Finding, ...]
    learning: bool
    shares: tuple[Shares, ...] = field(default=())
    missing: Mapping[str, Missing] = field(default_factory=dict)


def judge(watched: Watched, now: Profile, comparison: Comparison) -> Judged:
    """Return the findings of one window, each rule by itself."""
    findings: list[Finding] = []
    shares: list[Shares] = []
    missing: dict[str, Missing] = {}
    whole = comparison.compared()
    learning = not _enough(whole)
    if watched.drift and now.rows:
        names = _features(watched, now, whole)
        alpha = bounds.alpha_of(len(names), watched.confirm)
        for name in names:
            compared = comparison.compared(("feature", name))
            if not _enough(compared):
                learning = True
                continue
            drifted, drawn = distribution(watched, name, now, compared, alpha)
            findings += drifted
            shares += drawn
        missing = _missing(watched, now, comparison)
        findings += [each.finding for each in missing.values()]
        findings += _moved_from_anchor(watched, now, comparison)
    if watched.volume is not None:
        finding = volume(watched.volume, now, comparison.compared(("volume", "")))
        learning = learning or finding is None
        if finding is not None:
            findings.append(finding)
    if watched.schema and whole.members and whole.members[0].types:
        findings.append(schema(whole.members[0].types, now.types))
    findings += metrics(watched, now, lambda name: comparison.compared(("metric", name)).others)
    return Judged(tuple(findings), learning, tuple(shares), missing)


def confirmed(judged: Sequence[Judged], confirm: int, *, apart: bool = True) -> tuple[Finding, ...]:
    """Return the findings of the last of neighbouring windows, with what is confirmed as alarm.

    Args:
        judged: The windows in order; the last ``confirm`` of them count.
        confirm: How many in a row have to be out of bounds.
        apart: Whether no row is in two of the windows, so that they may be counted together.
    """
    before = []
    for each in judged[-confirm:-1]:
        before.append({finding.key for finding in each.findings if finding.out})
    found = []
    for finding in judged[-1].findings:
        at_once = finding.kind in _AT_ONCE or (finding.kind == "volume" and finding.value == 0)
        enough = len(before) == confirm - 1
        repeated = enough and all(finding.key in keys for keys in before)
        if finding.kind == "nulls" and enough and apart and not (finding.out and repeated):
            together_too = _counted_together(finding, judged[-confirm:])
            repeated = together_too is not None
            finding = together_too or finding
        found.append(replace(finding, alarm=finding.out and (at_once or repeated)))
    return tuple(found)


def _counted_together(finding: Finding, judged: Sequence[Judged]) -> Finding | None:
    """Return a finding on missing values as out of bounds where neighbours together are."""
    chain = []
    for each in judged:
        if finding.subject not in each.missing:
            return None
        chain.append(each.missing[finding.subject])
    if len(chain) > 1 and together(chain):
        text = f"{finding} by itself, and too far in {len(chain)} windows together"
        return replace(finding, out=True, text=text)
    return None


# -- distributions --------------------------------------------------------------------------------


def distribution(
    watched: Watched, name: str, now: Profile, compared: Compared, alpha: float
) -> tuple[list[Finding], list[Shares]]:
    """Return the findings on one feature: distances, values new and gone."""
    sides = _sides(name, now, compared)
    if sides.now.rows + sides.now.missing == 0:
        return [], []
    findings: list[Finding] = []
    shares: list[Shares] = []
    measured = measure(sides)
    if measured is not None:
        findings += _drift(watched.drift, sides, measured, alpha)
        if measured.shares is not None:
            shares.append(measured.shares)
    if "new_values" in watched.drift:
        findings += _new_values(watched.drift["new_values"], sides)
    if "gone_values" in watched.drift:
        findings += _gone_values(watched.drift["gone_values"], sides)
    return findings, shares


def _missing(watched: Watched, now: Profile, comparison: Comparison) -> dict[str, Missing]:
    """Return the missing values of each feature."""
    if "null_share" not in watched.drift:
        return {}
    names = _features(watched, now, comparison.compared())
    alphas = bounds.alpha_of(len(names), watched.confirm), bounds.alpha_of(len(names), 1)
    missing = {}
    for name in names:
        column = now.columns[name]
        compared = comparison.compared(("feature", name))
        if column.rows + column.missing and _enough(compared):
            missing[name] = missing_of(
                name,
                now,
                members=compared.members,
                others=compared.others,
                groups=compared.groups,
                asked=watched.drift["null_share"],
                alphas=alphas,
            )
    return missing


def _features(watched: Watched, now: Profile, compared: Compared) -> list[str]:
    """Return the features that both sides have, of those that are watched."""
    names = []
    for name, column in now.columns.items():
        if watched.features is not None and name not in watched.features:
            continue
        known = [each.columns[name] for each in compared.members if name in each.columns]
        if any(each.kind == column.kind for each in known):
            names.append(name)
    return names


def _sides(name: str, now: Profile, compared: Compared) -> Sides:
    kind = now.columns[name].kind

    def has(profile: Profile) -> bool:
        return name in profile.columns and profile.columns[name].kind == kind

    members = [each.columns[name] for each in compared.members if has(each)]
    others = [each.columns[name] for each in compared.others if has(each)]
    groups = []
    for each, group in zip(compared.others, compared.groups, strict=False):
        if has(each):
            groups.append(group)
    return Sides(members, others, now.columns[name], groups)


def _drift(
    asked: Mapping[str, float], sides: Sides, measured: Measured, alpha: float
) -> list[Finding]:
    before, after = sides.rows, float(sides.now.sampled)
    values = {"psi": measured.psi, "ks": measured.ks, "js": measured.js}
    by_chance = {
        "psi": bounds.chance_psi(measured.bins, before, after, alpha),
        "ks": bounds.chance_ks(before, after, alpha),
        "js": bounds.chance_js(measured.bins, before, after, alpha),
    }
    found = []
    for name, value in values.items():
        if name not in asked or value is None:
            continue
        high = max(asked[name], by_chance[name], bounds.usual(measured.usual[name]))
        high = min(high, bounds.GREATEST[name])
        found.append(
            Finding("drift", sides.now.name, name, round(value, 6), None, high, value > high)
        )
    return found


def _moved_from_anchor(watched: Watched, now: Profile, comparison: Comparison) -> list[Finding]:
    """Return how far the moving baseline of each feature is from its anchor.

    Drift that is too slow for a window to differ from the windows before it moves the baseline.
    The baseline is compared as a whole, so that a single window has little weight.
    """
    findings = []
    for name in _features(watched, now, comparison.compared()):
        anchor = comparison.anchor(("feature", name))
        if anchor is None or not _enough(anchor.compared):
            continue
        moving = comparison.compared(("feature", name))
        before = _sides(name, now, anchor.compared)
        after = _sides(name, now, moving)
        measured = measure_mixture(before, after.members)
        if measured is None:
            continue
        values = {"psi": measured.psi, "ks": measured.ks, "js": measured.js}
        for measure_name, value in values.items():
            if measure_name in watched.drift and value is not None:
                # The mean of several windows varies less than a window does.
                usual = bounds.usual(measured.usual[measure_name]) / len(after.members) ** 0.5
                high = max(watched.drift[measure_name], usual)
                findings.append(_anchor_finding(name, measure_name, value, high, anchor))
    return findings


def _anchor_finding(
    name: str, measure_name: str, value: float, high: float, anchor: Anchor
) -> Finding:
    out = value > high
    text = ""
    if out:
        text = (
            f"{name}: the moving baseline has drifted from its anchor of {anchor.start:%Y-%m-%d} "
            f"to {anchor.end:%Y-%m-%d}; {measure_name} {value:.3g}, limit {high:.3g}"
        )
    return Finding("anchor", name, measure_name, round(value, 6), None, high, out, text=text)


def _new_values(asked: float, sides: Sides) -> list[Finding]:
    """Return how many rows have values that the baseline never had, where it knows all it had."""
    known = _all_values(sides.members)
    if known is None or sides.now.kind not in ("text", "boolean"):
        return []
    rows = 0
    appeared: list[str] = []
    for value, count in sides.now.values:
        if value not in known:
            rows += count
            appeared.append(str(value))
    share = rows / max(sides.now.sampled, 1)
    high = max(asked, bounds.chance_unseen(list(known.values()), float(sides.now.sampled)))
    text = ""
    if share > high:
        text = f"{sides.now.name}: new values in {share:.1%} of rows: {', '.join(appeared[:5])}"
    name = sides.now.name
    return [
        Finding("values", name, "new_values", round(share, 6), None, high, share > high, text=text)
    ]


def _gone_values(asked: float, sides: Sides) -> list[Finding]:
    """Return the share of the most frequent value of the baseline that the window lacks."""
    known = _all_values(sides.members)
    if known is None or not sides.now.complete or sides.now.kind not in ("text", "boolean"):
        return []
    here = dict(sides.now.values)
    gone = {}
    for value, count in known.items():
        if value not in here:
            gone[value] = count / max(sides.rows, 1)
    share = max(gone.values(), default=0.0)
    high = max(asked, _MISSED / max(sides.now.sampled, 1))
    text = ""
    if share > high:
        names = sorted(gone, key=lambda value: -gone[value])[:5]
        text = f"{sides.now.name}: gone are {', '.join(map(str, names))}, before in {share:.1%} of rows"
    name = sides.now.name
    return [
        Finding("values", name, "gone_values", round(share, 6), None, high, share > high, text=text)
    ]


def _all_values(members: Sequence[ColumnProfile]) -> dict[object, int] | None:
    counts: dict[object, int] = {}
    for each in members:
        if not each.sampled:
            continue
        if not each.complete:
            return None
        for value, count in each.values:
            counts[value] = counts.get(value, 0) + count
    return counts or None


# -- volume, freshness, schema --------------------------------------------------------------------


def volume(asked: tuple[float, float], now: Profile, compared: Compared) -> Finding | None:
    """Return whether the window has as many rows as the same windows before: their median.

    None where there are too few of them; a window without rows is out of bounds all the same when
    no window before it was empty.
    """
    same = [each.rows for each in compared.same]
    if len(same) < _FEWEST_HISTORY:
        before = [each.rows for each in compared.history]
        if now.rows or not before or min(before) == 0:
            return None
        return Finding("volume", "", "rows", 0.0, 1.0, None, True, text="no rows")
    median = float(np.median(same))
    if median == 0:
        return Finding("volume", "", "rows", float(now.rows), None, None)
    low, high = _volume_bounds(asked, same, median)
    out = not low * median <= now.rows <= high * median
    text = ""
    if out:
        text = f"{now.rows:,} rows, usually {median:,.0f}"
    return Finding(
        "volume", "", "rows", float(now.rows), low * median, high * median, out, text=text
    )


def _volume_bounds(
    asked: tuple[float, float], same: Sequence[int], median: float
) -> tuple[float, float]:
    """Return the least and greatest ratio, widened by counting noise and by what is usual."""
    noise = 4 / math.sqrt(median)
    ratios = np.log(np.maximum(same, 0.5) / median)
    deviation = 2.5 * 1.4826 * float(np.median(np.abs(ratios)))
    width = max(noise, deviation)
    low = min(asked[0], math.exp(-width))
    if noise >= 1:  # so few rows that none of them is nothing strange
        low = 0.0
    return low, max(asked[1], math.exp(width))


def freshness(asked: timedelta, age: timedelta | None, *, of: str) -> Finding:
    """Return whether the newest event time, or the last commit, is too old.

    A time ahead of the clock counts as age zero. ``age`` None: there is none at all.
    """
    high = asked.total_seconds()
    if age is None:
        return Finding("freshness", of, "age", None, None, high, True, text=f"{of}: there is none")
    seconds = max(age.total_seconds(), 0.0)
    text = ""
    if seconds > high:
        old = format_duration(timedelta(seconds=round(seconds)))
        text = f"{of} is {old} old, allowed are {format_duration(asked)}"
    return Finding("freshness", of, "age", seconds, None, high, seconds > high, text=text)


def schema(before: Mapping[str, str], now: Mapping[str, str]) -> Finding:
    """Return whether columns came, went or changed their type."""
    told = []
    for name in now:
        if name not in before:
            told.append(f"{name} ({now[name]}) came")
    for name, kind in before.items():
        if name not in now:
            told.append(f"{name} ({kind}) went")
        elif now[name] != kind:
            told.append(f"{name} changed from {kind} to {now[name]}")
    text = ""
    if told:
        text = f"columns: {'; '.join(told)}"
    return Finding("schema", "", "columns", float(len(told)), None, 0.0, bool(told), text=text)


def _enough(compared: Compared) -> bool:
    """Tell whether the baseline says enough: a rolling one has to fill by half first."""
    with_rows = [each for each in compared.members if each.rows]
    return len(with_rows) >= min(max(_FEWEST_HISTORY, compared.expected / 2), compared.expected)


def newest_age(profiles: Sequence[Profile], at: datetime) -> timedelta | None:
    """Return the age of the newest event time of profiles at an instant; None without any."""
    times = [each.newest for each in profiles if each.newest is not None]
    if not times:
        return None
    return at - max(times)
