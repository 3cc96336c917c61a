"""Alert messages and the channels that deliver them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from featurestore.errors import InvalidArgument
from featurestore.model import display
from featurestore.model.display import escape_controls, escape_line
from featurestore.model.json_object import translate_parse_errors
from featurestore.model.names import check_name, parse_secret
from featurestore.model.records import Key, Record

Event = Literal["begin", "reminder", "end"]
SCHEMES = ("webhook+https", "webhook+http", "smtp", "smtps", "command", "log")
_EVENT_VERBS: Mapping[str, str] = {"begin": "began", "reminder": "continues", "end": "ended"}
_MAX_LINES = 40


@dataclass(frozen=True)
class Channel:
    """A destination of alert messages; ``secret`` is a reference to a secret, never its value."""

    name: str
    uri: str
    secret: str | None = None

    __repr__ = display.record_repr

    @property
    def scheme(self) -> str:
        """The channel type: "webhook+https", "smtp", "command" or "log"."""
        return uri_scheme(self.uri)


# The payload of webhooks; Slack displays its ``text``.
_ALERT_KEYS = ("id", "event", "job", "families", "lines", "timestamp", "title", "text")


@dataclass(frozen=True)
class Alert(Record, keys=_ALERT_KEYS):
    """A message about one job: the findings that started, continued or ended at one time."""

    id: str
    event: Event
    job: str
    families: tuple[str, ...]
    lines: tuple[str, ...]
    timestamp: Annotated[datetime, Key("at")]

    __repr__ = display.record_repr

    @property
    def title(self) -> str:
        """The subject line."""
        # The title becomes a mail header, which must not contain line breaks.
        return escape_line(f"{self.job}: {', '.join(self.families)} {_EVENT_VERBS[self.event]}")

    @property
    def text(self) -> str:
        """The message text, with at most 40 findings."""
        shown = [f"- {escape_controls(line)}" for line in self.lines[:_MAX_LINES]]
        if len(self.lines) > _MAX_LINES:
            shown.append(f"- and {len(self.lines) - _MAX_LINES} more")
        return "\n".join([self.title, *shown])

    @classmethod
    def from_text(cls, text: str) -> Alert:
        """Parse an alert from JSON; raise MalformedJson if it is invalid."""
        with translate_parse_errors("outbox message"):
            return cls.from_json(json.loads(text))


def uri_scheme(uri: str) -> str:
    """Return the scheme of a channel URI.

    >>> uri_scheme("webhook+https://hooks.example.com/T1"), uri_scheme("log")
    ('webhook+https', 'log')
    """
    return uri.partition(":")[0]


def validate_channel(name: str, uri: str, secret: str | None) -> Channel:
    """Return a channel with a valid URI; raise InvalidArgument for an invalid URI."""
    check_name(name, noun="alert channel")
    scheme = uri_scheme(uri)
    if scheme not in SCHEMES:
        raise InvalidArgument(
            f"Unknown alert channel scheme {escape_line(scheme)!r}. Available: "
            f"{', '.join(SCHEMES)}.",
            hint='"webhook+https://hooks.example.com/path", "smtp://mail.example.com:587/?to=me@x.org"',
        )
    # The channel is stored, so ``secret`` must be a reference and not the secret itself.
    if secret is not None:
        parse_secret(secret)
    # The program is run without a shell and by any process that sends alerts, so the path must
    # not depend on its working directory.
    if scheme == "command" and not uri.removeprefix("command:").startswith("/"):
        raise InvalidArgument(
            "A command channel needs an absolute path.", hint='"command:/usr/local/bin/notify"'
        )
    if scheme == "log" and uri != "log":
        raise InvalidArgument(f"{escape_line(uri)!r} is not a valid channel URI.", hint='uri="log"')
    if "://" in uri:
        _check_address(uri)
    return Channel(name, uri, secret)


def _check_address(uri: str) -> None:
    """Check the host, port, password and recipient of a channel URI."""
    from urllib.parse import parse_qs, unquote, urlsplit

    # Recipients and senders become headers of a mail, where a line break would begin another one.
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in unquote(uri)):
        raise InvalidArgument(
            "The channel's URI contains a control character.",
            hint='"smtp://user@mail.example.com:587/?to=me@example.com"',
        )
    try:
        address = urlsplit(uri)
        # ``port`` is parsed when it is read, and raises ValueError for an invalid port.
        port_is_valid = address.port is None or address.port > 0
    except ValueError:
        port_is_valid = False
    if not port_is_valid or not address.hostname:
        raise InvalidArgument(
            "The channel's URI has no host or an invalid port.",
            hint='"webhook+https://hooks.example.com/path"',
        )
    # Channels are listed with their URIs, so a password in one would be visible.
    if address.password is not None:
        raise InvalidArgument(
            "The URI of a channel must not contain a password.",
            hint='secret="env:SMTP_PASSWORD"',
        )
    if address.scheme.startswith("smtp") and not parse_qs(address.query).get("to"):
        raise InvalidArgument(
            "An SMTP channel needs a recipient.",
            hint='"smtp://user@mail.example.com:587/?to=me@example.com"',
        )
