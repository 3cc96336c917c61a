"""A lasting change stays an alarm until values return or a person accepts it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from featurestore.cli.main import app
from featurestore.errors import InvalidArgument, JobNotFound
from featurestore.registry import audit_log
from featurestore.store import FeatureStore
from tests.monitoring.changes import CHANGE, END, JUDGED, judge_all, profile, source, watched_by
from tests.monitoring.conftest import DAY, DAYS, NOW, Clock, sales
from tests.monitoring.receivers import web_server

Define = Callable[..., str]
LAST_14 = "baseline=featurestore.baseline(last='14d'), drift={'psi': 0.2}"
SHIFTED = 8


def states(store: FeatureStore, name: str = "watch") -> list[str]:
    """Return the states of the windows of a monitor, oldest first."""
    return [report.state for report in reversed(store.get_monitor_history(name))]


@pytest.fixture
def shifted(shop: FeatureStore, define: Define, clock: Clock) -> FeatureStore:
    """A store whose amounts shift by 1.5 standard deviations for eight evaluated days."""
    define(LAST_14)
    shop.insert_into_featuregroup(sales(DAYS, SHIFTED, shift=1.5), "sales")
    clock.now = NOW + SHIFTED * DAY
    shop.backfill_job("watch", NOW, clock.now)
    return shop


def day_by_day(store: FeatureStore, clock: Clock, days: int) -> None:
    """Evaluate the windows of the next days, each on its day."""
    for _ in range(days):
        clock.now += DAY
        store.check_monitor("watch")


def test_lasting_shift_stays_alarm(shifted: FeatureStore) -> None:
    assert states(shifted) == ["suspect"] + ["alarm"] * (SHIFTED - 1)
    alarms = shifted.get_monitor_history("watch")[0].alarms
    assert {(alarm.kind, alarm.subject) for alarm in alarms} == {("drift", "amount")}


def test_accepted_change_starts_new_baseline(shifted: FeatureStore, clock: Clock) -> None:
    accepted = shifted.accept_monitor("watch", note="new prices")
    assert accepted.subjects == {("feature", "amount"): NOW}
    shifted.insert_into_featuregroup(sales(DAYS + SHIFTED, 2, shift=1.5), "sales")
    day_by_day(shifted, clock, 2)
    assert states(shifted)[-2:] == ["ok", "ok"]
    shifted.insert_into_featuregroup(sales(DAYS + SHIFTED + 2, 2), "sales")  # the old values
    day_by_day(shifted, clock, 2)
    assert states(shifted)[-2:] == ["suspect", "alarm"]


def test_accepted_windows_judge_earlier_ones_as_before(shifted: FeatureStore) -> None:
    before = states(shifted)
    shifted.accept_monitor("watch")
    shifted.backfill_job("watch", NOW, NOW + SHIFTED * DAY, resume=False)
    assert states(shifted) == before


def test_accepted_window_joins_baseline(shop: FeatureStore, define: Define, clock: Clock) -> None:
    define(LAST_14)
    shop.insert_into_featuregroup(sales(DAYS, 1, shift=3.0), "sales")
    shop.insert_into_featuregroup(sales(DAYS + 1, 1), "sales")
    clock.now = NOW + 2 * DAY
    shop.backfill_job("watch", NOW, clock.now)
    assert states(shop) == ["suspect", "ok"]
    accepted = shop.accept_monitor("watch", window=NOW)
    assert accepted.subjects == {("feature", "amount"): None}
    with pytest.raises(InvalidArgument, match="no out-of-bounds window"):
        shop.accept_monitor("watch", window=NOW + DAY)


def test_acceptance_without_findings_or_with_invalid_note_raises(
    shop: FeatureStore, define: Define
) -> None:
    define(LAST_14)
    shop.backfill_job("watch", NOW - 3 * DAY, NOW)
    with pytest.raises(InvalidArgument, match="no out-of-bounds window"):
        shop.accept_monitor("watch")
    with pytest.raises(InvalidArgument, match="exclude each other"):
        shop.accept_monitor("watch", window=NOW - DAY, until=NOW)
    with pytest.raises(InvalidArgument, match="2,000"):
        shop.accept_monitor("watch", note="x" * 2001)
    with pytest.raises(JobNotFound):
        shop.accept_monitor("nothing")


def test_incident_ends_when_values_return_for_confirm_windows(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    with web_server() as received:
        shop.add_alert_channel("ops", received.uri)
        define(f"{LAST_14}, alert='ops', remind='3d'")
        shop.insert_into_featuregroup(sales(DAYS, SHIFTED, shift=1.5), "sales")
        day_by_day(shop, clock, SHIFTED)
        events = [message["event"] for message in received.messages]
        assert events == ["begin", "reminder", "reminder"]
        shop.insert_into_featuregroup(sales(DAYS + SHIFTED, 2), "sales")
        day_by_day(shop, clock, 1)
        # One window is not enough.
        assert [message["event"] for message in received.messages] == events
        day_by_day(shop, clock, 1)
        last = received.messages[-1]
        assert last["event"] == "end"
        assert "back within bounds for 2 windows" in last["text"]


def test_incident_ends_by_acceptance_with_author(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    with web_server() as received:
        shop.add_alert_channel("ops", received.uri)
        define(f"{LAST_14}, alert='ops'")
        shop.insert_into_featuregroup(sales(DAYS, 3, shift=1.5), "sales")
        day_by_day(shop, clock, 3)
        shop.accept_monitor("watch", note="new prices")
        last = received.messages[-1]
        assert last["event"] == "end"
        assert "accepted by" in last["text"]
        assert "new prices" in last["text"]
    with shop.session.registry.reading() as connection:
        (entry,) = audit_log.entries(connection, text="accept monitor", limit=None)
    assert (entry.subject, entry.detail["note"]) == ("watch", "new prices")


def test_monitor_without_baseline_left_keeps_its_incident(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    with web_server() as received:
        shop.add_alert_channel("ops", received.uri)
        define(f"{LAST_14}, alert='ops', volume=None")
        shop.insert_into_featuregroup(sales(DAYS, 2, shift=1.5), "sales")
        day_by_day(shop, clock, 5)  # three more days without rows cannot be evaluated
        events = [message["event"] for message in received.messages]
        assert (events[0], set(events[1:])) == ("begin", {"reminder"})


def test_backfill_counts_windows_out_of_bounds(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    define(LAST_14)
    shop.insert_into_featuregroup(sales(DAYS, 4, shift=1.5), "sales")
    clock.now = NOW + 4 * DAY
    runs = shop.backfill_job("watch", NOW - 2 * DAY, clock.now)
    note = runs.note  # type: ignore[attr-defined]
    assert "6 windows evaluated" in note
    assert "4 out of bounds, 3 of them alarms" in note
    assert "newest window only" in note


def test_slow_drift_is_detected_by_anchor(shop: FeatureStore, define: Define, clock: Clock) -> None:
    define("baseline=featurestore.baseline(last='7d'), drift={'psi': 0.2}, volume=None")
    for day in range(40):
        shop.insert_into_featuregroup(sales(DAYS + day, 1, shift=0.03 * day), "sales")
    clock.now = NOW + 40 * DAY
    shop.backfill_job("watch", NOW, clock.now)
    history = shop.get_monitor_history("watch")
    anchored = [alarm for report in history for alarm in report.alarms if alarm.kind == "anchor"]
    assert {alarm.subject for alarm in anchored} == {"amount"}
    assert "anchor" in str(anchored[0])
    accepted = shop.accept_monitor("watch")
    assert ("feature", "amount") in accepted.subjects
    shop.insert_into_featuregroup(sales(DAYS + 40, 2, shift=1.2), "sales")
    day_by_day(shop, clock, 2)
    assert shop.get_monitor_history("watch")[0].finding("anchor", "amount") is None


def test_fixed_baseline_is_replaced_by_accepted_windows(
    shop: FeatureStore, define: Define, clock: Clock
) -> None:
    define("baseline=featurestore.baseline(as_of=1), drift={'psi': 0.2}")
    shop.insert_into_featuregroup(sales(DAYS, 6, shift=1.5), "sales")
    clock.now = NOW + 4 * DAY
    shop.backfill_job("watch", NOW, clock.now)
    assert states(shop)[-1] == "alarm"
    shop.accept_monitor("watch")
    day_by_day(shop, clock, 2)
    assert states(shop)[-2:] == ["ok", "ok"]


def test_accept_command_prints_new_baseline(shifted: FeatureStore) -> None:
    result = CliRunner().invoke(
        app, ["--location", shifted.location, "monitor", "accept", "watch", "--note", "prices"]
    )
    assert result.exit_code == 0, result.output
    assert "amount (new baseline from 2024-03-11" in result.output
    again = CliRunner().invoke(app, ["--location", shifted.location, "monitor", "accept", "watch"])
    assert again.exit_code == 1


# -- simulated series -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["step", "ramp", "doubled nulls", "new categories"])
def test_simulated_change_is_detected_and_stays_alarm(scenario: str) -> None:
    detections, lasting = 0, 0.0
    for seed in range(5):
        parameters = source(scenario, seed, 2_000)
        days = [profile(scenario, parameters, number) for number in range(END)]
        verdicts = {verdict.number: verdict for verdict in judge_all(watched_by(), days, JUDGED)}
        detections += any(verdicts[number].alarms for number in range(CHANGE, CHANGE + 7))
        in_alarm = [verdicts[number].in_alarm for number in range(CHANGE + 8, END)]
        lasting += sum(in_alarm) / len(in_alarm)
    assert detections == 5
    assert lasting >= 0.9 * 5


@pytest.mark.slow
def test_moving_baseline_over_every_window_forgets_doubled_nulls() -> None:
    parameters = source("doubled nulls", 1, 2_000)
    days = [profile("doubled nulls", parameters, number) for number in range(END)]
    assert judge_all(watched_by(14), days, JUDGED)[-1].in_alarm
    assert not judge_all(watched_by(14), days, JUDGED, frozen=False)[-1].in_alarm
