"""Erasure in further places, on Spark, through the command line and through REST."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

import featurestore
from featurestore.errors import DatasetDamaged, FeatureViewWarning, NotAllowed, VersionVacuumed
from featurestore.jobs.key_versions import FOLDER
from featurestore.model.erasure import ErasureReport
from featurestore.store import FeatureStore
from tests.erasure.test_erasure import (
    CANARY,
    USERS,
    dataset_rows,
    make_datasets,
    make_rows,
    table_rows,
    traces,
    without_canary,
)
from tests.server.private_groups import PASSWORD, ROOT, client_of, token_of
from tests.server.private_groups import USERS as ROLES
from tests.server.test_remote_client import served
from tests.server.trained_runs import train

pytestmark = pytest.mark.filterwarnings("ignore::featurestore.errors.DataWarning")
START = datetime(2024, 1, 1, tzinfo=UTC)
UPSERT_JOB = """
from datetime import datetime, timedelta
import featurestore

@featurestore.job(featuregroup="states", primary_key="user", event_time="at", schedule="0 * * * *",
                  start="2024-01-01T00:00Z", mode="upsert", tombstone="gone", statistics=False)
def states(window):
    users = {"ada": False, "-".join(["canary", "q7x91"]): window.start.hour > 0}
    return [{"user": user, "at": window.start + timedelta(minutes=9), "gone": gone, "x": 1}
            for user, gone in users.items()]
