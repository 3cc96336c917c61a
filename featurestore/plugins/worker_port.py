"""A server socket for messages between workers and the process that started them.

It uses ``multiprocessing.connection``: before messages are read, both sides prove that they know
the key, which workers receive with their task. Messages are bytes and are not unpickled. They are
neither encrypted nor signed, so an attacker who can modify network packets can modify messages.
"""

from __future__ import annotations

import os
import queue
import random
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge

from featurestore.errors import EngineError, ThreadsUnavailable
from featurestore.model.threads import start_thread

# A longer message closes the connection, so that a peer cannot allocate any amount of memory.
_MAX_MESSAGE_BYTES = 1 << 24
# The maximum number of unauthenticated connections. If it is exceeded, the oldest is closed, so
# that unknown clients cannot exhaust file descriptors or lock out workers.
_MOST_PENDING = 32
_PROOF_SECONDS = 10.0
_ACCEPT_SECONDS = 0.2
_CONNECT_SECONDS = 30.0


@dataclass(frozen=True, eq=False)
class Peer:
    """An authenticated worker."""

    connection: Connection


@dataclass(frozen=True)
class Received:
    """A message from a peer, with ``data`` None if the connection was closed."""

    peer: Peer
    data: bytes | None


class WorkerPort:
    """A server socket for workers.

    It is used by one thread; background threads accept connections and receive messages.

    Args:
        host: The address to listen on; a loopback address unless workers run on other machines.

    Attributes:
        address: Host and port.
        key: The authentication key as a string.
    """

    def __init__(self, host: str) -> None:
        self.key = secrets.token_hex(32)
        # All workers of a large run connect at the same time.
        self._listening = socket.create_server((host, 0), backlog=512)
        # The timeout lets the thread check for slow connections and for the end.
        self._listening.settimeout(_ACCEPT_SECONDS)
        self.address = host, int(self._listening.getsockname()[1])
        self._received: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending: OrderedDict[Connection, float] = OrderedDict()
        self._peers: set[Peer] = set()
        self._is_closed = False
        try:
            self._accepting = start_thread(
                self._accept_connections, name="featurestore-worker-port"
            )
        except ThreadsUnavailable:
            self._listening.close()
            raise

    def poll(self, seconds: float) -> list[Received]:
        """Wait up to ``seconds`` for a message, and return all messages received so far."""
        messages: list[Received] = []
        with suppress(queue.Empty):
            messages.append(self._received.get(timeout=seconds))
            while True:
                messages.append(self._received.get_nowait())
        return messages

    @property
    def has_peers(self) -> bool:
        """Whether a worker is connected; if not, the next ``poll`` returns all remaining messages."""
        with self._lock:
            return bool(self._peers)

    def send(self, peer: Peer, data: bytes) -> None:
        """Send a message, or drop the peer if the connection is broken."""
        try:
            peer.connection.send_bytes(data)
        except (OSError, ValueError):
            self.drop(peer)

    def drop(self, peer: Peer) -> None:
        """Close the connection to a peer."""
        self._shut_down([peer.connection])

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._is_closed = True
        self._listening.close()
        with self._lock:
            connections = [*self._pending, *[peer.connection for peer in self._peers]]
        self._shut_down(connections)
        self._accepting.join()

    def _accept_connections(self) -> None:
        """Accept connections until the port is closed; a thread serves each connection."""
        while not self._is_closed:
            self._close_unauthenticated()
            try:
                accepted, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError:  # closed, or out of file descriptors
                time.sleep(_ACCEPT_SECONDS)
                continue
            connection = Connection(accepted.detach())
            with self._lock:
                self._pending[connection] = time.monotonic() + _PROOF_SECONDS
                oldest = next(iter(self._pending)) if len(self._pending) > _MOST_PENDING else None
            if oldest is not None:
                self._shut_down([oldest])
            try:
                start_thread(self._serve_connection, connection, name="featurestore-worker")
            except ThreadsUnavailable:
                with self._lock:
                    self._pending.pop(connection, None)
                # The worker reports that the driver does not respond.
                connection.close()

    def _close_unauthenticated(self) -> None:
        """Close connections that were not authenticated in time."""
        now = time.monotonic()
        with self._lock:
            slow = [worker for worker, end in self._pending.items() if end < now]
        self._shut_down(slow)

    def _shut_down(self, connections: Iterable[Connection]) -> None:
        """Shut down connections, and wake the threads that wait for messages."""
        with self._lock:
            for connection in connections:
                self._pending.pop(connection, None)
                if connection.closed:
                    continue
                # Closing the descriptor would not wake the thread, and the descriptor may be
                # reused.
                duplicate = socket.socket(fileno=os.dup(connection.fileno()))
                with duplicate, suppress(OSError):
                    duplicate.shutdown(socket.SHUT_RDWR)

    def _serve_connection(self, connection: Connection) -> None:
        """Authenticate a connection and receive its messages."""
        peer = None
        try:
            key = self.key.encode()
            # Both sides prove that they know the key, before any message is read.
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            with self._lock:
                # The connection may have been closed as too slow, or because there were too many.
                if self._pending.pop(connection, None) is None:
                    return
                peer = Peer(connection)
                self._peers.add(peer)
            while not self._is_closed:
                self._received.put(Received(peer, connection.recv_bytes(_MAX_MESSAGE_BYTES)))
        except (OSError, EOFError, AuthenticationError, ValueError, AssertionError):
            pass  # the connection was closed, or is not from a worker
        finally:
            if peer is not None:
                self._received.put(Received(peer, None))
            with self._lock:
                self._pending.pop(connection, None)
                if peer is not None:
                    self._peers.discard(peer)
                connection.close()


def connect_to_driver(address: tuple[str, int], key: str) -> Connection:
    """Connect a worker to the process that started it.

    Raises:
        EngineError: The driver does not respond, or it rejects the key.
    """
    end = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            connection = Client(address, authkey=key.encode())
        except (OSError, EOFError, AuthenticationError) as error:
            # Retry, because this connection may be evicted by others before it is authenticated.
            if time.monotonic() > end:
                raise EngineError(
                    f"The driver at {address[0]}:{address[1]} does not respond: "
                    f"{type(error).__name__}: {error}."
                ) from error
            # A random pause prevents all workers from retrying at the same time.
            time.sleep(random.uniform(0.05, 0.5))
            continue
        assert isinstance(connection, Connection)
        return connection
