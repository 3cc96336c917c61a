"""Assignment of partitions to runners that share a topic.

The group member fetches nothing: it only receives its assignment. This may be late, as when another
runner is presumed dead; that costs time but no record, since the second commit of an offset fails.
"""

from __future__ import annotations

import time
from typing import Any

from featurestore.plugins.source import SourceConfig
from featurestore_connectors.kafka.settings import client_library, client_settings, kafka_errors

# Seconds that a new member waits for its partitions; a dead member's are free after the session.
_POLL_SECONDS = 30.0
_SESSION = 6.0


class Membership:
    """A member of a consumer group until it is closed."""

    def __init__(self, config: SourceConfig, group: str, topic: str) -> None:
        self._config = config
        self._partitions: frozenset[int] = frozenset()
        self._has_assignment = False
        settings = {
            **client_settings(config),
            "group.id": group,
            "enable.auto.commit": False,
            "session.timeout.ms": int(_SESSION * 1000),
            "heartbeat.interval.ms": int(_SESSION * 1000 / 3),
            "partition.assignment.strategy": "range",
        }
        with kafka_errors(config):
            self._consumer = client_library().Consumer(settings)
            self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)

    def partitions(self) -> frozenset[int]:
        """Return the partitions of this member; the first call waits for them."""
        started = time.monotonic()
        with kafka_errors(self._config):
            self._consumer.poll(0)
            while not self._has_assignment and time.monotonic() - started < _POLL_SECONDS:
                self._consumer.poll(0.1)
        return self._partitions

    def close(self) -> None:
        """Leave the group; its other members take over the partitions."""
        self._consumer.close()

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        consumer.assign(partitions)
        consumer.pause(partitions)
        self._partitions = frozenset(each.partition for each in partitions)
        self._has_assignment = True

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        self._partitions = self._partitions - frozenset(each.partition for each in partitions)
        self._has_assignment = False
        consumer.unassign()
