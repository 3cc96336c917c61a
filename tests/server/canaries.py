"""A public store, and the states of everything derived from a private group, with canary names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

import featurestore
from featurestore.errors import JobFailed
from featurestore.experiments import catalog
from featurestore.jobs.recovery import restore_runs
from featurestore.model.run_record import RunRecord
from featurestore.model.validation import IN_FEATURE
from featurestore.recovery.rebuild import rebuild as restore_registry
from featurestore.registry import tables
from featurestore.registry.audit_log import Actor
from featurestore.server.access import changes
from featurestore.server.access.sign_in import start_browser_session
from featurestore.server.access.visitors import compute_form_token
from featurestore.store import FeatureStore
from tests.server.trained_runs import train

ROOT = Actor("root", "test")
NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
PRIVATE = "canary_pay"
# Used in values, descriptions and tags of private objects.
SECRETS = ("canary", "7717177")
# A person whose rows are only in private groups, for an erasure.
PERSON = "canaryperson"
# Role of the reader in the table: user, role on the store, role on the group "visits", browser.
ROLES = {
    "reader": ("rea", "reader", None, False),
    "writer": ("wil", "writer", None, True),
    "other writer": ("vis", "none", "writer", False),
    "no role": ("non", "none", None, True),
}
ANONYMOUS = "anonymous"
SEES = {"adm": ("admin", ()), "mia": ("reader", (PRIVATE,))}
_SCHEDULE = 'schedule="0 * * * *", window="1h", start="2024-03-01T12:00Z", catchup=1'
PUBLIC_JOBS = f"""
import featurestore

doubled = featurestore.sql_job(
    "doubled", sql="select who, seen, 2 * pay as twice from visits", inputs={{"visits": "visits"}},
    featuregroup="doubled", primary_key=["who"], event_time="seen", {_SCHEDULE},
)
watch = featurestore.monitor_job("watch", featuregroup="visits", volume=(0.5, 2.0), {_SCHEDULE})
"""
# The job names no private object, but its error lists all groups of the store.
LOST_JOB = f"""
import featurestore

@featurestore.job(featuregroup="lost", event_time="seen", {_SCHEDULE})
def lost(window):
    raise RuntimeError("no visitz")

lost_sql = featurestore.sql_job(
    "lost_sql", sql="select who, seen from visitz", inputs={{"visitz": "visitz"}},
    featuregroup="lost_sql", event_time="seen", {_SCHEDULE},
)
"""
DERIVED_JOBS = f"""
import featurestore

canary_sql = featurestore.sql_job(
    "canary_sql", sql="select who, seen, 2 * canary_amount as canary_twice from p",
    inputs={{"p": "canary_pay"}}, featuregroup="canary_twice", primary_key=["who"],
    event_time="seen", {_SCHEDULE},
)

@featurestore.job(
    inputs={{"p": "canary_twice"}}, featuregroup="canary_third", event_time="seen", {_SCHEDULE}
)
def canary_python(window, p):
    return p

@featurestore.training_job(
    training_dataset="canary_trained", schedule="0 0 1 1 *", start="2023-01-01T00:00Z"
)
def canary_training(store, window):
    return {{"data": store.get_features(["canary_pay.canary_amount"]), "label": "canary_amount"}}

canary_window = featurestore.window_job(
    "canary_window", [featurestore.window("canary_pay.canary_amount", "sum", over="1h")],
    every="1h", featuregroup="canary_windows", start="2024-03-01T12:00Z", catchup=1,
)
"""
# The words of "unnamed" contain no private name: only what it has read makes it private.
FAILING_JOBS = f"""
import featurestore

@featurestore.job(inputs={{"p": "canary_pay"}}, featuregroup="canary_never", event_time="seen",
                  alert="canary_channel", retries=0, {_SCHEDULE})
def canary_failing(window, p):
    raise ValueError("canaryvalue 7717177")

@featurestore.training_job(
    training_dataset="unnamed_set", schedule="0 0 1 1 *", start="2023-01-01T00:00Z", retries=0
)
def unnamed(store, window):
    column = "canary" + "_pay.canary" + "_amount"
    values = store.get_features([column]).to_arrow().to_pylist()
    raise ValueError(str(values))
"""
PUBLISHING_JOBS = """
import featurestore

canary_publish = featurestore.publish_job(
    "canary_publish", view="canary_view", schedule="0 0 1 1 *"
)
"""
MONITORING_JOBS = f"""
import featurestore

