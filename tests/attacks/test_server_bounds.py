"""One person, or a client without sign-in, cannot stop a server: bodies, passwords, connections, turns."""

from __future__ import annotations

import http.client
import json
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from fastapi.routing import iter_route_contexts

import featurestore
from featurestore.errors import StorageError
from featurestore.plugins.remote import RETRIEVAL
from featurestore.server import ServerSettings, create_app
from featurestore.server.access import changes
from tests.server.private_groups import PASSWORD, ROOT

DESCRIPTORS, CONNECTIONS, PER_PERSON = 256, 100, 2
FILE_BYTES = 8 << 20
# A response of an unloaded server takes a few milliseconds. Without the bounds it takes minutes.
PATIENCE = 10.0


@dataclass(frozen=True)
class Server:
    """A running ``featurestore serve`` process."""

    process: subprocess.Popen[str]
    port: int
    tokens: dict[str, str]
    location: Path
    log: Path

    def memory(self) -> int:
        """Return the peak memory of the process in MiB, since its start."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) >> 10  # type: ignore[index]

    def connect(self, client: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 60, source_address=(client, 0))

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, names)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def bearer(self, name: str) -> str:
        return f"Bearer {self.tokens[name]}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("bounded")
    tokens = {}
    with featurestore.connect(folder / "store") as store:
        store.create_featuregroup([{"k": 1, "x": 1.0}], "numbers", primary_key="k")
        for name in ("ann", "bob", "eve"):
            changes.add_user(store.session, ROOT, name, role="reader", password=PASSWORD)
            tokens[name], _ = changes.make_token(store.session, ROOT, name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("featurestore")), "--location"]
    command += [str(folder / "store"), "serve", "--auth", "--port", str(port)]
    command += ["--requests-per-person", str(PER_PERSON), "--connections", str(CONNECTIONS)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            text=True,
            preexec_fn=set_limits,
        )
        running = Server(process, port, tokens, folder / "store", folder / "log")
        try:
            wait_until(lambda: is_listening(port), process)
            running.request("GET", "/groups", Authorization=running.bearer("bob"))  # imports
            yield running
        finally:
            process.kill()
            process.wait(timeout=60)


def set_limits() -> None:
    """Limit the descriptors and the length of files, where a write fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))


