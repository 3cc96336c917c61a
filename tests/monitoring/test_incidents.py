"""Messages of incidents: compared with a plain model over random sequences of evaluations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import featurestore
from featurestore.alerts import incidents
from featurestore.jobs.monitors import run as monitor_run
from featurestore.model.alert import Alert
from featurestore.model.finding import Finding
from featurestore.model.job import Alerts, JobSpec, MonitorWork, Schedule
from featurestore.model.monitor import MonitorSpec
from featurestore.model.monitor_report import MonitorReport
from featurestore.model.times import Window
from featurestore.registry import alerts
from featurestore.store import FeatureStore
from tests.monitoring.conftest import DAY, NOW, Clock

FAMILIES = ("drift", "nulls", "metric")
REMIND = timedelta(hours=30)
STATES = ("alarm", "suspect", "unknown", "within", "back")
SPEC = JobSpec(
    "watch",
    Schedule("0 0 * * *"),
    Alerts(("ops",), REMIND),
    MonitorWork(target="sales", inputs={}, watched=MonitorSpec("sales")),
)


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> FeatureStore:
    """An empty store."""
    return featurestore.connect(tmp_path / "store", engine="duckdb")


@dataclass
class PlainModel:
    """The expected messages: dictionaries instead of a registry."""

    began: dict[str, datetime] = field(default_factory=dict)
    last_message: datetime = NOW

    def evaluate(self, states: dict[str, str], now: datetime) -> list[tuple[str, set[str]]]:
        """Return the event and families of each message of an evaluation."""
        started = {name for name in states if states[name] == "alarm" and name not in self.began}
        ended = {name for name in states if states[name] == "back" and name in self.began}
        continuing = {name for name in self.began if states[name] in STATES[:3]}
        messages = [("begin", started), ("end", ended)]
        if not started and not ended and now - self.last_message >= REMIND:
            messages = [("reminder", continuing)]
        messages = [(event, names) for event, names in messages if names]
        if messages:
            self.last_message = now
        self.began |= dict.fromkeys(started, now)
        for name in ended:
            del self.began[name]
        return messages


def report_of(states: dict[str, str], window: Window) -> MonitorReport:
    """Return a report whose findings have the states."""
    findings = [
        Finding(
            name,  # type: ignore[arg-type]
            "x",
            "ks",
            1.0,
            None,
            2.0,
            out=state in ("alarm", "suspect"),
            alarm=state == "alarm",
        )
        for name, state in states.items()
        if state != "unknown"
    ]
    return MonitorReport("watch", "sales", 1, 1, window, 1, tuple(findings))


def queued(store: FeatureStore, before: set[str]) -> list[Alert]:
    """Return the messages that are not in ``before``."""
    with store.session.registry.reading() as connection:
        messages = alerts.messages(connection)
    return [message.alert for message in messages if message.id not in before]


def check_sequence(store: FeatureStore, clock: Clock, seed: int, *, deliver: bool) -> int:
    """Compare the messages of a random sequence with the model; return their number."""
    rng = random.Random(seed)
    clock.now = NOW
    model = PlainModel()
    recorded_ids: set[str] = set()
    for _ in range(25):
        clock.now += timedelta(hours=rng.choice([1, 6, 24, 40]))
        # States last, so that reminders become due.
        end = clock.now.replace(hour=0)
        weights = rng.choice([(6, 1, 1, 1, 1), (1, 1, 1, 1, 6), (1, 2, 1, 3, 1)])
        states = {name: rng.choices(STATES, weights)[0] for name in FAMILIES}
        back = frozenset(name for name in FAMILIES if states[name] == "back")
        expected = model.evaluate(states, clock.now)
        with store.session.registry.transaction() as connection:
            report = report_of(states, Window(end - DAY, end))
            monitor_run._update_incidents(connection, SPEC, report, back, confirm=2)
        messages = queued(store, recorded_ids)
        actual = {(message.event, message.families) for message in messages}
        assert {(event, frozenset(names)) for event, names in actual} == {
            (event, frozenset(names)) for event, names in expected
        }
        # An incident that goes on has a line in each message about its job.
        for message in messages:
            for name in model.began.keys() - set(message.families):
                assert any(line.startswith(f"{name} continues") for line in message.lines)
        recorded_ids |= {message.id for message in messages if deliver}
        if not deliver:
            waiting = queued(store, set())
            assert sum(message.event == "reminder" for message in waiting) <= 1
            if messages_of(expected, "end"):
                assert not any(message.event == "reminder" for message in waiting)
            recorded_ids = {message.id for message in waiting}
    return len(recorded_ids)


def messages_of(messages: Sequence[tuple[str, set[str]]], event: str) -> list[set[str]]:
    return [names for message_event, names in messages if message_event == event]


@pytest.mark.parametrize("seed", range(4))
def test_messages_of_random_states_equal_model(
    store: FeatureStore, clock: Clock, seed: int
) -> None:
    assert check_sequence(store, clock, seed, deliver=seed % 2 == 0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4, 104))
def test_messages_of_many_random_states_equal_model(
    store: FeatureStore, clock: Clock, seed: int
) -> None:
    assert check_sequence(store, clock, seed, deliver=seed % 2 == 0)


def test_recovered_run_sends_no_reminder_of_open_incident(
    store: FeatureStore, clock: Clock
) -> None:
    drift = {"drift": ["x: distribution shifted"]}
    with store.session.registry.transaction() as connection:
        incidents.update_incidents(connection, SPEC, drift, families=["drift"])
        incidents.update_incidents(
            connection, SPEC, {incidents.FAILURE: ["it broke"]}, families=[incidents.FAILURE]
        )
    first_messages = {message.id for message in queued(store, set())}
    clock.now += 2 * REMIND
    # A run that succeeds records its findings first, and then ends the failure.
    with store.session.registry.transaction() as connection:
        incidents.update_incidents(connection, SPEC, drift, families=["drift"])
        incidents.update_incidents(connection, SPEC, {}, families=[incidents.FAILURE])
    (message,) = queued(store, first_messages)
    assert (message.event, message.families) == ("end", ("failure",))
    assert message.lines[1:] == (f"drift continues, since {NOW.isoformat()}",)
