"""Processes that run together: watched, stopped together when a run cannot go on, judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from featurestore.experiments.status import WorkerStatus
from featurestore.experiments.teams import CHIEF, Member, by_weight, is_over
from featurestore.plugins.launcher import RunningGang
from featurestore.storage.supervised import exit_text

_POLL_SECONDS = 0.05
# A worker that lost another one may fail before that one's end is seen.
_GATHER_SECONDS = 1.0
_SAME_CALLS = (
    "All workers make the same calls of TensorFlow: context.save(model) instead of "
    "'if context.worker == 0: model.save(...)'."
)


@dataclass(frozen=True)
class AttemptEnd:
    """How one start of all processes ended.

    ``again`` tells whether another start may do better: one died, instead of failing.
    """

    state: str
    exits: tuple[str, ...]
    statuses: tuple[WorkerStatus | None, ...]
    reason: str | None = None
    trace: str | None = None
    again: bool = False


def watch(
    running: RunningGang,
    read: Callable[[int], WorkerStatus | None],
    *,
    team: Sequence[Member],
    each_poll: Callable[[], None],
) -> AttemptEnd:
    """Wait until a run is over or lost; nothing of it runs any more at the return.

    Args:
        running: The processes.
        read: Gives the status of each.
        team: Who they are.
        each_poll: Called while they run.
    """
    try:
        exits = running.poll()
        while not is_over(exits, team):
            each_poll()
            time.sleep(_POLL_SECONDS)
            exits = running.poll()
        chief_is_done = team[0].role == CHIEF and exits[0] == 0
        if any(exits) and not chief_is_done:
            exits = _gather(running)
    finally:
        running.stop()
    statuses = [read(worker) for worker in range(len(exits))]
    return judge(exits, statuses, team)


def _gather(running: RunningGang) -> list[int | None]:
    """Return the exits when all have ended, or a little later."""
    end = time.monotonic() + _GATHER_SECONDS
    while None in (exits := running.poll()) and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    return exits


def judge(
    exits: Sequence[int | None], statuses: Sequence[WorkerStatus | None], team: Sequence[Member]
) -> AttemptEnd:
    """Return how an attempt ended, from the exits of its processes and what they wrote.

    >>> from featurestore.experiments.teams import members
    >>> done, two = WorkerStatus("finished", 1, 100, "here"), members("multiworker", 2, 0)
    >>> judge([0, -9], [done, None], two).reason, judge([0, 0], [done, done], two).state
    ('worker 1 was lost: killed by SIGKILL', 'finished')
    """
    told = tuple("stopped" if each is None else exit_text(each) for each in exits)
    found = tuple(statuses)
    first = found[0]
    if team[0].role == CHIEF and exits[0] == 0 and first is not None:
        return AttemptEnd(first.state, told, found)  # workers that it lost before it did without
    for member, status in zip(team, found, strict=True):
        if status is not None and status.state == "failed" and not status.lost_a_peer:
            reason = f"{member}: {status.error}: {status.message}"
            if len(team) > 1 and "Collective ops is aborted" in str(status.message):
                reason += f"\n{_SAME_CALLS}"
            return AttemptEnd("failed", told, found, reason, status.trace)
    for number in by_weight(team):
        status = found[number]
        ended_well = status is not None and status.state in ("finished", "stopped")
        lost = exits[number] is not None and (exits[number] != 0 or not ended_well)
        if lost and not (status is not None and status.lost_a_peer):
            reason = f"{team[number]} was lost: {told[number]}"
            return AttemptEnd("failed", told, found, reason, again=True)
    for member, status in zip(team, found, strict=True):
        if status is not None and status.lost_a_peer:
            others = [each for each in found if each is not status]
            if all(each is not None and each.state in ("finished", "stopped") for each in others):
                # They ended well, so another start would end in the same way.
                reason = f"{member} waited for workers that had finished: {status.error}. "
                reason += _SAME_CALLS
                return AttemptEnd("failed", told, found, reason, status.trace)
            reason = f"{member} lost another one: {status.error}: {status.message}"
            return AttemptEnd("failed", told, found, reason, again=True)
    return AttemptEnd("finished" if first is None else first.state, told, found)