canary_watch = featurestore.monitor_job(
    "canary_watch", featuregroup="canary_pay", volume=(0.5, 2.0), {_SCHEDULE}
)
# A public group is compared with a dataset of the private one.
canary_baseline = featurestore.monitor_job(
    "canary_baseline", featuregroup="visits", alert="canary_channel", confirm=1,
    baseline=featurestore.baseline(training_dataset="canary_likeness", split="train"), {_SCHEDULE},
)
"""


def _rows(amount: str, secret: str, value: float) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    people = list("abcdef") if secret == "open" else [*"abcdef", PERSON]
    for number, person in enumerate(people):
        timestamp = NOON + timedelta(minutes=30)
        rows.append({"who": person, "seen": timestamp, amount: value + number, "text": secret})
    return rows


def _labels(*more: str) -> list[dict[str, object]]:
    timestamp = NOON + timedelta(hours=2)
    return [{"who": person, "at": timestamp, "good": person < "d"} for person in [*"abcdef", *more]]


def fill_public(store: FeatureStore, folder: Path) -> None:
    """Create the public objects and the users."""
    store.create_featuregroup(
        _rows("pay", "open", 1.0), "visits", primary_key="who", event_time="seen",
        tags={"owner": "ann", "team": "web"}, description="Visits.",
    )  # fmt: skip
    frame = store.get_features(["visits.pay"], labels=_labels())
    for _ in range(2):
        store.create_training_dataset(frame, "of_visits", label="good", progress=False)
    store.create_feature_view("view_visits", features=["visits.pay"])
    train(store, "of_visits", "model_visits")
    register(store, folder, "public_jobs", PUBLIC_JOBS)
    for name in ("doubled", "watch"):
        store.backfill_job(name, NOON, NOON + timedelta(hours=1))
    for name, role, of_visits, _ in ROLES.values():
        changes.add_user(store.session, ROOT, name, role=role)
        changes.set_group_role(store.session, ROOT, "visits", name, of_visits)


def register(store: FeatureStore, folder: Path, name: str, code: str) -> None:
    """Register the jobs of a file."""
    (folder / f"{name}.py").write_text(code)
    store.register_jobs(folder / f"{name}.py")


def _create(store: FeatureStore, folder: Path) -> None:
    """Create a private group with statistics, tags, refused rows and expectations."""
    store.add_alert_channel("canary_channel", "log")
    bounds = {"column": "canary_amount", "max_value": 8e6}
    expectation = {"type": "expect_column_values_to_be_between", "kwargs": bounds}
    store.create_featuregroup(
        _rows("canary_amount", "canaryvalue", 7717177.25), PRIVATE, primary_key="who",
        event_time="seen", tags={"owner": "canary", "canary": "canary"}, description="canary",
        descriptions={"canary_amount": "canary"}, expectations=[expectation],
        validation="quarantine",
    )  # fmt: skip
    changes.set_private(store.session, ROOT, PRIVATE, True)
    refused = _rows("canary_amount", "canaryvalue", 7717177e9)[:1]
    store.insert_into_featuregroup(refused, PRIVATE, mode="upsert")
    for name, (role, groups) in SEES.items():
        changes.add_user(store.session, ROOT, name, role=role)
        for group in groups:
            changes.set_group_role(store.session, ROOT, group, name, "reader")


def _derive(store: FeatureStore, folder: Path) -> None:
    """Create one object of every type that is computed from the private group, or names it."""
    labels = _labels(PERSON)
    frame = store.get_features([f"{PRIVATE}.canary_amount"], labels=labels)
    for _ in range(2):
        store.create_training_dataset(frame, "canary_set", label="good", progress=False)
    likeness = store.sql("select who, seen, canary_amount as pay, text from canary_pay")
    store.create_training_dataset(likeness, "canary_likeness", label="pay", progress=False)
    store.create_feature_view("canary_view", features=[f"{PRIVATE}.canary_amount"])
    train(store, "canary_set", "canary_model", text="canaryvalue")
    copied = store.get_featuregroup(PRIVATE)
    store.create_featuregroup(copied, "canary_copy", primary_key="who", event_time="seen")
    store.create_featuregroup(
        store.get_training_dataset("canary_set").read("train"), "canary_split"
    )
    store.create_featuregroup(store.featuregroup(PRIVATE).quarantine(), "canary_refused")
    compared = {
        "type": IN_FEATURE,
        "kwargs": {"column": "who", "feature": f"{PRIVATE}.who", "row_condition": "pay > 2"},
    }
    store.create_featuregroup(
        _rows("pay", "canaryvalue", 1.0), "canary_compared", expectations=[compared]
    )
    store.validate_featuregroup("visits", expectations=[compared])
    store.score("canary_model", labels=labels, featuregroup="canary_scores", trust=True)
    register(store, folder, "derived_jobs", DERIVED_JOBS)
    for name in ("canary_sql", "canary_python", "canary_window"):
        store.backfill_job(name, NOON, NOON + timedelta(hours=1))
    store.run_job("canary_training")
    # A run on a public dataset that names the private group.
    params = {"group": PRIVATE, "note": "canaryvalue"}
    record = RunRecord(
        "20240304-120000-names", "names", "launch", "failed", "2024-03-04T12:00:00+00:00",
        params=params, reason="canaryvalue",
    )  # fmt: skip
    catalog.save(store.session, record)


def _fail(store: FeatureStore, folder: Path) -> None:
    """Run jobs that read private values and raise them."""
    register(store, folder, "failing_jobs", FAILING_JOBS)
    with pytest.raises(JobFailed):
        store.backfill_job("canary_failing", NOON, NOON + timedelta(hours=1))
    with pytest.raises(JobFailed):
        store.run_job("unnamed")


def _publish(store: FeatureStore, folder: Path) -> None:
    """Write vectors of the private group to the online store."""
    register(store, folder, "publishing_jobs", PUBLISHING_JOBS)
    store.run_job("canary_publish")


def _log(store: FeatureStore, folder: Path) -> None:
    """Serve private vectors, and log them to a feature group."""
    view = store.get_feature_view("canary_view")
    with view.server(log_vectors="canary_served", log_sample=1) as server:
        server.get_vectors([{"who": "a"}, {"who": PERSON}])


def _monitor(store: FeatureStore, folder: Path) -> None:
    """Monitor the private group, and compare a public group with it."""
    register(store, folder, "monitoring_jobs", MONITORING_JOBS)
    for name in ("canary_watch", "canary_baseline"):
        store.backfill_job(name, NOON, NOON + timedelta(hours=1))
    store.accept_monitor("canary_baseline", note="canary")


def _export(store: FeatureStore, folder: Path) -> None:
    """Export a training dataset of the view, in another format."""
    view = store.get_feature_view("canary_view")
    view.create_training_dataset("canary_by_view", labels=_labels(PERSON), data_format="csv")


def _rename(store: FeatureStore, folder: Path) -> None:
    """Rename a feature of a private group."""
    store.rename_feature("canary_copy", "canary_amount", "canary_sum")


def _delete(store: FeatureStore, folder: Path) -> None:
    """Delete what is between the private group and objects derived from it."""
    store.remove_job("canary_sql")
    store.delete_featuregroup("canary_twice", version=1, force=True)
    for version in (1, 2):
        store.delete_training_dataset("canary_set", version=version, force=True)


def rebuild(folder: Path, *, jobs: str = "*_jobs") -> None:
    """Lose the registry, restore it from files, and register the jobs of files again."""
    for file in (folder / "store").glob("registry.db*"):
        file.unlink()
    restore_registry(str(folder / "store"), restore=restore_runs)
    with featurestore.connect(folder / "store") as store:
        store.add_alert_channel("canary_channel", "log")
        for file in sorted(folder.glob(f"{jobs}.py")):
            store.register_jobs(file)


def _do_nothing(store: FeatureStore, folder: Path) -> None:
    """Leave the store as ``rebuild`` has restored it."""


def _erase(store: FeatureStore, folder: Path) -> None:
    """Erase a person from all private places."""
    report = store.erase({"who": PERSON}, dry_run=False)
    assert report.certificate is not None
    assert store.verify_erasure(report.certificate).ok


# In this order: a state contains the objects of the states before it. ``rebuild`` runs before "rebuilt".
STATES: dict[str, Callable[[FeatureStore, Path], None]] = {
    "created": _create, "derived": _derive, "failed": _fail, "published": _publish, "logged": _log,
    "monitored": _monitor, "exported": _export, "renamed": _rename, "deleted middle": _delete,
    "rebuilt": _do_nothing, "erased": _erase,
}  # fmt: skip


def headers_of(store: FeatureStore, user: str, *, browser: bool = False) -> dict[str, str]:
    """Return the request headers of a user: a token or a browser cookie."""
    if browser:
        cookie = start_browser_session(store.session, user, "test")
        return {"Cookie": f"featurestore={cookie}", "X-Form-Token": compute_form_token(cookie)}
    text, _ = changes.make_token(store.session, ROOT, user, scope="admin")
    return {"Authorization": f"Bearer {text}"}


_NAMES = {
    "featuregroups": tables.featuregroups.c.name,
    "training-datasets": tables.training_datasets.c.name,
    "views": tables.feature_views.c.name,
    "jobs": tables.job_states.c.name,
    "monitors": tables.monitor_results.c.monitor,
    "models": tables.models.c.name,
    "experiments": tables.experiment_runs.c.id,
}


def names_in(store: FeatureStore) -> dict[str, set[str]]:
    """Return the names of all objects in a store by kind."""
    names = {}
    with store.session.registry.reading() as connection:
        for collection, column in _NAMES.items():
            names[collection] = set(connection.execute(sa.select(column).distinct()).scalars())
    return names
