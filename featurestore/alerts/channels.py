"""Alert channels: registration, grants of this machine, and message delivery.

A registry may come from another machine, and its channels specify a program to run, or an address
that receives the value of an environment variable. Therefore a channel is only used on machines
where it was added: adding a channel stores a grant in the state directory of the machine, and the
registered channel is compared with the grant before each delivery.
"""

from __future__ import annotations

import http.client
import io
import json
import logging
import os
import smtplib
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from email.message import EmailMessage
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    ThreadsUnavailable,
    did_you_mean,
    listing,
)
from featurestore.model.alert import Alert, Channel, validate_channel
from featurestore.model.names import parse_secret
from featurestore.model.threads import start_thread
from featurestore.registry import alerts
from featurestore.session import Session
from featurestore.storage import grants
from featurestore.storage.programs import run_program

_log = logging.getLogger("featurestore.alerts")
# Time limit of one delivery.
SECONDS = 10.0
_MAX_REPLY_LINES = 1_000
# Interval at which the connections of an overdue delivery are closed until it ends.
_CLOSE_SECONDS = 1.0
Connection = http.client.HTTPConnection | smtplib.SMTP


def add_channel(session: Session, name: str, uri: str, *, secret: str | None = None) -> Channel:
    """Register a channel, and grant this machine permission to use it."""
    channel = validate_channel(name, uri, secret)
    with session.registry.transaction() as connection:
        alerts.put_channel(connection, channel)
        # In the transaction, so that the last registration also writes the last grant.
        grant_channel(session, channel)
    return channel


def grant_channel(session: Session, channel: Channel) -> None:
    """Grant this machine permission to use a channel and its secret."""
    grants.grant(grants.acting_channel(session.location, channel))


def remove_channel(session: Session, name: str) -> None:
    """Remove a channel; its pending messages are not sent."""
    with session.registry.transaction() as connection:
        if alerts.remove_channel(connection, name):
            return
        names = [channel.name for channel in alerts.channels(connection)]
    raise InvalidArgument(
        f"Unknown alert channel {name!r}. Available: {listing(names)}.",
        hint=did_you_mean(name, names),
    )


def is_trusted(session: Session, channel: Channel) -> bool:
    """Return True if a channel was added on this machine and has not changed in the registry."""
    # The log runs no program and opens no address, so it needs no grant.
    return channel.scheme == "log" or grants.is_granted(
        grants.acting_channel(session.location, channel)
    )


class NotDelivered(Exception):
    """A message was not delivered; the error text contains no secrets."""


def deliver(channel: Channel, alert: Alert, *, location: str, seconds: float = SECONDS) -> None:
    """Deliver one message to a channel.

    Raises:
        NotDelivered: The delivery failed, or its outcome is unknown.
    """
    send = _SENDERS.get(channel.scheme)
    if send is None:
        raise NotDelivered(f"unknown channel scheme {channel.scheme!r}")
    definition = grants.acting_channel(location, channel)
    try:
        secret = None
        if channel.scheme != "log":
            grants.authorize(definition)
        if channel.secret is not None:
            secret = grants.resolve_secret(parse_secret(channel.secret), definition)
        send(channel, alert, secret, seconds)
    except FeatureStoreError as error:
        raise NotDelivered(error.message) from error
    except (OSError, smtplib.SMTPException, http.client.HTTPException, ValueError) as error:
        # Addresses may contain a token, so the text only contains the kind of error.
        raise NotDelivered(_error_text(error)) from error


def _error_text(error: Exception) -> str:
    """Describe a delivery error without addresses and secrets."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the server responded with status {error.code}"
    if isinstance(error, smtplib.SMTPResponseException):
        return f"the mail server responded with code {error.smtp_code}"
    if isinstance(error, TimeoutError):
        return "timed out"
    return type(error).__name__


def _send_within(seconds: float, send: Callable[[list[Connection]], None]) -> None:
    """Call ``send`` with a list for its connections, and close them at a time limit.

    The timeout of a socket limits single operations, so a receiver that sends a byte at a time
    could block the caller forever.

    Raises:
        TimeoutError: The time limit was reached.
    """
    connections: list[Connection] = []
    errors: list[BaseException] = []
    has_ended = threading.Event()

    def run() -> None:
        try:
            send(connections)
        except BaseException as error:
            errors.append(error)
        has_ended.set()

    def close_connections() -> None:
        # Repeated, because a connection may still be established after the time limit.
        while not has_ended.is_set():
            for connection in connections:
                if connection.sock is not None:
                    with suppress(OSError):  # it is closed already
                        connection.sock.shutdown(socket.SHUT_RDWR)
            has_ended.wait(_CLOSE_SECONDS)

    start_thread(run, name="alert")
    if not has_ended.wait(seconds):
        # Without this thread, the other one ends when the receiver closes its connection.
        with suppress(ThreadsUnavailable):
            start_thread(close_connections, name="alert")
        raise TimeoutError
    for error in errors:
        raise error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that messages go only to the configured address."""

    # urllib would send the Authorization header to the new address, too.
    def redirect_request(self, *_: object) -> None:
        return None


