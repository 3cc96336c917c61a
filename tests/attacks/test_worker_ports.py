"""Unauthenticated connections to study and launcher ports are not parsed and stop nothing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from featurestore.errors import EngineError
from featurestore.experiments import trials
from featurestore.experiments.trials import Message, TrialServer
from featurestore.plugins import worker_port
from featurestore.plugins.worker_port import WorkerPort, connect_to_driver

pytestmark = pytest.mark.services

STRANGERS = {
    "brackets": b"[" * 100_000 + b"\n",
    "the old protocol": b'{"token": "x", "worker": 0, "kind": "next"}\n',
    "a huge length": b"\x7f\xff\xff\xff" + b"x" * 100,
    "a negative length": b"\xff\xff\xff\xff" + b"\x7f" * 8,
    "half a length": b"\x00\x00",
    "no proof": b"\x00\x00\x00\x10" + b"0" * 16,
    "a pickle": b"\x00\x00\x00\x21" + b"cos\nsystem\n(S'touch /tmp/x'\ntR..",
    "nothing": b"",
}


@pytest.fixture
def server() -> Iterator[TrialServer]:
    server = TrialServer("127.0.0.1")
    yield server
    server.close()


def messages_of(server: TrialServer, count: int) -> list[Message]:
    """Return a number of messages, or those received within five seconds."""
    messages: list[Message] = []
    end = time.monotonic() + 5
    while len(messages) < count and time.monotonic() < end:
        messages += server.poll(0.1)
    return messages


def ask(connection: Connection, **message: Any) -> None:
    connection.send_bytes(json.dumps(message).encode())


def check_a_worker_is_served(server: TrialServer) -> None:
    with connect_to_driver(server.address, server.key) as worker:
        ask(worker, kind="next", worker=3)
        (message,) = messages_of(server, 1)
        assert (message.worker, message.data.text("kind")) == (3, "next")
        server.reply(message, {"done": True})
        assert json.loads(worker.recv_bytes()) == {"done": True}


def check_disconnected(server: TrialServer, worker: Connection) -> None:
    """Check that a worker is disconnected and that its bytes are not parsed as a message."""
    end = time.monotonic() + 5
    while not worker.poll(0.01):
        assert server.poll(0.05) == []
        assert time.monotonic() < end
    with pytest.raises((EOFError, OSError)):
        worker.recv_bytes()


@pytest.mark.parametrize("stranger", STRANGERS)
def test_unauthenticated_bytes_are_not_parsed(
    server: TrialServer, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials.json, "loads", refuse_strangers(json.loads))
    with socket.create_connection(server.address) as connection:
        connection.sendall(STRANGERS[stranger])
        assert server.poll(0.2) == []
        check_a_worker_is_served(server)


def refuse_strangers(loads: Callable[..., Any]) -> Callable[..., Any]:
    def checked(data: Any) -> Any:
        parsed = loads(data)
        assert parsed in ({"kind": "next", "worker": 3}, {"done": True})
        return parsed

    return checked


def test_wrong_key_is_rejected(server: TrialServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_port, "_CONNECT_SECONDS", 0.5)
    with pytest.raises(EngineError, match="does not respond"):
        connect_to_driver(server.address, "0" * 64)
    check_a_worker_is_served(server)


def test_invalid_worker_message_closes_connection(server: TrialServer) -> None:
    nonsense = [
        b"[" * 100_000,
        b"\xff",
        b"[]",
        b"{}",
        b'{"worker": 3}',
        b'{"kind": 1, "worker": 3}',
    ]
    nonsense.append(b'{"kind": "report", "worker": 3, "step": 1, "metrics": {"a": "b"}}')
    for data in nonsense:
        with connect_to_driver(server.address, server.key) as worker:
            worker.send_bytes(data)
            check_disconnected(server, worker)
    check_a_worker_is_served(server)


def test_worker_cannot_report_for_another(server: TrialServer) -> None:
    with connect_to_driver(server.address, server.key) as worker:
        ask(worker, kind="next", worker=3)
        assert len(messages_of(server, 1)) == 1
        ask(worker, kind="ended", worker=4)
        check_disconnected(server, worker)


def drip(connection: socket.socket) -> None:
    """Send one byte at a time for five seconds."""
    for _ in range(50):
        connection.sendall(b"\x00")
        time.sleep(0.1)


def test_slow_unauthenticated_clients_are_disconnected(
    server: TrialServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_port, "_PROOF_SECONDS", 0.3)
    with socket.create_connection(server.address) as stranger:
        stranger.settimeout(5)
        stranger.recv(1000)  # the challenge
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            drip(stranger)
    check_a_worker_is_served(server)


CONNECTIONS = """
import resource, socket, sys, threading, time
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from featurestore.experiments.trials import TrialServer
server = TrialServer("127.0.0.1")
print(server.address[1], server.key, flush=True)
answered = 0
while answered < 3:
    for message in server.poll(0.05):
        server.reply(message, {"done": True})
        answered += 1