def is_listening(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def wait_until(is_true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def others_are_served(server: Server) -> Iterator[None]:
    """Check that another person gets pages, and that the server is healthy, during the block."""
    is_over = threading.Event()
    responses: list[tuple[str, int, float]] = []

    def request_pages() -> None:
        while True:
            for path in ("/healthz", "/groups"):
                start = time.monotonic()
                status, _, _ = server.request("GET", path, Authorization=server.bearer("bob"))
                responses.append((path, status, time.monotonic() - start))
            if is_over.wait(0.1):
                return

    with ThreadPoolExecutor(1) as pool:
        pages = pool.submit(request_pages)
        try:
            yield
        finally:
            is_over.set()
        pages.result()
    assert {status for _, status, _ in responses} == {200}
    assert max(seconds for _, _, seconds in responses) < PATIENCE, responses


def read_response(connection: socket.socket) -> bytes:
    """Return the bytes until the server closes the connection."""
    received = b""
    try:
        while chunk := connection.recv(1 << 16):
            received += chunk
    except ConnectionResetError:  # the rest of the body was not read
        pass
    return received


def test_no_route_reads_a_body_before_sign_in(server: Server) -> None:
    with featurestore.connect(server.location) as store:
        app = create_app(store, ServerSettings(auth=True))
    paths = {
        re.sub(r"\{[^}]*\}", "1", str(context.path))
        for context in iter_route_contexts(app.routes)
        if "POST" in (getattr(context, "methods", None) or ())
        and not str(context.path).startswith("/sign-")
    }
    assert len(paths) > 20
    before = server.memory()
    with others_are_served(server):
        for path in sorted(paths):
            for content_type in ("application/json", RETRIEVAL):
                header = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 209715200\r\n"
                with server.connect() as connection:
                    connection.sendall(f"{header}Content-Type: {content_type}\r\n\r\n".encode())
                    response = read_response(connection)
                assert response.startswith(b"HTTP/1.1 401"), (path, response[:100])
        with server.connect() as connection:
            connection.sendall(header.replace(path, "/api/v1/rows").encode() + b"\r\n")
            with pytest.raises(OSError):
                connection.sendall(bytes(200 << 20))
    assert server.memory() - before < 64


def test_route_decides_how_a_body_is_read(server: Server) -> None:
    token = server.bearer("eve")
    path = "/api/v1/featureviews/any/vectors"
    bodies = {
        "long": b'{"entities": [' + b'{"a":1},' * 2_000_000 + b"{}]}",
        "deep": b'{"entities": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "many": b'{"entities": [' + b"0," * 300_000 + b"0]}",
        "digits": b'{"entities": [{"a": ' + b"9" * 100_000 + b"}]}",
    }
    before = server.memory()
    with others_are_served(server):
        for name, body in bodies.items():
            for content_type in ("application/json", RETRIEVAL):
                header = (
                    f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n"
                    f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
                )
                with server.connect() as connection:
                    connection.sendall(header.encode())
                    if name != "long":
                        connection.sendall(body)
                    assert connection.recv(20).startswith(b"HTTP/1.1 413"), (name, content_type)
        for repeated in ("Content-Type: text/html", "Content-Length: 2", f"Authorization: {token}"):
            header = (
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n"
                f"Content-Type: application/json\r\n{repeated}\r\nContent-Length: 2\r\n\r\n{{}}"
            )
            with server.connect() as connection:
                connection.sendall(header.encode())
                status = connection.recv(12)
            # The HTTP library merges equal lengths.
            is_merged = repeated.startswith("Content-Length")
            assert status == b"HTTP/1.1 400" or is_merged, repeated
    assert server.memory() - before < 64


def sign_in_form(server: Server) -> tuple[str, str]:
    """Return the token of the sign-in form, and its cookie."""
    _, headers, text = server.request("GET", "/sign-in")
    token = re.search(rb'name="form_token" value="([^"]+)"', text)
    assert token is not None
    return token[1].decode(), str(headers["set-cookie"]).split(";")[0]


def test_password_guesses_delay_no_page(server: Server) -> None:
    token, cookie = sign_in_form(server)

    def guess(number: int) -> tuple[int, str | None]:
        form = {"form_token": token, "name": f"u{number % 50}", "password": f"a guess {number}"}
        status, headers, _ = server.request(
            "POST", "/sign-in", urlencode(form).encode(), Cookie=cookie
        )
        return status, headers["retry-after"]

    before = server.memory()
    with others_are_served(server), ThreadPoolExecutor(60) as pool:
        outcomes = list(pool.map(guess, range(120)))
    statuses = Counter(status for status, _ in outcomes)
    # 30 failures of an address are allowed.
    assert set(statuses) == {401, 429}
    assert statuses[401] <= 30
    assert all(seconds is not None for status, seconds in outcomes if status == 429)
    # A hash takes 64 MiB, and two are computed at a time.
    assert server.memory() - before < 256


def test_guesses_of_the_own_password_wait(server: Server) -> None:
    with featurestore.connect(server.location) as store:
        from featurestore.server.access.sign_in import start_browser_session
        from featurestore.server.access.visitors import compute_form_token

        # The failures of the test above belong to the same address.
        with store.session.registry.transaction() as connection:
            connection.exec_driver_sql("DELETE FROM failed_sign_ins")
        cookie = start_browser_session(store.session, "eve", "password")
    token = compute_form_token(cookie)

    def guess(number: int) -> int:
        form = {"form_token": token, "before": f"a guess {number}", "password": PASSWORD}
        status, _, _ = server.request(
            "POST", "/account/password", urlencode(form).encode(), Cookie=f"featurestore={cookie}"
        )
        return status

    before = server.memory()
    with others_are_served(server), ThreadPoolExecutor(40) as pool:
        statuses = Counter(pool.map(guess, range(40)))
    assert set(statuses) == {403, 429}
    assert statuses[403] == 5
    assert server.memory() - before < 256


def test_connections_leave_descriptors_for_pages(server: Server) -> None:
    before = server.log.stat().st_size
    with ExitStack() as stack, others_are_served(server):
        for round_number in range(3):
            for _ in range(DESCRIPTORS):
                # The crowded address loses its connections, not that of the other person.
                connection = stack.enter_context(server.connect("127.0.0.2"))
                # Neither a header nor a body without an end keeps a connection at the limit.
                if round_number != 1:
                    connection.sendall(b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\n")
                if round_number == 2:
                    connection.sendall(b"Content-Length: 1000\r\n\r\n")
            time.sleep(1)
    with server.log.open() as log:
        log.seek(before)
        lines = log.read().splitlines()
    assert len(lines) < 5
    assert any(f"the limit of {CONNECTIONS} open connections is reached" in line for line in lines)


def test_requests_of_one_person_wait_for_each_other(server: Server) -> None:
    header = (
        "POST /api/v1/rows HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
        f"Authorization: {server.bearer('eve')}\r\nContent-Type: {RETRIEVAL}\r\n\r\n{{"
    )
    row_request = {"read": {"kind": "featuregroup", "name": "numbers"}, "answer": "count"}

    def count_by_client() -> int:
        address = f"http://127.0.0.1:{server.port}"
        with featurestore.connect(address, token=server.tokens["eve"]) as store:
            return store.get_featuregroup("numbers").count()

    with ThreadPoolExecutor(1) as pool:
        with ExitStack() as stack, others_are_served(server):
            # As many uploads run, and four times as many wait.
            for _ in range(5 * PER_PERSON):
                stack.enter_context(server.connect()).sendall(header.encode())
            time.sleep(1)
            # Uploads and pages have separate turns.
            token = server.bearer("eve")
            status, _, _ = server.request("GET", "/api/v1/store", Authorization=token)
            assert status == 200
            connection = stack.enter_context(server.connect())
            connection.sendall(header.encode())
            response = read_response(connection)
            assert response.startswith(b"HTTP/1.1 429"), response[:100]
            assert re.search(rb"(?i)retry-after: \d+\r\n", response)
            problem = json.loads(response.partition(b"\r\n\r\n")[2])
            assert problem["title"] == "TooManyRequests"
            assert f"{PER_PERSON} running and {4 * PER_PERSON} waiting" in problem["detail"]
            status, _, _ = server.request(
                "POST",
                "/api/v1/rows",
                json.dumps(row_request).encode() + b"\n",
                Authorization=server.bearer("bob"),
                Content_Type=RETRIEVAL,
            )
            assert status == 200
            refused = pool.submit(count_by_client)
            time.sleep(1)
            assert not refused.done()
        # Closed connections end their turns, and the client repeats its request.
        assert refused.result(timeout=60) == 1


def test_full_disk_refuses_rows_and_serves_pages(server: Server) -> None:
    address = f"http://127.0.0.1:{server.port}"
    with (
        others_are_served(server),
        featurestore.connect(address, token=server.tokens["eve"]) as store,
    ):
        for count in (FILE_BYTES // 4, 10):
            labels = pa.table({"k": pa.array(range(count), pa.int64())})
            frame = store.get_features(["numbers.x"], labels=labels)
            if 8 * count > FILE_BYTES:
                with pytest.raises(StorageError, match="cannot store the rows"):
                    frame.to_arrow()
            else:
                assert frame.to_arrow().num_rows == count
    assert "Traceback" not in server.log.read_text()
