"""Turns of requests: a bounded number runs, and people take turns."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque

from featurestore.errors import TooManyRequests


class Turns:
    """A fair queue of requests; its methods are called in one event loop.

    A person is a user, or the network of a client without sign-in.

    Args:
        running: The number of requests that run at the same time.
        per_person: The number of requests of one person that run at the same time.
        waiting: The number of requests of one person that may wait.
        seconds: The time that a request may wait.
    """

    def __init__(self, *, running: int, per_person: int, waiting: int, seconds: float) -> None:
        self._limit = running
        self._per_person = per_person
        self._waiting = waiting
        self._seconds = seconds
        self._running: Counter[str] = Counter()
        # People in the order in which they get the next turn.
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, person: str) -> None:
        """Wait for a turn, which ends with ``end``.

        Raises:
            TooManyRequests: Too many requests of the person wait, or this one waited too long.
        """
        if person not in self._queues and self._has_turn(person):
            self._running[person] += 1
            return
        queue = self._queues.setdefault(person, deque())
        if len(queue) >= self._waiting:
            raise self._refusal(person)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await asyncio.wait_for(asyncio.shield(turn), self._seconds)
        except TimeoutError:
            self._leave(person, turn)
            raise self._refusal(person) from None
        except asyncio.CancelledError:
            self._leave(person, turn)
            raise

    def end(self, person: str) -> None:
        """End a turn of a person, and give it to the next one."""
        self._running[person] -= 1
        if not self._running[person]:
            del self._running[person]
        for waiting_person in list(self._queues):
            if self._running.total() >= self._limit:
                return
            if self._has_turn(waiting_person):
                self._give(waiting_person)

    def _has_turn(self, person: str) -> bool:
        is_free = self._running.total() < self._limit
        return is_free and self._running[person] < self._per_person

    def _give(self, person: str) -> None:
        """Give a turn to the first waiting request of a person, who is then the last one."""
        queue = self._queues[person]
        self._running[person] += 1
        queue.popleft().set_result(None)
        self._queues.move_to_end(person)
        if not queue:
            del self._queues[person]

    def _leave(self, person: str, turn: asyncio.Future[None]) -> None:
        """Stop waiting for a turn, or end it if it was given in the meantime."""
        if turn.done():
            self.end(person)
            return
        self._queues[person].remove(turn)
        if not self._queues[person]:
            del self._queues[person]

    def _refusal(self, person: str) -> TooManyRequests:
        waiting = len(self._queues.get(person, ()))
        seconds = max(1, min(math.ceil(self._seconds), 1 + waiting // self._per_person))
        return TooManyRequests(
            f"{self._running[person]} requests of {person!r} are running and {waiting} are waiting; "
            f"the limit is {self._per_person} running and {self._waiting} waiting requests.",
            hint=f"repeat the request after {seconds} seconds",
            seconds=seconds,
        )