open("/dev/null").close()  # descriptors are left
time.sleep(0.2)
server.close()
print("done", threading.active_count(), flush=True)
"""


def test_250_connections_leave_the_port_usable() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CONNECTIONS], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port, key = process.stdout.readline().split()
    strangers = [socket.create_connection(("127.0.0.1", int(port))) for _ in range(250)]
    try:
        for number in range(3):
            with connect_to_driver(("127.0.0.1", int(port)), key) as worker:
                ask(worker, kind="next", worker=number)
                assert json.loads(worker.recv_bytes()) == {"done": True}
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        for stranger in strangers:
            stranger.close()
    assert output.startswith("done")
    assert process.returncode == 0


def test_connection_flood_only_delays_workers(server: TrialServer) -> None:
    stopped = threading.Event()

    def flood() -> None:
        while not stopped.is_set():
            with socket.create_connection(server.address) as stranger:
                stranger.sendall(b"\x00\x00\x00\x10" + b"0" * 16)

    floods = [threading.Thread(target=flood) for _ in range(2)]
    for thread in floods:
        thread.start()
    try:
        for _ in range(5):
            check_a_worker_is_served(server)
    finally:
        stopped.set()
        for thread in floods:
            thread.join()


def test_port_reports_lost_worker() -> None:
    port = WorkerPort("127.0.0.1")
    worker = connect_to_driver(port.address, port.key)
    worker.send_bytes(b"a")
    (first,) = port.poll(5.0)
    assert first.data == b"a"
    assert port.has_peers
    worker.close()
    (last,) = port.poll(5.0)
    assert last.peer == first.peer
    assert last.data is None
    end = time.monotonic() + 5
    while port.has_peers:
        assert time.monotonic() < end
    port.send(first.peer, b"too late")
    port.close()


def test_closing_a_port_disconnects_workers() -> None:
    port = WorkerPort("127.0.0.1")
    with connect_to_driver(port.address, port.key) as worker:
        port.close()
        with pytest.raises((EOFError, OSError)):
            worker.recv_bytes()
    with pytest.raises(OSError):
        socket.create_connection(port.address, timeout=1)


def test_ports_listen_on_loopback_only() -> None:
    from featurestore.plugins.launcher import WorkerTask
    from featurestore_connectors.launchers.local import LocalLauncher, addresses

    assert LocalLauncher().driver_host == "127.0.0.1"
    tasks = [WorkerTask(role, 0, {}, "log", "dir") for role in ("chief", "worker", "ps")]
    hosts = {address[0].rpartition(":")[0] for address in addresses(tasks).values()}
    assert hosts == {"127.0.0.1"}


TENSORFLOW = """
import socket
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
import tensorflow as tf
server = tf.distribute.Server(
    {"worker": [f"127.0.0.1:{port}"]}, job_name="worker", task_index=0, protocol="grpc"
)
for name in ("/proc/net/tcp", "/proc/net/tcp6"):
    for line in open(name).read().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        host, _, number = local.partition(":")
        if state == "0A" and int(number, 16) == port:
            print(int(host, 16), flush=True)
"""


@pytest.mark.soak
def test_tensorflow_listens_at_all_addresses() -> None:
    """Check the statement about TensorFlow in SECURITY.md."""
    process = subprocess.run(
        [sys.executable, "-c", TENSORFLOW], capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == ["0"]
