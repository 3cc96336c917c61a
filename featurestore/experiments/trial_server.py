"""The driver's side of trials: workers ask for the next one over TCP, in lines of JSON.

Whoever connects says a token first, which only workers that the driver started were told; what
follows is data.
"""

from __future__ import annotations

import hmac
import json
import secrets
import selectors
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from featurestore.model.json_object import JsonObject, MalformedJson

_MOST_BYTES = 1 << 24


@dataclass
class Connection:
    """One worker that is connected; ``worker`` is its key once it has said the token."""

    socket: socket.socket
    worker: int | None = None
    received: bytearray = field(default_factory=bytearray)

    def lines(self) -> list[bytes]:
        """Return the whole lines that have come, and keep the rest."""
        *whole, rest = bytes(self.received).split(b"\n")
        self.received = bytearray(rest)
        return whole


@dataclass(frozen=True)
class Message:
    """What a worker said."""

    connection: Connection
    worker: int
    data: JsonObject


class TrialServer:
    """Listens for workers; one thread calls it."""

    def __init__(self, host: str) -> None:
        self.token = secrets.token_hex(16)
        self._listening = socket.create_server((host, 0))
        self._listening.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self.address = host, int(self._listening.getsockname()[1])

    def poll(self, seconds: float) -> list[Message]:
        """Return what workers say within some seconds, as soon as any does."""
        found: list[Message] = []
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listening:
                accepted, _ = self._listening.accept()
                self._selector.register(accepted, selectors.EVENT_READ, Connection(accepted))
            else:
                found += self._read(key.data)
        return found

    def answer(self, message: Message, data: Mapping[str, Any]) -> None:
        """Answer a message; a worker that is gone hears nothing."""
        try:
            message.connection.socket.sendall(json.dumps(data).encode() + b"\n")
        except OSError:
            self._drop(message.connection)

    def close(self) -> None:
        """Close all connections."""
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _read(self, connection: Connection) -> list[Message]:
        try:
            data = connection.socket.recv(1 << 16)
        except OSError:
            data = b""
        connection.received += data
        found = []
        try:
            for line in connection.lines():
                told = JsonObject.of(json.loads(line), "message")
                if connection.worker is None:
                    self._check(told)
                    connection.worker = told.number("worker")
                found.append(Message(connection, connection.worker, told))
        except ValueError:  # MalformedJson is one: whoever this is, it is no worker of ours
            data = b""
        if not data or len(connection.received) > _MOST_BYTES:
            self._drop(connection)
        return found

    def _check(self, told: JsonObject) -> None:
        if not hmac.compare_digest(told.text("token").encode(), self.token.encode()):
            raise MalformedJson("the token is another one")

    def _drop(self, connection: Connection) -> None:
        try:
            self._selector.unregister(connection.socket)
        except (KeyError, ValueError):
            return  # dropped already
        connection.socket.close()
