"""Turns: bounded for all and for each person, given to persons in turn, and ended by cancellation."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.errors import TooManyRequests
from featurestore.server.turns import Turns
from featurestore_connectors.remote import HttpClient
from tests.http_server import serve

RUNNING, PER_PERSON, WAITING = 4, 2, 3
STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "end", "cancel"]), st.sampled_from("abc")), max_size=60
)


@settings(max_examples=60, deadline=None, database=None)
@given(steps=STEPS)
def test_turns_are_bounded_and_none_is_idle(steps: list[tuple[str, str]]) -> None:
    asyncio.run(check_steps(steps))


async def check_steps(steps: list[tuple[str, str]]) -> None:
    turns = Turns(running=RUNNING, per_person=PER_PERSON, waiting=WAITING, seconds=60)
    tasks: dict[str, list[asyncio.Task[None]]] = {person: [] for person in "abc"}
    ended: Counter[asyncio.Task[None]] = Counter()

    def running_of(person: str) -> list[asyncio.Task[None]]:
        finished = [task for task in tasks[person] if task.done() and not task.cancelled()]
        return [task for task in finished if task.exception() is None and not ended[task]]

    def waiting_of(person: str) -> list[asyncio.Task[None]]:
        return [task for task in tasks[person] if not task.done()]

    for action, person in steps:
        if action == "take":
            has_room = len(waiting_of(person)) < WAITING
            is_free = not waiting_of(person) and len(running_of(person)) < PER_PERSON
            task = asyncio.create_task(turns.take(person))
            tasks[person].append(task)
            await asyncio.sleep(0)
            if not has_room and not is_free:
                with pytest.raises(TooManyRequests, match=f"limit is {PER_PERSON} running"):
                    await task
        elif action == "end" and running_of(person):
            ended[running_of(person)[0]] += 1
            turns.end(person)
        elif action == "cancel" and waiting_of(person):
            waiting_of(person)[0].cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        total = sum(len(running_of(name)) for name in tasks)
        assert total <= RUNNING
        for name in tasks:
            assert len(running_of(name)) <= PER_PERSON
            # No one waits while there is a turn.
            if waiting_of(name):
                assert total == RUNNING or len(running_of(name)) == PER_PERSON
    while any(running_of(name) for name in tasks):
        for name in tasks:
            for task in running_of(name):
                ended[task] += 1
                turns.end(name)
        for _ in range(5):
            await asyncio.sleep(0)
    assert all(task.done() for person_tasks in tasks.values() for task in person_tasks)


def test_persons_with_few_requests_get_the_next_turns() -> None:
    async def check() -> list[str]:
        turns = Turns(running=1, per_person=1, waiting=50, seconds=60)
        order: list[str] = []

        async def work(person: str) -> None:
            await turns.take(person)
            order.append(person)
            await asyncio.sleep(0)
            turns.end(person)

        await asyncio.gather(*(work(person) for person in "a" * 40 + "b" + "c" * 3))
        return order

    order = asyncio.run(check())
    # The first request of a begins before the others arrive.
    assert order[:8] == ["a", "a", "b", "c", "a", "c", "a", "c"]
    assert Counter(order) == {"a": 40, "b": 1, "c": 3}


def test_a_request_waits_for_a_limited_time() -> None:
    async def check() -> None:
        turns = Turns(running=1, per_person=1, waiting=5, seconds=0.01)
        await turns.take("a")
        with pytest.raises(TooManyRequests) as refusal:
            await turns.take("b")
        assert refusal.value.seconds == 1
        turns.end("a")
        await turns.take("b")

    asyncio.run(check())


class _BusyAtFirst(BaseHTTPRequestHandler):
    """Refuses the first request, and responds to the next one after longer than the pause."""

    requests = itertools.count()

    def do_GET(self) -> None:
        is_refused = next(self.requests) == 0
        problem = {"title": "TooManyRequests", "detail": "3 running and 12 waiting"}
        content = json.dumps(problem if is_refused else {"rows": 5}).encode()
        if not is_refused:
            time.sleep(2)
        self.send_response(429 if is_refused else 200)
        self.send_header("Retry-After", "1")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


def test_repeated_request_has_the_time_limit_of_the_first() -> None:
    with serve(_BusyAtFirst) as port:
        assert HttpClient(f"http://127.0.0.1:{port}").get("/store") == {"rows": 5}