"""


def groups_of_users(store: FeatureStore, **options: Any) -> None:
    import random

    rows = make_rows(random.Random(0), USERS, 1) + make_rows(random.Random(1), USERS, 2)
    store.create_featuregroup(rows, "visits", primary_key="user", event_time="at", **options)


def test_erase_on_spark(spark: Any, tmp_path: Path) -> None:
    """The rows of a partitioned table, its checkpoint, a dataset and online values."""
    location = tmp_path / "store"
    with featurestore.connect(location, engine="spark") as store:
        groups_of_users(store, partition_by="user")
        DeltaTable(str(location / "featuregroups/visits/v1")).create_checkpoint()
        before = table_rows(store.get_featuregroup("visits"))
        make_datasets(store, ["parquet"])
        expected = {
            split: without_canary(rows) for split, rows in dataset_rows(store, "in_parquet").items()
        }
        report = store.erase({"user": CANARY}, dry_run=False)
        assert report.complete, report.remaining
        assert table_rows(store.get_featuregroup("visits")) == without_canary(before)
        assert dataset_rows(store, "in_parquet") == expected
        with pytest.raises(VersionVacuumed):
            store.get_featuregroup("visits", as_of=1).to_arrow()
        assert store.verify_erasure(report.certificate or {}).ok
    assert traces(location) == []


def test_places_that_are_removed_or_listed(empty_store: FeatureStore, tmp_path: Path) -> None:
    store, location = empty_store, tmp_path / "store"
    groups_of_users(store)
    make_datasets(store, ["parquet"])
    train(store, "in_parquet", "model_late")
    store.create_training_dataset(
        store.get_featuregroup("visits").to_arrow().select(["score", "late"]), "plain", label="late",
        progress=False,
    )  # fmt: skip
    stage = location / "_staging" / "left_rows"
    stage.mkdir(parents=True)
    parquet.write_table(pa.table({"user": [CANARY], "n": [1]}), stage / "rows.parquet")
    run = next((location / "experiments").rglob("run.json")).parent
    (run / "artifacts").mkdir(exist_ok=True)
    (run / "artifacts" / "scores.csv.gz").write_bytes(gzip.compress(f"{CANARY},1\n".encode()))
    (run / "artifacts" / "near.csv").write_text(f"{CANARY}1,2\n")
    report = store.erase({"user": CANARY})
    assert report.models == ("model_late@v1", "model_late@v2")
    actions = {(finding.area, finding.action): finding.item for finding in report.findings}
    assert actions["staged files", "remove"] == "_staging/left_rows/rows.parquet"
    assert actions["run artifacts", "list"].endswith("scores.csv.gz")
    listed_report = store.erase({"user": CANARY}, datasets="keep", dry_run=False)
    assert listed_report.complete
    assert listed_report.datasets == {}
    listed = {
        (finding.area, finding.item)
        for finding in listed_report.findings
        if finding.action == "list"
    }
    assert ("training datasets", "in_parquet@v1") in listed
    assert dataset_rows(store, "in_parquet")["train"].total() > 0
    erased = store.erase({"user": CANARY}, dry_run=False)
    assert erased.datasets == {"in_parquet@v1": "in_parquet@v2"}
    assert not stage.exists() or not list(stage.iterdir())
    assert [Path(trace).name for trace in traces(location)] == ["near.csv"]
    check = store.verify_erasure(erased.certificate or {})
    assert check.ok, check
    assert [finding.item.rpartition("/")[2] for finding in check.listed] == ["scores.csv.gz"]


def test_values_of_deleted_views_and_key_versions_are_removed(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    store = empty_store
    groups_of_users(store)
    store.create_feature_view("old", features=["visits.score"])
    store.publish("old")
    store.delete_feature_view("old", version=1)
    (tmp_path / "upsert_job.py").write_text(UPSERT_JOB)
    store.register_jobs(tmp_path / "upsert_job.py")
    store.backfill_job("states", START, START + timedelta(hours=2))
    versions = Path(store.session.featuregroup_path("states", 1)) / FOLDER
    assert len(parquet.read_table(next(versions.glob("*.parquet"))))
    report = store.erase({"user": CANARY}, dry_run=False)
    items = {finding.area: finding.item for finding in report.findings}
    assert items["online values"] == "embedded: views that were deleted"
    assert items["key versions"] == "states@v1"
    assert report.complete, report.remaining
    assert store.erase({"user": CANARY}).findings == ()
    assert store.erase({"user": "ada"}).findings
    assert traces(tmp_path / "store") == []


def test_values_of_a_deleted_group_of_a_view_are_removed(empty_store: FeatureStore) -> None:
    store = empty_store
    for name in ("kept", "gone"):
        rows = [{"user": user, name: n} for n, user in enumerate(USERS)]
        store.create_featuregroup(rows, name, primary_key="user")
    store.create_feature_view("both", features=["kept.kept", "gone.gone"])
    store.publish("both")
    with pytest.warns(FeatureViewWarning):
        store.delete_featuregroup("gone", version=1, force=True)
    report = store.erase({"user": CANARY}, dry_run=False)
    counts = [finding.rows for finding in report.findings if finding.area == "online values"]
    assert counts == [2]
    assert report.complete
    assert traces(Path(store.location)) == []


def test_damaged_archives_are_searched(empty_store: FeatureStore) -> None:
    """One member is damaged; the next one has the value."""
    groups_of_users(empty_store)
    archive = Path(empty_store.location, "notes.zip")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as members:
        members.writestr("damaged", "a text of some length" * 100)
        members.writestr("complete", f"a note of {CANARY}" * 100)
    content = bytearray(archive.read_bytes())
    content[40:50] = b"\xff" * 10
    archive.write_bytes(bytes(content))
    findings = empty_store.erase({"user": CANARY}).findings
    assert ("other files", "notes.zip") in {(finding.area, finding.item) for finding in findings}


def test_sampled_rows_of_columns_with_another_name_are_erased(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(
        [{"id": 1, "price": 5}], "orders", primary_key="id",
        expectations=[{"type": "expect_column_values_to_be_between",
                       "kwargs": {"column": "price", "min_value": 0}}],
    )  # fmt: skip
    rows = [{"id": 9, "price": -7}, {"id": 99, "price": -8}]
    empty_store.insert_into_featuregroup(rows, "orders", validation="warn")
    report = empty_store.erase({"user": 9}, columns={"orders.id": "user"}, dry_run=False)
    assert report.complete
    with empty_store.session.registry.reading() as connection:
        reports = connection.exec_driver_sql("select report from validation_reports").scalars()
        texts = str(reports.all())
    assert '"price": -7' not in texts
    assert '"price": -8' in texts


def test_observed_numbers_in_reports_are_erased(empty_store: FeatureStore) -> None:
    expectation = {"type": "expect_column_max_to_be_between",
                   "kwargs": {"column": "user", "max_value": 50_000_000}}  # fmt: skip
    empty_store.create_featuregroup(
        [{"user": 10_000_000}], "g", primary_key="user", expectations=[expectation]
    )
    for user in (77_310_042, 77_310_043):
        empty_store.insert_into_featuregroup([{"user": user}], "g", validation="warn")
    report = empty_store.erase({"user": 77_310_042}, dry_run=False)
    assert report.complete
    assert traces(Path(empty_store.location), "77310042") == []
    observed = [
        result.observed
        for validation in empty_store.get_validation_history("g")
        for result in validation.results
        if result.observed is not None
    ]
    assert observed == [10_000_000, "[erased]", 77_310_043]


def test_datasets_of_private_groups_remain_private(empty_store: FeatureStore) -> None:
    """Also if the private group was deleted, and a public group has its name."""
    from featurestore.server.access import changes

    store = empty_store
    store.create_featuregroup(
        [{"user": user, "pay": n} for n, user in enumerate(USERS)], "salaries", primary_key="user"
    )
    store.create_training_dataset(store.get_featuregroup("salaries"), "d", progress=False)
    changes.set_private(store.session, ROOT, "salaries", True)
    store.delete_featuregroup("salaries", version=1, force=True)
    store.create_featuregroup([{"user": "ada", "pay": 0}], "salaries", primary_key="user")
    changes.set_private(store.session, ROOT, "salaries", False)
    for name in ("ann", "rea"):
        changes.add_user(store.session, ROOT, name, role=ROLES[name][0], password=PASSWORD)
    assert store.erase({"user": CANARY}, dry_run=False).datasets == {"d@v1": "d@v2"}
    with client_of(store) as client:
        for name, versions in {"ann": [2], "rea": []}.items():
            headers = token_of(store, name, scope="read")
            listed = client.get("/api/v1/training-datasets", headers=headers).json()["items"]
            assert [dataset["version"] for dataset in listed] == versions, name


def test_files_without_log_or_manifest_are_listed(empty_store: FeatureStore) -> None:
    """A killed write or a part of a backup left them."""
    groups_of_users(empty_store)
    location = Path(empty_store.location)
    leftover_files = [
        "featuregroups/old/v1/rows.parquet", "featuregroups/old/v1_statistics/1.json",
        "featuregroups/visits/notes.txt", "trainingdatasets/notes.txt", "trainingdatasets/old/v1/rows.csv",
    ]  # fmt: skip
    for file in leftover_files:
        (location / file).parent.mkdir(parents=True, exist_ok=True)
        (location / file).write_text(f"{CANARY},1")
    parquet.write_table(pa.table({"user": [CANARY]}), location / leftover_files[0])
    report = empty_store.erase({"user": CANARY}, dry_run=False)
    assert report.complete
    check = empty_store.verify_erasure(report.certificate or {})
    for findings in (report.findings, check.listed):
        listed = [finding for finding in findings if finding.action == "list"]
        assert [finding.item for finding in listed] == leftover_files
    assert sorted(traces(location)) == sorted(str(location / file) for file in leftover_files)


def test_compressed_datasets_are_written_again(empty_store: FeatureStore) -> None:
    """Their shards have the bytes of a dataset without compression, or its rows."""
    rows = [
        {"user": user, "n": n, "text": user * 10 ** (n % 4)}
        for n in range(300)
        for user in (USERS[n % 5], f"u{n}")
    ]
    empty_store.create_featuregroup(rows, "g", primary_key=["user", "n"])
    created = {}
    tfrecord = [("tfrecord", None), ("tfrecord", "GZIP")]
    parquet_files = [("parquet", codec) for codec in ("SNAPPY", "ZSTD", "GZIP", "NONE")]
    for kind, columns, formats in [
        ("fixed", ["user", "n"], tfrecord),
        ("variable", ["user", "n", "text"], tfrecord + parquet_files),
    ]:
        for data_format, compression in formats:
            name = f"{kind}_{data_format}_{compression}".lower()
            empty_store.create_training_dataset(
                empty_store.get_featuregroup("g").to_arrow().select(columns), name,
                data_format=data_format, compression=compression, progress=False,
                splits={"train": 0.5, "test": 0.5}, shards=3,
            )  # fmt: skip
            created[name] = empty_store.get_training_dataset(name).manifest
        assert created[f"{kind}_tfrecord_gzip"].layout["kind"] == kind
    report = empty_store.erase({"user": CANARY}, dry_run=False)
    assert report.complete, report.remaining
    assert sorted(report.datasets) == sorted(f"{name}@v1" for name in created)
    check = empty_store.verify_erasure(report.certificate or {})
    assert check.ok, check
    assert check.scanned["training datasets"] == len(created)
    for name, manifest in created.items():
        dataset = empty_store.get_training_dataset(name)
        assert dataset.verify().ok
        assert dataset.manifest.compression == manifest.compression
        plain = empty_store.get_training_dataset(f"{name.split('_')[0]}_tfrecord_none")
        for split in ("train", "test"):
            expected = table_rows(plain.read(split))
            assert CANARY not in str(expected)
            if not name.endswith("tfrecord_gzip"):
                assert table_rows(dataset.read(split)) == expected, name
                continue
            for shard, plain_shard in zip(
                dataset.manifest.split(split).shards,
                plain.manifest.split(split).shards,
                strict=True,
            ):
                content = gzip.decompress(Path(dataset.path, shard.path).read_bytes())
                assert content == Path(plain.path, plain_shard.path).read_bytes(), shard.path
    assert traces(Path(empty_store.location)) == []
    dataset = empty_store.get_training_dataset("fixed_tfrecord_gzip")
    # A complete GZIP stream may have no records.
    shard_path = Path(dataset.path, dataset.manifest.split("train").shards[0].path)
    shard_path.write_bytes(gzip.compress(b""))
    with pytest.raises(DatasetDamaged, match="has 0 rows, but"):
        empty_store.erase({"user": "ada"}, dry_run=False)


def test_rows_of_stratified_datasets_stay_in_their_splits(empty_store: FeatureStore) -> None:
    """Also in a second erasure, of a class with all its rows, and of rows with equal keys."""
    rows = [
        {"user": USERS[n % 5], "n": n // 3, "label": "rare" if n % 50 == 4 else "ab"[n % 7 % 2]}
        for n in range(400)
    ]
    empty_store.create_featuregroup(
        [{**row, "id": n} for n, row in enumerate(rows)], "g", primary_key="id"
    )
    names = ["in_tfrecord", "in_gzip", "in_parquet"]
    for name in names:
        empty_store.create_training_dataset(
            empty_store.get_featuregroup("g").to_arrow().select(["user", "n", "label"]), name,
            label="label", key=["user", "n"], stratify="label", progress=False,
            data_format="parquet" if name == "in_parquet" else "tfrecord",
            compression="GZIP" if name == "in_gzip" else None,
            splits={"train": 0.6, "validation": 0.1, "test": 0.3},
        )  # fmt: skip
    splits = ("train", "validation", "test")
    parquet_dataset = empty_store.get_training_dataset("in_parquet")
    expected = {split: table_rows(parquet_dataset.read(split)) for split in splits}
    for user in (CANARY, "bob"):
        assert empty_store.erase({"user": user}, dry_run=False).complete
        for split in splits:
            expected[split] = Counter(
                {row: n for row, n in expected[split].items() if f"'{user}'" not in row}
            )
        for name in names:
            dataset = empty_store.get_training_dataset(name)
            sizes = {split.name: split.rows for split in dataset.manifest.splits}
            assert sizes == {split: rows.total() for split, rows in expected.items()}
            assert dataset.manifest.split_rule["stratify"] == ["label"]
            assert dataset.verify().ok
            if name != "in_gzip":
                assert {split: table_rows(dataset.read(split)) for split in splits} == expected


def test_transformations_are_fitted_again(empty_store: FeatureStore) -> None:
    rows = [
        {"user": user, "x": float(n), "word": user} for n, user in enumerate(["ada", "bob", CANARY])
    ]
    empty_store.create_featuregroup(rows, "g", primary_key="user")
    empty_store.create_training_dataset(
        empty_store.get_featuregroup("g"), "d", features=["x", "word"], progress=False,
        transformations={"x": featurestore.transform.min_max(), "word": featurestore.transform.vocabulary()},
        description="three users", tags={"team": "a"},
    )  # fmt: skip
    empty_store.erase({"user": CANARY}, dry_run=False)
    dataset = empty_store.get_training_dataset("d")
    assert (dataset.version, dataset.description, dataset.tags) == (2, "three users", {"team": "a"})
    assert dataset.transformations is not None
    fitted = dict(dataset.transformations["x"].chain.steps[-1].fitted or {})
    assert CANARY not in str(dataset.transformations.to_json())
    assert 2.0 not in fitted.values()
    assert 1.0 in fitted.values()
    assert traces(Path(empty_store.location)) == []


def test_commands_report_erase_and_verify(
    empty_store: FeatureStore, tmp_path: Path, command_line: Callable[..., Any]
) -> None:
    groups_of_users(empty_store)

    def call(*words: str, code: int = 0) -> str:
        printed = command_line("--location", empty_store.location, "erasure", *words, code=code)
        return str(printed.out if code == 0 else printed.err or printed.out)

    assert "visits@v1" in call("report", f"user={CANARY}")
    assert "no data of this entity" in call("report", "user=nobody-at-all")
    assert "not of the form name=value" in call("report", "user", code=1)
    two_users = call("run", f"user={CANARY}", "user=ada", code=1)
    assert f"'user' has two values: {CANARY!r} and 'ada'" in two_users
    assert "No feature group has a column 'usr'" in call("report", "usr=a", code=1)
    file = tmp_path / "erased.json"
    assert "Erased:" in call("run", f"user={CANARY}", "--certificate", str(file))
    assert "already exists" in call("run", "user=ada", "--certificate", str(file), code=1)
    assert CANARY not in file.read_text()
    assert "has no data of these entities" in call("verify", str(file))
    rows = [{"user": CANARY, "at": START, "note": "", "score": 1, "late": True}]
    empty_store.insert_into_featuregroup(rows, "visits")
    assert "is not confirmed" in call("verify", str(file), code=1)


def test_rest_erases_for_admins_only(empty_store: FeatureStore) -> None:
    from featurestore.server.access import changes

    groups_of_users(empty_store)
    for name, (role, _) in ROLES.items():
        changes.add_user(empty_store.session, ROOT, name, role=role, password=PASSWORD)
    request = {"subject": [{"user": CANARY}]}
    with client_of(empty_store) as client:
        assert client.post("/api/v1/erasures", json=request).status_code == 401
        for name in ROLES:
            for scope in ("read", "write", "admin"):
                headers = token_of(empty_store, name, scope=scope)
                is_admin = (name, scope) == ("ann", "admin")
                for path, body in (("", request), ("/verify", {"certificate": {}})):
                    response = client.post(f"/api/v1/erasures{path}", json=body, headers=headers)
                    expected = {"": 200, "/verify": 400}[path] if is_admin else 403
                    assert response.status_code == expected, (name, scope, response.text)
    token, _ = changes.make_token(empty_store.session, ROOT, "ann", scope="admin")
    reader, _ = changes.make_token(empty_store.session, ROOT, "rea")
    with served(empty_store) as address:
        with featurestore.connect(address, token=reader) as remote, pytest.raises(NotAllowed):
            remote.erase({"user": CANARY}, dry_run=False)
        with featurestore.connect(address, token=token) as remote:
            report = remote.erase({"user": CANARY}, dry_run=False)
            assert report.complete
            assert remote.verify_erasure(report.certificate or {}).ok
    assert ErasureReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    users = empty_store.get_featuregroup("visits").to_arrow()["user"].to_pylist()
    assert set(users) == set(USERS) - {CANARY}
    with empty_store.session.registry.reading() as connection:
        log = connection.exec_driver_sql("select who, action, detail from audit_log").all()
    assert ("ann", "erase") in {(actor, action) for actor, action, _ in log}
    assert ("ann", "report erasure") in {(actor, action) for actor, action, _ in log}
    assert CANARY not in str(log)
