"""Members of a run: equal workers, or a chief with workers and parameter servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PARAMETER_SERVER = "parameter_server"
CHIEF, WORKER, SERVER = "chief", "worker", "ps"


@dataclass(frozen=True)
class Member:
    """A process of a run: its role in the TensorFlow cluster and its index in this role."""

    role: str
    index: int

    def __str__(self) -> str:
        if self.role == CHIEF:
            return "the chief"
        return f"{'server' if self.role == SERVER else 'worker'} {self.index}"


def members(strategy: str, workers: int, servers: int) -> tuple[Member, ...]:
    """Return the processes of a run in order.

    >>> [str(each) for each in members("parameter_server", 2, 1)]
    ['the chief', 'worker 0', 'worker 1', 'server 0']
    """
    team = [Member(WORKER, index) for index in range(workers)]
    if strategy == PARAMETER_SERVER:
        team.insert(0, Member(CHIEF, 0))
        team += [Member(SERVER, index) for index in range(servers)]
    return tuple(team)


def by_severity(team: Sequence[Member]) -> list[int]:
    """Return the indexes of members, the most severe loss first.

    >>> by_severity(members("parameter_server", 2, 1))
    [0, 3, 1, 2]
    """
    order = (CHIEF, SERVER, WORKER)
    return sorted(range(len(team)), key=lambda index: order.index(team[index].role))


def is_over(exits: Sequence[int | None], team: Sequence[Member]) -> bool:
    """Return True if a run has ended or cannot continue, by the exits of its members.

    Equal workers need one another. A chief can lose some of its workers, but not all of them, and
    not a server.

    >>> is_over([None, -9], members("multiworker", 2, 0))
    True
    >>> is_over([None, -9, None, None], members("parameter_server", 2, 1))
    False
    """
    if team[0].role != CHIEF:
        return None not in exits or any(exits)
    if exits[0] is not None:
        return True
    working = 0
    for member, status in zip(team, exits, strict=True):
        if member.role == SERVER and status is not None:
            return True
        if member.role == WORKER and status is None:
            working += 1
    return working == 0
