"""Messages to people: that something began, goes on, or ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from featurestore.errors import InvalidArgument
from featurestore.model.json_object import parsing
from featurestore.model.names import check_name
from featurestore.model.printable import printable, printable_line
from featurestore.model.secrets import parse_secret
from featurestore.model.times import parse_moment

Event = Literal["begin", "reminder", "end"]
SCHEMES = ("webhook+https", "webhook+http", "smtp", "smtps", "command", "log")
_WORDS: Mapping[str, str] = {"begin": "began", "reminder": "goes on", "end": "ended"}
_MOST_LINES = 40


@dataclass(frozen=True)
class Channel:
    """Where messages go; ``secret`` is a reference to a secret, never the secret."""

    name: str
    uri: str
    secret: str | None = None

    @property
    def scheme(self) -> str:
        """What kind of channel it is: "webhook+https", "smtp", "command", "log"."""
        return scheme_of(self.uri)


@dataclass(frozen=True)
class Alert:
    """One message about one job, everything that began, goes on or ended at once."""

    id: str
    event: Event
    job: str
    families: tuple[str, ...]
    lines: tuple[str, ...]
    at: datetime

    @property
    def title(self) -> str:
        """One line that says it."""
        return printable_line(f"{self.job}: {', '.join(self.families)} {_WORDS[self.event]}")

    @property
    def text(self) -> str:
        """The whole message; of very many findings the worst."""
        shown = [f"- {printable(line)}" for line in self.lines[:_MOST_LINES]]
        if len(self.lines) > _MOST_LINES:
            shown.append(f"- and {len(self.lines) - _MOST_LINES} more")
        return "\n".join([self.title, *shown])

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that webhooks get; ``text`` is what Slack shows."""
        return {
            "id": self.id,
            "event": self.event,
            "job": self.job,
            "families": list(self.families),
            "lines": list(self.lines),
            "at": self.at.isoformat(),
            "title": self.title,
            "text": self.text,
        }

    @classmethod
    def from_text(cls, text: str) -> Alert:
        """Return the message of a JSON text; MalformedJson when it is none."""
        with parsing("a message of the outbox"):
            data = json.loads(text)
            event = data["event"]
            if event not in _WORDS:
                raise ValueError(event)
            return cls(
                id=str(data["id"]),
                event=event,
                job=str(data["job"]),
                families=tuple(map(str, data["families"])),
                lines=tuple(map(str, data["lines"])),
                at=parse_moment(data["at"], warn=False),
            )


def scheme_of(uri: str) -> str:
    """Return the scheme of a channel's URI.

    >>> scheme_of("webhook+https://hooks.example.com/T1"), scheme_of("log")
    ('webhook+https', 'log')
    """
    return uri.partition(":")[0]


def checked_channel(name: str, uri: str, secret: str | None) -> Channel:
    """Return a channel if messages could go there, else raise InvalidArgument."""
    check_name(name, noun="alert channel")
    scheme = scheme_of(uri)
    if scheme not in SCHEMES:
        raise InvalidArgument(
            f"{printable_line(scheme)!r} is no kind of alert channel; there are "
            f"{', '.join(SCHEMES)}.",
            hint='"webhook+https://hooks.example.com/path", "smtp://mail.example.com:587/?to=me@x.org"',
        )
    if secret is not None:
        parse_secret(secret)
    if scheme == "command" and not uri.removeprefix("command:").startswith("/"):
        raise InvalidArgument(
            "A command is named by its absolute path.", hint='"command:/usr/local/bin/tell"'
        )
    if scheme == "log" and uri != "log":
        raise InvalidArgument(f"{printable_line(uri)!r} is no channel.", hint='uri="log"')
    if "://" in uri:
        _check_address(uri)
    return Channel(name, uri, secret)


def _check_address(uri: str) -> None:
    from urllib.parse import parse_qs, urlsplit

    try:
        found = urlsplit(uri)
        port_is_valid = found.port is None or found.port > 0
    except ValueError:
        port_is_valid = False
    if not port_is_valid or not found.hostname:
        raise InvalidArgument(
            "The channel's URI has no host, or no valid port.",
            hint='"webhook+https://hooks.example.com/path"',
        )
    if found.password is not None:
        raise InvalidArgument(
            "A password does not belong into the URI of a channel.",
            hint='secret="env:SMTP_PASSWORD"',
        )
    if found.scheme.startswith("smtp") and not parse_qs(found.query).get("to"):
        raise InvalidArgument(
            "An SMTP channel needs somebody to write to.",
            hint='"smtp://user@mail.example.com:587/?to=me@example.com"',
        )
