"""Alerts: one at the start, one at the end, none lost despite receiver failures."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import featurestore
from featurestore.alerts.channels import SECONDS, NotDelivered, deliver, grant_channel
from featurestore.alerts.incidents import send_waiting
from featurestore.errors import FeatureStoreError, InvalidJob, JobFailed, RegistryError
from featurestore.jobs.scheduler import Options
from featurestore.model.alert import Alert, Channel
from featurestore.model.job import Alerts, JobSpec, MonitorWork, Schedule
from featurestore.model.monitor import MonitorSpec
from featurestore.registry import alerts
from featurestore.store import FeatureStore
from tests.monitoring.conftest import DAY, DAYS, NOW, Clock, sales
from tests.monitoring.receivers import (
    ENDLESS_BODIES,
    MAIL_RESPONSES,
    PROGRAMS,
    TLS_RESPONSES,
    WEB_RESPONSES,
    mail_server,
    tcp_server,
    web_server,
)

Define = Callable[..., str]


def put(store: FeatureStore, *, channel: str = "ops", lines: int = 1) -> None:
    """Add a message to the outbox."""
    actual = {"drift": [f"feature {number} drifted" for number in range(lines)]}
    with store.session.registry.transaction() as connection:
        alerts.enqueue_alert(connection, "begin", "watch", actual, [channel])


@pytest.fixture
def quiet(tmp_path: Path, clock: Clock) -> FeatureStore:
    """An empty store."""
    return featurestore.connect(tmp_path / "quiet", engine="duckdb")


def thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_alert_history_command_lists_messages(
    quiet: FeatureStore, command_line: Callable[..., Any]
) -> None:
    put(quiet)
    location = ["--location", quiet.location, "--output", "json"]
    (message,) = json.loads(command_line(*location, "alert", "history").out)
    assert message["at"] == NOW.isoformat()
    assert (message["channel"], message["state"]) == ("ops", "waiting")


# -- what is worth a message ----------------------------------------------------------------------


def test_alert_sent_at_begin_and_end_with_reminders(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    with web_server() as received:
        shop.add_alert_channel("ops", received.uri)
        define("alert='ops', remind='2d'")
        shop.backfill_job("watch", NOW - 3 * DAY, NOW)
        assert received.messages == []
        for day in range(1, 6):  # no rows for five days, checked twice a day
            clock.now = NOW + day * DAY
            shop.check_monitor("watch")
            clock.now += timedelta(hours=12)
            shop.check_monitor("watch")
        events = [message["event"] for message in received.messages]
        assert events == ["begin", "reminder", "reminder"]
        shop.insert_into_featuregroup(sales(DAYS, 6), "sales")
        clock.now = NOW + 6 * DAY
        shop.check_monitor("watch")
        assert [message["event"] for message in received.messages][3:] == ["end"]
    assert received.messages[0]["families"] == ["volume"]
    assert "no rows" in received.messages[0]["text"] or "0 rows" in received.messages[0]["text"]


def test_alert_combines_forty_drifting_features(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    wide = sales(DAYS - 20, 20)
    for number in range(40):
        wide = wide.append_column(f"x{number}", wide["late"])
    shop.create_featuregroup(wide, "sales", primary_key="id", event_time="at", version=2)
    with web_server() as received:
        shop.add_alert_channel("ops", received.uri)
        define("alert='ops', confirm=1, volume=None, baseline=featurestore.baseline(last='14d')")
        moved = sales(DAYS, 1)
        late = moved["late"].to_numpy() + 5.0
        for number in range(40):
            moved = moved.append_column(f"x{number}", [late])
        shop.insert_into_featuregroup(moved, "sales")
        clock.now = NOW + DAY
        shop.check_monitor("watch")
    (message,) = received.messages
    assert message["families"] == ["drift", "values"] or message["families"] == ["drift"]
    actual = " ".join(message["lines"])
    assert [number for number in range(40) if f"x{number}: " not in actual] == []


def test_backfill_of_past_windows_sends_no_alert(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    with web_server() as received:
        shop.add_alert_channel("ops", received.uri)
        define("alert='ops'")
        clock.now = NOW + 5 * DAY
        shop.backfill_job("watch", NOW, NOW + 3 * DAY)
        assert {report.state for report in shop.get_monitor_history("watch")} == {"alarm"}
    assert received.messages == []


def test_failing_job_sends_alert_once_and_on_recovery(
    shop: FeatureStore, tmp_path: Path, clock: Clock
) -> None:
    file = tmp_path / "jobs.py"
    file.write_text(
        "import featurestore, os\n"
        "@featurestore.job(featuregroup='totals', event_time='day', schedule='0 0 * * *', "
        "retries=0, alert='ops')\n"
        "def totals(window):\n"
        "    assert 'BROKEN' not in os.environ, 'it broke'\n"
        "    return [{'n': 1}]\n"
    )
    with web_server() as received:
        shop.add_alert_channel("ops", received.uri)
        shop.register_jobs(file)
        os.environ["BROKEN"] = "yes"
        try:
            for _ in range(3):
                with pytest.raises(JobFailed):
                    shop.run_job("totals")
        finally:
            del os.environ["BROKEN"]
        assert [message["event"] for message in received.messages] == ["begin"]
        assert "it broke" in received.messages[0]["text"]
        shop.run_job("totals")
        assert [message["event"] for message in received.messages] == ["begin", "end"]


@pytest.mark.parametrize("policy", ["strict", "warn"])
def test_validation_failures_send_alert_for_every_policy(
    shop: FeatureStore, tmp_path: Path, policy: str
) -> None:
    file = tmp_path / "jobs.py"
    file.write_text(
        "import featurestore\n"
        "limits = {'column': 'n', 'max_value': 3}\n"
        "@featurestore.job(featuregroup='totals', event_time='day', schedule='0 0 * * *', "
        f"alert='ops', validation={policy!r}, "
        "expectations=[{'type': 'expect_column_max_to_be_between', 'kwargs': limits}])\n"
        "def totals(window):\n"
        "    return [{'n': 7}]\n"
    )
    with web_server() as received:
        shop.add_alert_channel("ops", received.uri)
        shop.register_jobs(file)
        if policy == "strict":
            with pytest.raises(JobFailed):
                shop.run_job("totals")
        else:
            shop.run_job("totals")
    assert [message["families"] for message in received.messages] == [["validation"]]


# -- how it gets there ----------------------------------------------------------------------------


def test_webhook_receives_json_with_text_and_secret(
    quiet: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "t0ken")
    with web_server() as received:
        quiet.add_alert_channel("ops", received.uri, secret="env:HOOK")
        put(quiet)
        assert quiet.send_alerts() == 1
        assert quiet.send_alerts() == 0
    assert received.headers[0]["Authorization"] == "Bearer t0ken"
    assert received.messages[0]["text"] == "watch: drift began\n- feature 0 drifted"
    registry_bytes = Path(quiet.location, "registry.db").read_bytes()
    assert b"t0ken" not in registry_bytes


@pytest.mark.parametrize("behavior", ["fails", "elsewhere", "nobody"])
def test_rejected_alert_is_sent_again_later(
    quiet: FeatureStore, clock: Clock, behavior: str
) -> None:
    with web_server() as received:
        received.behavior = behavior
        uri = received.uri
        if behavior == "nobody":
            uri = "webhook+http://127.0.0.1:9/"
        quiet.add_alert_channel("ops", uri)
        put(quiet)
        assert quiet.send_alerts() == 0
        tried = len(received.messages)
        assert quiet.send_alerts() == 0
        assert len(received.messages) == tried  # not before its time
        (waits,) = quiet.get_alerts()
        assert (waits.attempts, waits.delivered) == (1, None)
        assert waits.error
        received.behavior = "well"
        quiet.add_alert_channel("ops", received.uri)
        clock.now += timedelta(seconds=11)
        assert quiet.send_alerts() == 1
    assert len({message["id"] for message in received.messages}) == 1
    assert received.keys() == [message["id"] for message in received.messages]


def test_hanging_receiver_times_out_and_slow_receiver_succeeds(quiet: FeatureStore) -> None:
    with web_server() as received:
        quiet.add_alert_channel("ops", received.uri)
        put(quiet)
        received.behavior = "hangs"
        start = time.monotonic()
        assert send_waiting(quiet.session, seconds=1.0) == 0
        assert time.monotonic() - start < 8
        (waits,) = quiet.get_alerts()
        assert waits.error == "timed out"
        put(quiet)
        received.behavior = "slow"
        assert quiet.send_alerts() == 1


def running_programs(variable: str) -> list[bytes]:
    """Return the command lines of the processes that have a variable in their environment."""
    command_lines = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                command_lines.append((process / "cmdline").read_bytes())
    return command_lines


def test_bad_receivers_neither_block_nor_fill_memory(
    quiet: FeatureStore, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """About thirty receivers that answer slowly, endlessly or wrongly, all at once."""
    uris = {}
    with ExitStack() as stack:
        for scheme, responses in (
            ("webhook+http://{}/hook", WEB_RESPONSES | ENDLESS_BODIES),
            ("webhook+https://{}/hook", TLS_RESPONSES),
            ("smtp://{}/?to=ops@example.com&starttls=no", MAIL_RESPONSES),
            ("smtps://{}/?to=ops@example.com", TLS_RESPONSES),
        ):
            for name, respond in responses.items():
                port = stack.enter_context(tcp_server(respond))
                uris[f"{scheme} {name}"] = scheme.format(f"127.0.0.1:{port}")
        for name, script in PROGRAMS.items():
            program = tmp_path / name
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
            uris[f"command {name}"] = f"command:{program}"
        alert = Alert(str(tmp_path), "begin", "watch", ("drift",), ("a feature drifted",), NOW)

        def measure(name: str) -> tuple[float, bool]:
            channel = Channel(f"ops_{list(uris).index(name)}", uris[name])
            grant_channel(quiet.session, channel)
            start = time.monotonic()
            limit = SECONDS if name.endswith(tuple(ENDLESS_BODIES)) else 1.0
            try:
                deliver(channel, alert, location=quiet.location, seconds=limit)
            except NotDelivered:
                return time.monotonic() - start, False
            return time.monotonic() - start, True

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with ThreadPoolExecutor(len(uris)) as pool:
            outcomes = dict(zip(uris, pool.map(measure, uris), strict=True))
        # The threads of overdue deliveries end soon after their connections are closed.
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and "alert" in thread_names():
            time.sleep(0.05)
        assert "alert" not in thread_names()
    assert running_programs(f"FEATURESTORE_ALERT_ID={tmp_path}") == []
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert kilobytes < 150 << 10
    for name, (seconds, is_delivered) in outcomes.items():
        with subtests.test(name):
            assert seconds < SECONDS
            assert is_delivered == name.endswith(tuple(ENDLESS_BODIES))


def test_messages_to_hanging_receiver_do_not_delay_others(
    quiet: FeatureStore, clock: Clock
) -> None:
    with tcp_server(WEB_RESPONSES["slow header"]) as port, web_server() as received:
        quiet.add_alert_channel("hangs", f"webhook+http://127.0.0.1:{port}/")
        quiet.add_alert_channel("ops", received.uri)
        for _ in range(60):
            put(quiet, channel="hangs")
        put(quiet)
        calls = 0
        while not received.messages and calls < 5:
            send_waiting(quiet.session, seconds=0.3)
            clock.now += timedelta(seconds=1)
            calls += 1
    assert calls <= 2


def test_scheduler_polls_while_receiver_hangs(
    quiet: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls = []
    with tcp_server(WEB_RESPONSES["slow header"]) as port:
        quiet.add_alert_channel("ops", f"webhook+http://127.0.0.1:{port}/")
        put(quiet)
        scheduler = quiet.scheduler(Options(every=0.05))
        run_due = scheduler.run_due

        def count_poll() -> None:
            run_due()
            polls.append(time.monotonic())
            if len(polls) == 10:
                scheduler.stop()

        monkeypatch.setattr(scheduler, "run_due", count_poll)
        start = time.monotonic()
        scheduler.run()
        # The message is still being sent.
        assert time.monotonic() - start < SECONDS
        assert quiet.get_alerts()[0].attempts == 0


def test_alert_is_sent_again_after_registry_failure(
    quiet: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RegistryError("The database does not respond.")

    with web_server() as received:
        quiet.add_alert_channel("ops", received.uri)
        put(quiet)
        with monkeypatch.context() as patched:
            patched.setattr(alerts, "record_delivery", fail)
            assert quiet.send_alerts() == 0
        assert quiet.send_alerts() == 1
    assert len(set(received.keys())) == 1


def test_mail_alert_is_encrypted_and_retried_after_refusal(
    quiet: FeatureStore, tmp_path: Path, clock: Clock
) -> None:
    with mail_server(tmp_path) as (mails, port, certificate):
        mails.refuse = True
        uri = f"smtp://localhost:{port}/?to=ops@example.com&from=store@example.com"
        quiet.add_alert_channel("ops", f"{uri}&cafile={certificate}")
        put(quiet)
        assert quiet.send_alerts() == 0
        assert quiet.get_alerts()[0].error == "the mail server responded with code 451"
        mails.refuse = False
        clock.now += timedelta(minutes=1)
        assert quiet.send_alerts() == 1
        text = mails.envelopes[0].content.decode()
        assert (mails.encrypted, mails.envelopes[0].rcpt_tos) == ([True], ["ops@example.com"])
        assert "Subject: watch: drift began" in text
        assert f"Message-ID: <{quiet.get_alerts()[0].id}@featurestore>" in text
        quiet.add_alert_channel("ops", uri)  # an untrusted certificate
        put(quiet)
        assert quiet.send_alerts() == 0
    assert len(mails.envelopes) == 1


def test_command_channel_gets_message_without_shell(quiet: FeatureStore, tmp_path: Path) -> None:
    program = tmp_path / "tell it; touch owned"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/told.json\n")
    program.chmod(0o755)
    quiet.add_alert_channel("ops", f"command:{program}")
    put(quiet, lines=50)
    assert quiet.send_alerts() == 1
    document = json.loads((tmp_path / "told.json").read_text())
    assert len(document["lines"]) == 50
    assert document["text"].endswith("- and 10 more")
    program.write_text("#!/bin/sh\nexit 3\n")
    put(quiet)
    assert quiet.send_alerts() == 0
    assert "the command exited with code 3" in [message.error for message in quiet.get_alerts()]


def test_log_channel_writes_alerts(quiet: FeatureStore, caplog: pytest.LogCaptureFixture) -> None:
    quiet.add_alert_channel("ops", "log")
    put(quiet)
    with caplog.at_level(logging.INFO, logger="featurestore.alerts"):
        assert quiet.send_alerts() == 1
    assert "watch: drift began" in caplog.text


# -- what a store from elsewhere may not do -------------------------------------------------------


def test_channel_from_foreign_registry_is_not_used(
    quiet: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "steal"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/stolen\n")
    program.chmod(0o755)
    with web_server() as received:
        quiet.add_alert_channel("ops", received.uri)
        put(quiet)
        with quiet.session.registry.transaction() as connection:
            changed = sa.text("update alert_channels set uri = :uri, secret = 'env:HOME'")
            connection.execute(changed, {"uri": f"command:{program}"})
        assert quiet.send_alerts() == 0
        with quiet.session.registry.transaction() as connection:
            uri = {"uri": received.uri + "/other"}
            connection.execute(sa.text("update alert_channels set uri = :uri"), uri)
        assert quiet.send_alerts() == 0
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
        with quiet.session.registry.transaction() as connection:
            connection.execute(
                sa.text("update alert_channels set uri = :uri, secret = null"),
                {"uri": received.uri},
            )
        assert quiet.send_alerts() == 0
        quiet.add_alert_channel("ops", received.uri)
        assert quiet.send_alerts() == 1
    assert not (tmp_path / "stolen").exists()
    assert len(received.messages) == 1


@pytest.mark.parametrize(
    ("uri", "secret", "words"),
    [
        ("slack://hooks", None, "Unknown alert channel scheme 'slack'"),
        ("webhook+https://", None, "no host"),
        ("webhook+http://x:notaport/", None, "port"),
        ("smtp://mail.example.com", None, "needs a recipient"),
        ("smtp://me:hunter2@mail.example.com/?to=a@b.c", None, "password"),
        ("command:tell", None, "absolute"),
        ("log", "hunter2", "reference"),
    ],
)
def test_add_alert_channel_invalid_raises_without_password(
    quiet: FeatureStore, uri: str, secret: str | None, words: str
) -> None:
    with pytest.raises(FeatureStoreError, match=words) as error:
        quiet.add_alert_channel("ops", uri, secret=secret)
    assert "hunter2" not in str(error.value)
    assert quiet.get_alert_channels() == []


def test_job_with_unknown_alert_channel_raises(define: Define) -> None:
    with pytest.raises(InvalidJob, match="channels"):
        define("alert='ops'")


# -- crashes --------------------------------------------------------------------------------------

SEND = """
import sys, featurestore
store = featurestore.connect(sys.argv[1], engine="duckdb")
print("ready", flush=True)
sys.stdin.readline()
store.send_alerts()
"""


def test_alert_is_delivered_once_after_sender_kill(quiet: FeatureStore) -> None:
    with web_server() as received:
        quiet.add_alert_channel("ops", received.uri)
        for attempt in range(3):
            put(quiet)
            received.behavior = "hangs" if attempt else "well"
            child = subprocess.Popen(
                [sys.executable, "-c", SEND, quiet.location],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdout.readline()
            if attempt:  # killed while sending the message, or before claiming it
                child.stdin.write("go\n")
                child.stdin.flush()
                until = time.monotonic() + 20
                while not received.messages[attempt - 1 :] and time.monotonic() < until:
                    time.sleep(0.01)
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdin.close()
            child.stdout.close()
            received.behavior = "well"
            received.stop.set()
            received.stop.clear()
            assert quiet.send_alerts() == 1
            assert quiet.send_alerts() == 0
    alerts = quiet.get_alerts()
    assert all(alert.delivered for alert in alerts)
    assert {message["id"] for message in received.messages} == {alert.id for alert in alerts}
    assert received.keys() == [message["id"] for message in received.messages]


def test_incident_and_alert_are_recorded_atomically(quiet: FeatureStore) -> None:
    from featurestore.alerts import incidents

    spec = JobSpec(
        "watch",
        Schedule("0 0 * * *"),
        Alerts(("ops",)),
        MonitorWork(target="watch", inputs={}, watched=MonitorSpec("sales")),
    )

    def fail() -> None:
        with quiet.session.registry.transaction() as connection:
            incidents.update_incidents(connection, spec, {"drift": ["x"]})
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert quiet.get_alerts() == []
    with quiet.session.registry.transaction() as connection:
        assert alerts.open_incidents(connection, "watch") == {}
