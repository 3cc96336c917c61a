"""Redirects of webhooks to this machine, to files and to other schemes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from featurestore.alerts.channels import NotDelivered, deliver
from featurestore.errors import FeatureStoreError, InvalidArgument
from featurestore.model.alert import Alert, Channel, validate_channel
from featurestore.storage.grants import acting_channel, grant
from tests.http_server import serve

ALERT = Alert("a" * 32, "begin", "job", ("failed",), ("a line",), datetime(2024, 3, 1, tzinfo=UTC))


@contextmanager
def server(status: int, location: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a redirecting server, and its received requests."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            requests.append(f"{self.command} {self.path}")
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Location", location)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with serve(Handler) as port:
        yield f"http://127.0.0.1:{port}", requests


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_redirects_of_webhooks_are_not_followed(tmp_path: Path, status: int) -> None:
    (tmp_path / "secret").write_text("secret")
    with server(200, "") as (loopback, reached):
        for location in (
            f"{loopback}/admin",
            (tmp_path / "secret").as_uri(),
            "ftp://127.0.0.1/",
            "//",
        ):
            with server(status, location) as (address, requests):
                channel = Channel("people", f"webhook+{address}/hook")
                with pytest.raises(NotDelivered, match="registered on this machine"):
                    deliver(channel, ALERT, location=str(tmp_path), seconds=5)
                assert requests == []
                grant(acting_channel(str(tmp_path), channel))
                with pytest.raises(NotDelivered, match=str(status)):
                    deliver(channel, ALERT, location=str(tmp_path), seconds=5)
                assert requests == ["POST /hook"]
        assert reached == []


@pytest.mark.parametrize("scheme", ["file", "ftp", "data", "gopher", "webhook+file", "webhook+ftp"])
def test_webhook_refuses_other_schemes(tmp_path: Path, scheme: str) -> None:
    channel = Channel("people", f"{scheme}://127.0.0.1/etc/passwd")
    with pytest.raises((FeatureStoreError, NotDelivered)):
        deliver(channel, ALERT, location=str(tmp_path), seconds=5)


@pytest.mark.parametrize(
    "field",
    ["to=a@example.com%0ABcc:b@example.com", "to=a@b.c&from=a@b.c%0D%0ABcc:d@e.f", "to=%7F"],
)
def test_addresses_of_mails_contain_no_line_breaks(field: str) -> None:
    with pytest.raises(InvalidArgument, match="control character"):
        validate_channel("people", f"smtp://mail.example.com/?{field}", None)
