"""Which partitions a runner reads, where several runners share a topic.

The member of the group fetches nothing: it only hears which partitions are its own. What it is told
may be late, as when another runner is taken for dead; that costs time, since a commit that came
second lands nothing, and no record.
"""

from __future__ import annotations

import time
from typing import Any

from featurestore.plugins.source import SourceConfig
from featurestore_connectors.kafka.settings import client_library, client_settings, translated

# Seconds that a new member waits for its partitions; a dead one's are free after the session.
_WAIT = 30.0
_SESSION = 6.0


class Membership:
    """A member of a consumer group, until it is closed."""

    def __init__(self, config: SourceConfig, group: str, topic: str) -> None:
        self._config = config
        self._own: frozenset[int] = frozenset()
        self._told = False
        settings = {
            **client_settings(config),
            "group.id": group,
            "enable.auto.commit": False,
            "session.timeout.ms": int(_SESSION * 1000),
            "heartbeat.interval.ms": int(_SESSION * 1000 / 3),
            "partition.assignment.strategy": "range",
        }
        with translated(config):
            self._consumer = client_library().Consumer(settings)
            self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)

    def partitions(self) -> frozenset[int]:
        """Return the partitions of this member; at first those are waited for."""
        begun = time.monotonic()
        with translated(self._config):
            self._consumer.poll(0)
            while not self._told and time.monotonic() - begun < _WAIT:
                self._consumer.poll(0.1)
        return self._own

    def close(self) -> None:
        """Leave the group, whose other members share the partitions then."""
        self._consumer.close()

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        consumer.assign(partitions)
        consumer.pause(partitions)
        self._own = frozenset(each.partition for each in partitions)
        self._told = True

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        self._own = self._own - frozenset(each.partition for each in partitions)
        self._told = False
        consumer.unassign()
