"""Driver side of trials: workers request them in JSON messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from featurestore.model.json_object import JsonObject
from featurestore.plugins.worker_port import Peer, Received, WorkerPort


@dataclass(frozen=True)
class Message:
    """A message of a worker."""

    peer: Peer
    worker: int
    data: JsonObject


class TrialServer:
    """Listens for workers; one thread calls it."""

    def __init__(self, host: str) -> None:
        self._port = WorkerPort(host)
        self.address, self.key = self._port.address, self._port.key
        self._workers: dict[Peer, int] = {}

    def poll(self, seconds: float) -> list[Message]:
        """Return the messages of workers, waiting at most ``seconds`` for the first."""
        messages = []
        for received in self._port.poll(seconds):
            message = self._parse(received)
            if message is not None:
                messages.append(message)
        return messages

    def reply(self, message: Message, data: Mapping[str, Any]) -> None:
        """Reply to a message; a disconnected worker is ignored."""
        self._port.send(message.peer, json.dumps(data).encode())

    def close(self) -> None:
        """Close all connections."""
        self._port.close()

    def _parse(self, received: Received) -> Message | None:
        """Return the parsed message; disconnect a worker that sends anything else."""
        if received.data is None:
            self._workers.pop(received.peer, None)
            return None
        try:
            data = JsonObject.from_value(json.loads(received.data), "message")
            message = Message(received.peer, data.number("worker"), data)
            if self._workers.setdefault(message.peer, message.worker) != message.worker:
                raise data.wrong("worker", "that of the connection")
            if data.text("kind") == "report":
                data.number("step")
                data.object("metrics").each(JsonObject.real)
        except (ValueError, RecursionError):  # MalformedJson is a ValueError
            self._port.drop(received.peer)
            return None
        return message
