"""Allowed hosts, addresses and form origins of the server."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from featurestore.errors import ConfigurationError, NotAllowed
from featurestore.registry.audit_log import Actor
from featurestore.server import ServerSettings, serve
from featurestore.server.access import changes
from featurestore.server.listening import Connections, bind_supported
from featurestore.store import FeatureStore
from tests.server.private_groups import token_of


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_serve_network_host_without_auth_is_refused(served_store: FeatureStore, host: str) -> None:
    with pytest.raises(ConfigurationError, match="reachable from the network"):
        serve(served_store, ServerSettings(host=host))


def test_unknown_host_header_returns_400(client: TestClient) -> None:
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
    for host in ("localhost:8787", "127.0.0.1", "[::1]:8787"):
        assert client.get("/healthz", headers={"Host": host}).status_code == 200, host


def test_cross_site_forms_are_refused(client: TestClient) -> None:
    address = "/datasets/sells/1/verify"
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
        assert client.post(address, headers=headers).status_code == 403
    assert client.post(address, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_responses_have_security_headers(client: TestClient) -> None:
    for address in ("/", "/nothing", "/api/v1/store", "/static/style.css"):
        headers = client.get(address).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_serve_command_stops_on_sigint(flights_copy: FeatureStore) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = str(Path(sys.executable).with_name("featurestore"))
    words = [command, "--location", flights_copy.location]
    process = subprocess.Popen(
        [*words, "serve", "--port", str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert f"http://127.0.0.1:{port}" in process.stdout.readline()
        assert "planes" in _read(f"http://127.0.0.1:{port}/groups")
    finally:
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_addresses_that_the_machine_lacks_are_skipped() -> None:
    # The second address is one of the block for documentation, which no machine has.
    loopback_addresses, missing_addresses = (
        socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        for host in ("127.0.0.1", "2001:db8::1")
    )
    for addresses in (
        loopback_addresses + missing_addresses,
        missing_addresses + loopback_addresses,
    ):
        (listener,) = bind_supported(addresses, Connections(1))
        with listener:
            assert listener.getsockname()[0] == "127.0.0.1"
            bound_addresses = [(*loopback_addresses[0][:4], listener.getsockname())]
            listener.listen()
            with pytest.raises(OSError, match="in use"):
                bind_supported(bound_addresses + missing_addresses, Connections(1))
    with pytest.raises(OSError, match=r"assign|support"):
        bind_supported(missing_addresses + missing_addresses, Connections(1))


def test_serve_network_host_requires_users(empty_store: FeatureStore) -> None:
    settings = ServerSettings(host="0.0.0.0", auth=True)
    with pytest.raises(NotAllowed, match="has no users"):
        serve(empty_store, settings)
    changes.add_user(empty_store.session, Actor("root", "test"), "ann", role="admin")
    headers = token_of(empty_store, "ann")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = str(Path(sys.executable).with_name("featurestore"))
    words = [command, "--location", empty_store.location, "serve", "--port", str(port)]
    process = subprocess.Popen(
        [*words, "--host", "0.0.0.0", "--auth"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert f"http://0.0.0.0:{port}" in process.stdout.readline()
        assert "unencrypted" in process.stdout.readline()
        address = f"http://127.0.0.1:{port}/api/v1/store"
        assert "counts" in _read(address, headers)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(address, timeout=10)
    finally:
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=60)


def test_serve_with_certificate_uses_tls_only(empty_store: FeatureStore, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: nothing makes a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    openssl_command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    openssl_command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    openssl_command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(openssl_command, check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = str(Path(sys.executable).with_name("featurestore"))
    words = [command, "--location", empty_store.location, "serve", "--port", str(port)]
    words += ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert f"https://127.0.0.1:{port}" in process.stdout.readline()
        trusted = ssl.create_default_context(cafile=str(certificate))
        assert _read(f"https://localhost:{port}/healthz", context=trusted) == "ok\n"
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(f"http://localhost:{port}/healthz", timeout=10)
    finally:
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=60)


def _read(
    address: str,
    headers: dict[str, str] | None = None,
    *,
    context: ssl.SSLContext | None = None,
) -> str:
    request = urllib.request.Request(address, headers=headers or {})
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as response:
                return str(response.read().decode())
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
