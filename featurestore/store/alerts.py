"""Calls on alerts: channels, and what was sent to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    from featurestore.model.alert import Channel
    from featurestore.registry.alerts import Outgoing

__all__ = ["AlertCalls"]


class AlertCalls(StoreBase):
    """The calls on alerts."""

    def add_alert_channel(self, name: str, uri: str, *, secret: str | None = None) -> Channel:
        """Add or change a channel for alerts of jobs (``alert=[name]``); return it.

        It is used only on machines where it was added, since a registry from another machine must
        not decide where secrets are sent or which command runs.

        Args:
            name: Name of the channel.
            uri: "webhook+https://..." (JSON, with a ``text`` that Slack shows),
                "smtp://user@host:587/?to=...&from=..." (STARTTLS), "smtps://...", "command:/path"
                (gets the JSON on standard input) or "log".
            secret: "env:NAME" or "file:path": the bearer token of a webhook, the password of a mail
                server.

        >>> store.add_alert_channel("ops", "log").scheme
        'log'
        """
        from featurestore.alerts.channels import add_channel

        return add_channel(self._session, name, uri, secret=secret)

    def get_alert_channels(self) -> list[Channel]:
        """Return every channel, by name.

        >>> channel = store.add_alert_channel("ops", "log")
        >>> [each.name for each in store.get_alert_channels()]
        ['ops']
        """
        from featurestore.registry import alerts

        with self._session.registry.reading() as connection:
            return alerts.channels(connection)

    def remove_alert_channel(self, name: str) -> None:
        """Remove a channel; messages on their way to it are not sent.

        >>> channel = store.add_alert_channel("ops", "log")
        >>> store.remove_alert_channel("ops")
        >>> store.get_alert_channels()
        []
        """
        from featurestore.alerts.channels import remove_channel

        remove_channel(self._session, name)

    def get_alerts(self, *, limit: int | None = 100) -> list[Outgoing]:
        """Return messages, newest first: to whom, how often tried, when delivered, why not.

        >>> store.get_alerts()
        []
        """
        from featurestore.registry import alerts

        with self._session.registry.reading() as connection:
            return alerts.messages(connection, limit=limit)

    def send_alerts(self) -> int:
        """Send messages that wait, and return how many arrived; schedulers do it by themselves.

        >>> store.send_alerts()
        0
        """
        from featurestore.alerts.outbox import send_waiting

        return send_waiting(self._session)
