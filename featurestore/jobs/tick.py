"""One tick of a scheduler, planned purely: which jobs, in which order, which of their windows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from featurestore.model.job import JobSpec
from featurestore.model.window import Window

_FIRST_WAIT = timedelta(seconds=30)
_LONGEST_WAIT = timedelta(hours=1)


def levels(specs: Iterable[JobSpec]) -> list[list[str]]:
    """Return jobs in groups: each reads only what jobs of earlier groups fill; jobs that read each other come last.

    >>> a = JobSpec(name="a", kind="sql", target="hours", schedule="", inputs={"t": "trips"}, code="")
    >>> b = JobSpec(name="b", kind="sql", target="days", schedule="", inputs={"h": "hours"}, code="")
    >>> levels([b, a])
    [['a'], ['b']]
    """
    left = {spec.name: spec for spec in specs}
    found: list[list[str]] = []
    while left:
        free = [name for name, spec in left.items() if not upstream(spec, left.values())]
        group = sorted(free or left)
        found.append(group)
        for name in group:
            del left[name]
    return found


def upstream(spec: JobSpec, others: Iterable[JobSpec]) -> list[str]:
    """Return the jobs whose targets a job reads."""
    read = {place.partition("@")[0] for place in spec.inputs.values()}
    return [other.name for other in others if other.name != spec.name and other.target in read]


def ready(
    window: Window,
    *,
    failures: int,
    failed_at: datetime | None,
    retries: int,
    settled_at: datetime,
    now: datetime,
) -> bool:
    """Tell whether a window is to be tried now.

    A failed one is tried again after 30 seconds, a minute, two, ... an hour; when its retries are used up, once
    whenever another window of the job comes due.

    Args:
        window: The window.
        failures: How often it failed since it was last computed.
        failed_at: When it failed last.
        retries: How often it is tried again.
        settled_at: When the job's last window came due.
        now: The present.
    """
    if (
        failures == 0 or failed_at is None or failed_at > now
    ):  # a clock that was set back must not hold it up
        return True
    if failures <= retries:
        return now >= failed_at + min(_FIRST_WAIT * 2 ** (failures - 1), _LONGEST_WAIT)
    return settled_at > failed_at


def before_gap(
    windows: Sequence[Window], open_upstream: Mapping[str, Collection[Window]]
) -> list[Window]:
    """Return the windows that end before any window that a job upstream has yet to compute begins."""
    ends = [
        min(window.start for window in waiting) for waiting in open_upstream.values() if waiting
    ]
    return [window for window in windows if all(window.end <= end for end in ends)]
