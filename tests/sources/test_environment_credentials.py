"""Drivers get credentials of the machine only if a source or an online store has secret="environment"."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from featurestore.errors import FeatureStoreError, InvalidArgument
from featurestore.plugins.online import OnlineConfig, open_config
from featurestore.plugins.source import SourceConfig, SourceQuery, find_source
from featurestore.store import FeatureStore
from tests.http_server import read_body, serve
from tests.registry.conftest import postgres_server, postgres_url  # noqa: F401
from tests.sources.test_registered_sources import PASSWORD, role_with_password

ENVIRONMENTS = ("PGPASSWORD", "PGPASSFILE", "~/.pgpass", "PGSERVICE")


def use_credentials(
    kind: str, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, password: str = PASSWORD
) -> None:
    """Store a password for libpq: in a variable, a service or a password file."""
    for name in ("PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGSERVICEFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    escaped = password.replace("\\", "\\\\").replace(":", "\\:")
    entry = folder / ".pgpass"
    entry.unlink(missing_ok=True)
    if kind == "PGPASSWORD":
        monkeypatch.setenv(kind, password)
    elif kind == "PGSERVICE":
        (folder / "services").write_text(f"[shop]\npassword={password}\n")
        monkeypatch.setenv("PGSERVICEFILE", str(folder / "services"))
        monkeypatch.setenv(kind, "shop")
    else:
        entry.write_text(f"*:*:*:careful:{escaped}\n")
        entry.chmod(0o600)
        if kind == "PGPASSFILE":
            entry = entry.rename(folder / "passwords")
            monkeypatch.setenv(kind, str(entry))


@pytest.mark.postgres
def test_postgres_uses_passwords_of_the_machine_only_on_request(
    empty_store: FeatureStore,
    postgres_url: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    url = role_with_password(postgres_url)
    monkeypatch.setenv("OWN", PASSWORD)
    # The drivers of ADBC, SQLAlchemy and online stores; PGSERVICE is a feature of libpq.
    uris = {"adbc": url, "sqlalchemy": url.replace("postgresql:", "sqlalchemy+postgresql+psycopg:")}
    for kind in ENVIRONMENTS:
        use_credentials(kind, url, tmp_path, monkeypatch)
        for name, uri in uris.items():
            for secret, is_usable in ((None, False), ("environment", True), ("env:OWN", True)):
                with subtests.test(f"{name}, {kind}, {secret}"):
                    source = f"{name}_{len(empty_store.get_sources())}"
                    empty_store.add_source(source, uri, secret=secret)
                    report = empty_store.check_source(source)
                    problems = [text for text in report.problems if "cannot be reached" in text]
                    assert (problems == []) == is_usable, report.problems
        for secret, uses_environment, is_usable in (
            (None, False, False),
            (None, True, True),
            (lambda: PASSWORD, False, True),
        ):
            with subtests.test(f"online, {kind}, {uses_environment}, {secret is not None}"):
                config = OnlineConfig("pg", url, secret, uses_environment=uses_environment)
                with closing(open_config(config)) as store:
                    if is_usable:
                        assert store.clock() is not None
                    else:
                        with pytest.raises(FeatureStoreError, match="password"):
                            store.clock()


# -- servers that record what they are sent ---------------------------------------------------


@pytest.fixture
def full_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every credential of the machine that a driver could find; each contains "leaked"."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    profile = "[default]\naws_access_key_id = leaked\naws_secret_access_key = leaked\n"
    (tmp_path / ".aws/credentials").write_text(profile)
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login leaked password leaked\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "MYSQL_PWD"):
        monkeypatch.setenv(name, "leaked")
    for name in ("REDIS_PASSWORD", "REDISCLI_AUTH", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.setenv(name, base64.b64encode(b"leaked").decode())
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shop")
    return tmp_path


class Recorder(BaseHTTPRequestHandler):
    """A server that answers every request by an empty object, and records the requests."""

    requests: list[str] = []  # noqa: RUF012 (shared by the connections of one server)
    answers: dict[str, Any] = {}  # noqa: RUF012

    def _handle(self) -> None:
        body = read_body(self)
        self.requests.append(f"{self.command} {self.path}\n{self.headers}\n{body!r}")
        answer = self.answers.get(self.path.partition("?")[0], {})
        if isinstance(answer, str):
            self.send_response(302)
            self.send_header("Location", answer)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def recorder() -> Iterator[tuple[str, type[Recorder]]]:
    """The address of a server, and its class with the recorded requests."""
    handler = type("OneRecorder", (Recorder,), {"requests": [], "answers": {}})
    with serve(handler) as port:
        yield f"127.0.0.1:{port}", handler


def read_source(kind: str, uri: str, **fields: Any) -> None:
    """Connect to a source, and read a table; the servers of these tests cannot answer."""
    with suppress(FeatureStoreError):
        snapshot = find_source(kind)(SourceConfig("lake", uri, **fields)).snapshot()
        with closing(snapshot):
            snapshot.tables()
            snapshot.read(SourceQuery(table="main.orders"))


def test_http_sources_send_no_credentials_of_the_machine(
    full_environment: Path, recorder: tuple[str, type[Recorder]], subtests: pytest.Subtests
) -> None:
    address, handler = recorder
    endpoint = {"aws_endpoint_url": f"http://{address}"}
    for kind, uri, options in (
        ("iceberg", f"iceberg+http://{address}", {}),
        ("unity", f"unity://{address}/main?tls=false", {}),
        ("file", "s3://lake/orders", endpoint),
        ("delta", "delta+s3://lake/orders", endpoint),
    ):
        with subtests.test(kind):
            handler.requests.clear()
            read_source(kind, uri, options=options)
            assert handler.requests
            assert "leaked" not in str(handler.requests)
    # Otherwise the test could not fail: these credentials are used with secret="environment".
    handler.requests.clear()
    read_source("file", "s3://lake/orders", options=endpoint, uses_environment=True)
    assert "leaked" in str(handler.requests)


def test_iceberg_server_sets_known_properties_only(
    full_environment: Path, recorder: tuple[str, type[Recorder]], subtests: pytest.Subtests
) -> None:
    address, handler = recorder
    evil = type("Evil", (Recorder,), {"requests": [], "answers": {}})
    with serve(evil) as port:
        # A class to import, a key file, the AWS credentials, another address, and .netrc.
        for overrides in (
            {"auth": {"type": "custom", "impl": "os.system", "custom": {"command": "id"}}},
            {"ssl": {"cabundle": "/etc/passwd", "client": {"cert": "/etc/passwd"}}},
            {"rest.sigv4-enabled": "true", "rest.signing-region": "eu"},
            {"uri": f"http://127.0.0.1:{port}"},
            {"oauth2-server-uri": f"http://127.0.0.1:{port}", "credential": "a:b"},
            {"header.Authorization": "x", "py-io-impl": "os.system"},
        ):
            with subtests.test(str(overrides)):
                handler.requests.clear()
                handler.answers["/v1/config"] = {"defaults": overrides, "overrides": overrides}
                handler.answers["/v1/namespaces"] = {"namespaces": []}
                source = find_source("iceberg")(
                    SourceConfig("lake", f"iceberg+http://{address}", secret=lambda: "its-token")
                )
                # The client refuses values that are not strings.
                with suppress(FeatureStoreError), closing(source.snapshot()) as snapshot:
                    assert snapshot.tables() == []
                text = str(handler.requests)
                assert "its-token" in text
                assert "leaked" not in text
                assert "AWS4-HMAC" not in text
        # A redirect would get the credentials of .netrc, or those of the source.
        handler.answers["/v1/config"] = f"http://127.0.0.1:{port}/v1/config"
        read_source("iceberg", f"iceberg+http://{address}", secret=lambda: "its-token")
        assert evil.requests == []


def test_drivers_without_passwords_need_the_environment(subtests: pytest.Subtests) -> None:
    sasl = {"security.protocol": "SASL_PLAINTEXT"}
    for kind, uri, options, secret in (
        ("glue", "glue://eu-central-1", {}, None),
        ("bigquery", "bigquery://project/dataset", {}, None),
        ("file", "hdfs://namenode:9000/lake", {}, None),
        ("delta", "delta+hdfs://namenode:9000/lake", {}, None),
        ("kafka", "kafka://broker:9092", sasl, None),
        ("kafka", "kafka://broker:9092", sasl, lambda: "x"),
        ("kafka", "kafka://broker:9092", {**sasl, "sasl.mechanism": "GSSAPI"}, lambda: "x"),
        ("kafka", "kafka://broker:9092", {**sasl, "sasl.mechanism": "SCRAM-SHA-256"}, None),
        ("sqlalchemy", "sqlalchemy+mssql+pyodbc://host/db", {}, None),
        ("sqlalchemy", "sqlalchemy+trino://me@host/db", {}, None),
    ):
        with subtests.test(f"{uri} {options}"):
            config = SourceConfig("lake", uri, options, secret)
            with pytest.raises(InvalidArgument) as refused:
                find_source(kind)(config)
            assert refused.value.hint == "secret='environment' allows that"


def test_mysql_driver_gets_no_password_of_the_machine(full_environment: Path) -> None:
    """A server of the protocol, which sends its greeting and records the sign-in."""
    received: list[bytes] = []
    greeting = (
        b"\x0a8.0.0\0" + struct.pack("<I", 1) + b"12345678\0" + b"\xff\xf7\x21\x02\x00\xff\x81\x15"
        + bytes(10) + b"123456789012\0mysql_clear_password\0"
    )  # fmt: skip

    def accept() -> None:
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                connection.settimeout(5)
                connection.sendall(struct.pack("<I", len(greeting))[:3] + b"\0" + greeting)
                received.append(connection.recv(4096))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        read_source("mysql", f"mysql://me@127.0.0.1:{server.getsockname()[1]}/shop")
        thread.join(10)
    assert received
    assert b"leaked" not in received[0]


def test_redis_gets_no_password_of_the_machine(full_environment: Path) -> None:
    received: list[bytes] = []

    def accept() -> None:
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                connection.settimeout(5)
                received.append(connection.recv(4096))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        config = OnlineConfig("cache", f"redis://127.0.0.1:{server.getsockname()[1]}/0?timeout=2")
        with closing(open_config(config)) as store, suppress(FeatureStoreError):
            store.clock()
        thread.join(10)
    assert received
    assert b"leaked" not in received[0]
    assert b"AUTH" not in received[0]
    assert os.environ["REDISCLI_AUTH"].encode() not in received[0]