class _ListingHandler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens requests, and adds their connections to a list."""

    def __init__(self, connections: list[Connection]) -> None:
        super().__init__()
        self._connections = connections

    def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> Any:
        def connect(host: str, **arguments: Any) -> http.client.HTTPConnection:
            connection: http.client.HTTPConnection = http_class(host, **arguments)
            self._connections.append(connection)
            return connection

        return super().do_open(connect, req, **options)


def _send_webhook(channel: Channel, alert: Alert, secret: str | None, seconds: float) -> None:
    uri = channel.uri.removeprefix("webhook+")
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "featurestore",
        "Idempotency-Key": alert.id,
    }
    if secret is not None:
        headers["Authorization"] = f"Bearer {secret}"
    data = json.dumps(alert.to_json(), ensure_ascii=False).encode()
    request = urllib.request.Request(uri, data=data, headers=headers, method="POST")

    def post(connections: list[Connection]) -> None:
        opener = urllib.request.build_opener(_NoRedirects, _ListingHandler(connections))
        try:
            # The body of the response, which may be endless, is not read.
            opener.open(request, timeout=seconds).close()
        except urllib.error.HTTPError as error:
            error.close()
            raise

    _send_within(seconds, post)


class _ReplyReader(io.BufferedReader):
    """Reads the replies of a mail server; smtplib collects the lines of a reply without limit."""

    lines = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        self.lines += 1
        if self.lines > _MAX_REPLY_LINES:
            raise smtplib.SMTPException(f"more than {_MAX_REPLY_LINES} lines of replies")
        return super().readline(size)


class _MailConnection(smtplib.SMTP):
    """A connection to a mail server, which adds itself to a list before it is established."""

    def __init__(self, connections: list[Connection], *arguments: Any, **options: Any) -> None:
        connections.append(self)
        super().__init__(*arguments, **options)

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _ReplyReader(self.sock.makefile("rb", buffering=0))
        return super().getreply()


class _TlsMailConnection(_MailConnection, smtplib.SMTP_SSL):
    """A connection to a mail server that uses TLS from its start."""


def _send_email(channel: Channel, alert: Alert, secret: str | None, seconds: float) -> None:
    url = urlsplit(channel.uri)
    query = parse_qs(url.query)
    user = unquote(url.username or "")
    host = str(url.hostname)
    message = EmailMessage()
    message["Subject"] = alert.title
    message["From"] = query.get("from", [user if "@" in user else "featurestore@localhost"])[0]
    message["To"] = ", ".join(query["to"])
    message["Message-ID"] = f"<{alert.id}@featurestore>"
    message.set_content(alert.text)
    tls_context = ssl.create_default_context(cafile=query.get("cafile", [None])[0])
    is_encrypted = url.scheme == "smtps"

    def send(connections: list[Connection]) -> None:
        if is_encrypted:
            connection: smtplib.SMTP = _TlsMailConnection(
                connections, host, url.port or 465, timeout=seconds, context=tls_context
            )
        else:
            connection = _MailConnection(connections, host, url.port or 587, timeout=seconds)
        with connection as server:
            # Unencrypted SMTP is only used if the channel disables STARTTLS.
            if not is_encrypted and query.get("starttls", ["yes"])[0] != "no":
                server.starttls(context=tls_context)
            if secret is not None:
                server.login(user, secret)
            server.send_message(message)

    _send_within(seconds, send)


def _run_command(channel: Channel, alert: Alert, secret: str | None, seconds: float) -> None:
    """Run a program without a shell, with the message as JSON on standard input."""
    path = channel.uri.removeprefix("command:")
    environment = dict(os.environ)
    environment["FEATURESTORE_ALERT_ID"] = alert.id
    environment["FEATURESTORE_ALERT_EVENT"] = alert.event
    environment["FEATURESTORE_JOB"] = alert.job
    # Unlike arguments, the environment of a process is not visible to other users.
    if secret is not None:
        environment["FEATURESTORE_ALERT_SECRET"] = secret
    data = json.dumps(alert.to_json(), ensure_ascii=False).encode()
    # The output is discarded, because a program can write without limit.
    status = run_program(
        [path], environment=environment, seconds=seconds, standard_input=data, discard_output=True
    )
    if status:
        raise NotDelivered(f"the command exited with code {status}")


def _write_log(_channel: Channel, alert: Alert, _secret: str | None, _seconds: float) -> None:
    level = logging.INFO if alert.event == "end" else logging.WARNING
    _log.log(level, "%s", alert.text)


_SENDERS = {
    "webhook+https": _send_webhook,
    "webhook+http": _send_webhook,
    "smtp": _send_email,
    "smtps": _send_email,
    "command": _run_command,
    "log": _write_log,
}
