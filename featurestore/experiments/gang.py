"""Supervision of the processes of a run: watch, stop together, evaluate the outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from featurestore.experiments.status import WorkerStatus
from featurestore.experiments.teams import CHIEF, Member, by_severity, is_over
from featurestore.plugins.launcher import RunningGang
from featurestore.storage.supervised import exit_text

_POLL_SECONDS = 0.05
# A worker that lost a peer may fail before the exit of the peer is visible.
_GATHER_SECONDS = 1.0
_SAME_CALLS = (
    "All workers must make the same TensorFlow calls: context.save(model) instead of "
    "'if context.worker == 0: model.save(...)'."
)


@dataclass(frozen=True)
class AttemptEnd:
    """The end of one start of all processes.

    ``can_retry`` is True if a process died, so that another start may succeed.
    """

    state: str
    exits: tuple[str, ...]
    statuses: tuple[WorkerStatus | None, ...]
    reason: str | None = None
    trace: str | None = None
    can_retry: bool = False


def watch(
    running: RunningGang,
    read: Callable[[int], WorkerStatus | None],
    *,
    team: Sequence[Member],
    each_poll: Callable[[], None],
) -> AttemptEnd:
    """Wait until a run ends or cannot continue, and stop all of its processes.

    Args:
        running: The processes.
        read: Returns the status of a process by its number.
        team: The members of the run, one for each process.
        each_poll: Called at each poll.
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
    return evaluate_attempt(exits, statuses, team)


def _gather(running: RunningGang) -> list[int | None]:
    """Return the exits once all have ended, or after a short wait."""
    end = time.monotonic() + _GATHER_SECONDS
    while None in (exits := running.poll()) and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    return exits


def evaluate_attempt(
    exits: Sequence[int | None], statuses: Sequence[WorkerStatus | None], team: Sequence[Member]
) -> AttemptEnd:
    """Return the end of an attempt from the exits and status files of its processes.

    >>> from featurestore.experiments.teams import members
    >>> done, team = WorkerStatus("finished", 1, 100, "here"), members("multiworker", 2, 0)
    >>> evaluate_attempt([0, -9], [done, None], team).reason
    'worker 1 was lost: killed by SIGKILL'
    >>> evaluate_attempt([0, 0], [done, done], team).state
    'finished'
    """
    exit_texts = tuple("stopped" if each is None else exit_text(each) for each in exits)
    final_statuses = tuple(statuses)
    first = final_statuses[0]
    if team[0].role == CHIEF and exits[0] == 0 and first is not None:
        return AttemptEnd(
            first.state, exit_texts, final_statuses
        )  # the chief finished without the workers that it lost
    for member, status in zip(team, final_statuses, strict=True):
        if status is not None and status.state == "failed" and not status.lost_a_peer:
            reason = f"{member}: {status.error}: {status.message}"
            if len(team) > 1 and "Collective ops is aborted" in str(status.message):
                reason += f"\n{_SAME_CALLS}"
            return AttemptEnd("failed", exit_texts, final_statuses, reason, status.trace)
    for number in by_severity(team):
        status = final_statuses[number]
        ended_well = status is not None and status.state in ("finished", "stopped")
        lost = exits[number] is not None and (exits[number] != 0 or not ended_well)
        if lost and not (status is not None and status.lost_a_peer):
            reason = f"{team[number]} was lost: {exit_texts[number]}"
            return AttemptEnd("failed", exit_texts, final_statuses, reason, can_retry=True)
    for member, status in zip(team, final_statuses, strict=True):
        if status is not None and status.lost_a_peer:
            other_statuses = [each for each in final_statuses if each is not status]
            if all(
                each is not None and each.state in ("finished", "stopped")
                for each in other_statuses
            ):
                # The others finished, so another start would end in the same way.
                reason = f"{member} waited for workers that had finished: {status.error}. "
                reason += _SAME_CALLS
                return AttemptEnd("failed", exit_texts, final_statuses, reason, status.trace)
            reason = f"{member} lost another one: {status.error}: {status.message}"
            return AttemptEnd("failed", exit_texts, final_statuses, reason, can_retry=True)
    return AttemptEnd("finished" if first is None else first.state, exit_texts, final_statuses)
