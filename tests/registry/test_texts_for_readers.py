"""Text of exceptions for readers: without paths, addresses, secrets and records of other logs."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import featurestore
from featurestore.errors import JobFailed
from featurestore.model.reader_text import remove_machine_details
from featurestore.registry.audit_log import Actor
from featurestore.registry.stored_errors import text_for_readers
from featurestore.server.access import changes
from tests.object_server import free_port
from tests.server.private_groups import client_of, token_of

ROOT = Actor("root", "test")
NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
LOCATION = "/data/shop store"
ADDRESSES = ("redis://cache:6379/0", "postgresql://svc@db.internal/shop", "kafka://broker-1:9092")
FORGED = "2024-03-01 12:00:00,000 INFO featurestore.jobs done: 7 rows"
# Texts of this library, drivers and the system, with what a reader must not see.
DETAILS = [
    (f"No such file: '{LOCATION}/featuregroups/visits/v1/part-0.parquet'", [LOCATION]),
    (f"{LOCATION} is read-only", [LOCATION]),
    ('File "/srv/bea7/my jobs/pay.py", line 7, in pay', ["/srv", "bea7"]),
    ("cannot open /tmp/tmpab12/rows.parquet: disk full", ["/tmp", "tmpab12"]),
    (r"C:\Users\bea7\rows.csv is locked", ["bea7"]),
    ("file:///srv/keys/bea7.pem", ["/srv", "bea7"]),
    ("postgresql://bea7:hunter2@db.internal:5432/shop is down", ["bea7", "hunter2", "db.internal"]),
    ("s3://bucket-7/raw?X-Amz-Signature=abc123", ["bucket-7", "abc123"]),
    (
        'connection to server at "10.1.2.3", port 5432 failed: FATAL: role "svc" does not exist',
        ["10.1.2.3", "5432", "svc"],
    ),
    ('could not translate host name "db.internal" to address', ["db.internal"]),
    ("Error 111 connecting to cache:6379. Connection refused.", ["cache", "6379"]),
    ("broker-1:9092/bootstrap: timed out", ["broker-1", "9092"]),
    ("HTTPConnectionPool(host='hooks.example.net', port=443): Max retries", ["hooks", "443"]),
    ("('::1', 6379) and [fe80::1]:80 and 192.168.0.7:5000", ["::1", "fe80", "192.168", "5000"]),
    ("localhost:8787 refused", ["localhost", "8787"]),
    ("connect(password='hunter2', user=bea7_b)", ["hunter2"]),
    ('{"api_key": "abc123", "n": 1}', ["abc123"]),
    ("Authorization: Bearer abc.def", ["abc.def"]),
    (f"token fs_{'a1' * 16}", ["a1a1"]),
    (f"ValueError\n{FORGED}", []),
    (f"ValueError\r{FORGED}\x0b{FORGED}\u2028{FORGED}\x85", []),
    ("\x1b[2Kred\x9b\u202e", ["\x1b", "\x9b", "\u202e"]),
]
# Words of a user that help to understand an error.
PLAIN = [
    "visits", "'visits.pay'", "visits@2", "row 12,000", "12:30:45", "2024-03-01T12:00:00+00:00",
    "a/b", "n/a", "version 1.2.3", "x::int", "primary_key='who'", "store.get_features(['pay'])",
    "secret='env:PAY'", "Authorization: Bearer fs_...", "[1:2]", "50%", "/api/v1/jobs",
]  # fmt: skip


@given(st.lists(st.sampled_from([*DETAILS, *((word, None) for word in PLAIN)]), max_size=6))
def test_no_machine_details_remain_but_words_of_the_user(
    messages: list[tuple[str, list[str] | None]],
) -> None:
    text = "; ".join(message for message, _ in messages)
    shown = remove_machine_details(text, location=LOCATION, addresses=ADDRESSES)
    for message, details in messages:
        if details is None:
            assert message in shown
        for detail in details or ():
            assert detail not in shown, shown
    assert all(line.startswith("  ") for line in shown.splitlines()[1:])
    assert remove_machine_details(shown, location=LOCATION, addresses=ADDRESSES) == shown


def test_counts_and_hints_with_details_are_removed(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "store") as store:
        registry = store.session.registry
        text = text_for_readers(registry, "'x' is in 7 of the feature groups", allowed_names=["x"])
        assert text.message == "'x' is in the feature groups"
        hint = f"check the permissions of {store.location}/registry.db"
        error = featurestore.errors.StorageError("Cannot write.", hint=hint)
        assert text_for_readers(registry, error).hint == "check the permissions of registry.db"
        error = featurestore.errors.StorageError("No answer.", hint="redis-cli -h 10.0.0.7 ping")
        assert text_for_readers(registry, error).hint is None


def test_server_shows_no_details_of_a_failed_job_and_online_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    raised = "; ".join(message for message, _ in DETAILS)
    (tmp_path / "shop_jobs.py").write_text(
        "import featurestore\n"
        "@featurestore.job(featuregroup='sums', event_time='seen', schedule='0 * * * *',\n"
        "    window='1h', start='2024-03-01T12:00Z', catchup=1, alert='hook', retries=0)\n"
        "def sums(window):\n"
        f"    raise ValueError({raised + f' {tmp_path} 127.0.0.1:{port}'!r})\n"
    )
    with featurestore.connect(tmp_path / "store") as store, client_of(store) as client:
        store.create_featuregroup([{"who": "a", "pay": 1.0}], "visits", primary_key="who")
        store.create_feature_view("pays", features=["visits.pay"])
        store.add_online_store("fast", f"redis://localhost:{port}/0")
        store.add_alert_channel("hook", f"webhook+http://127.0.0.1:{port}/hook")
        store.register_jobs(tmp_path / "shop_jobs.py")
        with pytest.raises(JobFailed):
            store.backfill_job("sums", NOON, NOON + timedelta(hours=1))
        (run,) = store.get_runs("sums")
        changes.add_user(store.session, ROOT, "rea", role="reader")
        headers = token_of(store, "rea")
        addresses = ["/jobs", "/jobs/sums", "/jobs?format=csv", "/api/v1/jobs/sums/runs"]
        addresses += [f"/jobs/sums/runs/{run.run_id}/log"]
        addresses += ["/api/v1/featureviews/pays/vectors?online=fast&who=a"]
        shown = {address: client.get(address, headers=headers) for address in addresses}
        texts = [response.text for response in shown.values()]
        # Pages show the location of the store to their users, in the footer and in commands.
        texts[1] = texts[1].replace(f"--location {store.location} ", "")
        texts = [text.replace(f"<span>{store.location}</span>", "") for text in texts]
        texts += [str(message.error) for message in store.get_alerts()]
    assert shown[addresses[-1]].status_code == 503
    assert "pay.py" in shown[addresses[-2]].text
    details = [detail for _, secrets in DETAILS for detail in secrets if len(detail) > 4]
    details.remove("broker-1")  # of no registered source
    for text in texts:
        hidden = [detail for detail in [*details, str(tmp_path), str(port)] if detail in text]
        assert hidden == [], text
    # Each record of the log begins with the time at which it was written.
    log = shown[addresses[-2]].text
    assert not re.search(r"^2024-", log, re.MULTILINE)
    # The log of the server has the address for its operator.
    assert str(port) in caplog.text


SYMBOLS = [
    *("a", "ab", "-", "_", ".", ":", "/", "\\", "'", '"', "`", "=", " ", "\n", "@", "[", "]", "1", ":1", "://"),
    *("/home", "C:\\", "password", "port ", "host=", "user ", "Bearer ", "http://", "fs_", "localhost:"),
]  # fmt: skip


@given(st.lists(st.sampled_from(SYMBOLS), min_size=1, max_size=4).map("".join))
def test_long_texts_take_linear_time(unit: str) -> None:
    text = unit * (60_000 // len(unit))
    start = time.process_time()
    remove_machine_details(text, location="/data/shop", addresses=["redis://cache:6379"])
    # A search from each character to the end of a word takes minutes.
    assert time.process_time() - start < 3, unit
