"""A server with a user for each role and the private group ``salaries``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from starlette.testclient import TestClient

from featurestore.registry.audit_log import Actor
from featurestore.server import ServerSettings, create_app
from featurestore.server.access import changes
from featurestore.store import FeatureStore
from tests.server.trained_runs import train

ROOT = Actor("root", "command line")
PASSWORD = "a horse on a hill"
NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
# User, role on the store, and the role on the private group.
USERS = {
    "ann": ("admin", None),
    "wil": ("writer", None),
    "rea": ("reader", None),
    "mia": ("reader", "reader"),
    "own": ("none", "admin"),
    "non": ("none", None),
}
JOB = """
import featurestore

raise_pay = featurestore.sql_job(
    "raise_pay",
    sql="select who, seen, 2 * pay as more from salaries",
    inputs={"salaries": "salaries"},
    featuregroup="raises",
    primary_key=["who"],
    event_time="seen",
    schedule="0 * * * *",
    window="1h",
    start="2024-03-01T12:00Z",
)
watch_pay = featurestore.monitor_job(
    "watch_pay",
    featuregroup="salaries",
    schedule="0 * * * *",
    window="1h",
    start="2024-03-01T12:00Z",
    volume=(0.5, 2.0),
)
"""


def fill(store: FeatureStore, folder: Path) -> None:
    """Create a private group, a public group, and objects derived from them."""
    rows = []
    for number, person in enumerate("ab"):
        timestamp = NOON + timedelta(minutes=30)
        rows.append({"who": person, "seen": timestamp, "pay": 10.0 * number, "of": "x"})
    for group in ("salaries", "visits"):
        store.create_featuregroup(
            rows, group, primary_key="who", event_time="seen", tags={"owner": f"boss_of_{group}"}
        )
        labels = [
            {"who": person, "at": NOON + timedelta(hours=2), "good": person == "a"}
            for person in "ab"
        ]
        frame = store.get_features([f"{group}.pay"], labels=labels)
        for _ in range(2):
            store.create_training_dataset(frame, f"of_{group}", label="good", progress=False)
        store.create_feature_view(f"view_{group}", features=[f"{group}.pay"])
        train(store, f"of_{group}", f"model_{group}")
    (folder / "pay_jobs.py").write_text(JOB)
    store.register_jobs(folder / "pay_jobs.py")
    store.backfill_job("raise_pay", NOON, NOON + timedelta(hours=1))
    store.backfill_job("watch_pay", NOON, NOON + timedelta(hours=1))
    session = store.session
    changes.set_private(session, ROOT, "salaries", True)
    for name, (role, on_group) in USERS.items():
        changes.add_user(session, ROOT, name, role=role, password=PASSWORD)
        if on_group is not None:
            changes.set_group_role(session, ROOT, "salaries", name, on_group)


@contextmanager
def client_of(store: FeatureStore, **settings: object) -> Iterator[TestClient]:
    """Yield a client without a signed-in user."""
    app = create_app(store, ServerSettings(auth=True, **settings))  # type: ignore[arg-type]
    with TestClient(
        app, base_url="http://localhost", raise_server_exceptions=False, follow_redirects=False
    ) as client:
        yield client


def token_of(store: FeatureStore, name: str, *, scope: str = "admin") -> dict[str, str]:
    """Return the request headers of a program of a user."""
    text, _ = changes.make_token(store.session, ROOT, name, scope=scope)
    return {"Authorization": f"Bearer {text}"}


def field_of(page: str) -> str:
    """Return the form token of a page."""
    matches = re.search(r'name="form_token" value="([0-9a-f]+)"', page)
    assert matches is not None
    return matches[1]


def sign_in(client: TestClient, name: str, password: str = PASSWORD, *, to: str = "/") -> int:
    """Sign in with the form; return the status."""
    token = field_of(client.get("/sign-in").text)
    form = {"name": name, "password": password, "next": to, "form_token": token}
    return client.post("/sign-in", data=form).status_code
