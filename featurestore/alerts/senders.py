"""How a message gets to each kind of channel: one attempt, with a limit on its time."""

from __future__ import annotations

import http.client
import json
import logging
import os
import smtplib
import ssl
import subprocess
import urllib.error
import urllib.request
from email.message import EmailMessage
from urllib.parse import parse_qs, unquote, urlsplit

from featurestore.errors import FeatureStoreError
from featurestore.model.alert import Alert, Channel
from featurestore.model.secrets import parse_secret
from featurestore.storage.secrets import resolve_secret

_log = logging.getLogger("featurestore.alerts")
SECONDS = 10.0


class NotDelivered(Exception):
    """A channel did not take a message; the text has no secret in it."""


def deliver(channel: Channel, alert: Alert, *, location: str, seconds: float = SECONDS) -> None:
    """Send one message to a channel.

    Raises:
        NotDelivered: It did not arrive, or nobody can tell.
    """
    send = _SENDERS.get(channel.scheme)
    if send is None:
        raise NotDelivered(f"no channel is of the scheme {channel.scheme!r}")
    try:
        secret = None
        if channel.secret is not None:
            reference = parse_secret(channel.secret)
            secret = resolve_secret(
                reference, location=location, name=secret_name(channel), uri=channel.uri
            )
        send(channel, alert, secret, seconds)
    except FeatureStoreError as error:
        raise NotDelivered(error.message) from error
    except (OSError, smtplib.SMTPException, http.client.HTTPException, ValueError) as error:
        # Addresses may hold a token, so the text says what kind of error it was, not where.
        raise NotDelivered(_told(error)) from error


def secret_name(channel: Channel) -> str:
    """Return the name under which this machine remembers whose secret it is."""
    return f"alert channel {channel.name}"


def _told(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code}"
    if isinstance(error, smtplib.SMTPResponseException):
        return f"the mail server answered {error.smtp_code}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return type(error).__name__


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Sends nobody's message to where a server points."""

    def redirect_request(self, *_: object) -> None:
        return None


def _webhook(channel: Channel, alert: Alert, secret: str | None, seconds: float) -> None:
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
    opener = urllib.request.build_opener(_NoRedirects)
    with opener.open(request, timeout=seconds):
        pass


def _smtp(channel: Channel, alert: Alert, secret: str | None, seconds: float) -> None:
    found = urlsplit(channel.uri)
    asked = parse_qs(found.query)
    user = unquote(found.username or "")
    host = str(found.hostname)
    message = EmailMessage()
    message["Subject"] = alert.title
    message["From"] = asked.get("from", [user if "@" in user else "featurestore@localhost"])[0]
    message["To"] = ", ".join(asked["to"])
    message["Message-ID"] = f"<{alert.id}@featurestore>"
    message.set_content(alert.text)
    trusted = ssl.create_default_context(cafile=asked.get("cafile", [None])[0])
    connect = _smtp_connection(found.scheme, host, found.port, seconds, trusted)
    with connect as server:
        # Nothing is sent in the clear unless the channel says so.
        if found.scheme == "smtp" and asked.get("starttls", ["yes"])[0] != "no":
            server.starttls(context=trusted)
        if secret is not None:
            server.login(user, secret)
        server.send_message(message)


def _smtp_connection(
    scheme: str, host: str, port: int | None, seconds: float, trusted: ssl.SSLContext
) -> smtplib.SMTP:
    if scheme == "smtps":
        return smtplib.SMTP_SSL(host, port or 465, timeout=seconds, context=trusted)
    return smtplib.SMTP(host, port or 587, timeout=seconds)


def _command(channel: Channel, alert: Alert, secret: str | None, seconds: float) -> None:
    """Run a program: no shell, the message as JSON on its standard input."""
    path = channel.uri.removeprefix("command:")
    environment = dict(os.environ)
    environment["FEATURESTORE_ALERT_ID"] = alert.id
    environment["FEATURESTORE_ALERT_EVENT"] = alert.event
    environment["FEATURESTORE_JOB"] = alert.job
    if secret is not None:
        environment["FEATURESTORE_ALERT_SECRET"] = secret
    data = json.dumps(alert.to_json(), ensure_ascii=False).encode()
    try:
        done = subprocess.run(
            [path], input=data, env=environment, timeout=seconds, check=False, capture_output=True
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    if done.returncode:
        raise NotDelivered(f"the command ended with {done.returncode}")


def _to_log(_channel: Channel, alert: Alert, _secret: str | None, _seconds: float) -> None:
    level = logging.INFO if alert.event == "end" else logging.WARNING
    _log.log(level, "%s", alert.text)


_SENDERS = {
    "webhook+https": _webhook,
    "webhook+http": _webhook,
    "smtp": _smtp,
    "smtps": _smtp,
    "command": _command,
    "log": _to_log,
}
