"""Workers that run together: started, watched, stopped together when one is lost, started again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from featurestore.experiments.status import WorkerStatus
from featurestore.plugins.launcher import RunningGang
from featurestore.storage.supervised import exit_text

_POLL_SECONDS = 0.05
# A worker that lost another one may fail before that one's end is seen.
_GATHER_SECONDS = 1.0


@dataclass(frozen=True)
class AttemptEnd:
    """How one start of all workers ended.

    ``again`` tells whether another start may do better: a worker died, instead of failing.
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
    each_poll: Callable[[], None],
) -> AttemptEnd:
    """Wait until all workers have ended, or one is lost; nothing runs any more at the return.

    Args:
        running: The workers.
        read: Gives the status of a worker.
        each_poll: Called while they run.
    """
    try:
        exits = running.poll()
        while None in exits and not any(exits):
            each_poll()
            time.sleep(_POLL_SECONDS)
            exits = running.poll()
        if any(exits):
            exits = _gather(running)
    finally:
        running.stop()
    statuses = [read(worker) for worker in range(len(exits))]
    return judge(exits, statuses)


def _gather(running: RunningGang) -> list[int | None]:
    """Return the exits when all have ended, or a little later."""
    end = time.monotonic() + _GATHER_SECONDS
    while None in (exits := running.poll()) and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    return exits


def judge(exits: Sequence[int | None], statuses: Sequence[WorkerStatus | None]) -> AttemptEnd:
    """Return how an attempt ended, from the exits of its workers and what they wrote.

    >>> done = WorkerStatus("finished", 1, 100, "here")
    >>> judge([0, -9], [done, None]).reason, judge([0, 0], [done, done]).state
    ('worker 1 was lost: killed by SIGKILL', 'finished')
    """
    told = tuple("stopped" if each is None else exit_text(each) for each in exits)
    found = tuple(statuses)
    for worker, status in enumerate(found):
        if status is not None and status.state == "failed" and not status.lost_a_peer:
            reason = f"worker {worker}: {status.error}: {status.message}"
            return AttemptEnd("failed", told, found, reason, status.trace)
    for worker, status in enumerate(found):
        ended_well = status is not None and status.state in ("finished", "stopped")
        lost = exits[worker] is not None and (exits[worker] != 0 or not ended_well)
        if lost and not (status is not None and status.lost_a_peer):
            reason = f"worker {worker} was lost: {told[worker]}"
            return AttemptEnd("failed", told, found, reason, again=True)
    for worker, status in enumerate(found):
        if status is not None and status.lost_a_peer:
            reason = f"worker {worker} lost another one: {status.error}: {status.message}"
            return AttemptEnd("failed", told, found, reason, again=True)
    first = found[0]
    return AttemptEnd("finished" if first is None else first.state, told, found)
