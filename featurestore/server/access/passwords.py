"""A few threads for passwords, which pages do not use, shared fairly between addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from featurestore.model.threads import independent_tasks
from featurestore.server.access.sign_in import network_of
from featurestore.server.access.visitors import CONCURRENT_HASHES
from featurestore.server.turns import Turns

T = TypeVar("T")
# The attempts of one network that wait, and the seconds that they wait.
_WAITING, _SECONDS = 16, 10.0


class PasswordThreads:
    """Runs functions that hash passwords. One attempt of each network runs at a time."""

    def __init__(self) -> None:
        self._turns = Turns(
            running=CONCURRENT_HASHES, per_person=1, waiting=_WAITING, seconds=_SECONDS
        )
        self._threads: ThreadPoolExecutor | None = None

    async def run(self, address: str, function: Callable[[], T]) -> T:
        """Return the result of a function for a client.

        Raises:
            TooManyRequests: Too many attempts from this network wait.
        """
        network = network_of(address)
        await self._turns.take(network)
        try:
            if self._threads is None:
                self._threads = independent_tasks(CONCURRENT_HASHES, "featurestore-passwords")
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        finally:
            self._turns.end(network)
