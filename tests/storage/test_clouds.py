"""Stores on Azure Blob Storage and Google Cloud Storage equal local stores."""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import featurestore
from featurestore.errors import (
    ConfigurationError,
    FeatureStoreError,
    StorageError,
    UnsupportedLocation,
)
from featurestore.recovery.rebuild import rebuild
from featurestore.storage import connections, failures, files
from featurestore.storage.connections import delta_options
from featurestore.storage.location import root_of, scheme_of
from featurestore.storage.objects import ObjectStorage
from featurestore.storage.settings import store_settings
from featurestore.store import FeatureStore
from featurestore.testing.storage_conformance import StorageConformance
from featurestore.training import TrainingDataset
from featurestore.training.catalog import clean_all
from tests.azure_server import ACCOUNT, ACCOUNT_KEY, AzureServer
from tests.gcs_server import GcsServer
from tests.object_server import free_port
from tests.storage.stores import export, history_of_a_group, labeled, rows

CloudServer = AzureServer | GcsServer
Connect = Callable[..., FeatureStore]
# Both processes of a parallel run would start both servers without these groups.
CLOUDS = [
    pytest.param("azure_server", marks=pytest.mark.xdist_group("az")),
    pytest.param("gcs_server", marks=pytest.mark.xdist_group("gs")),
]


def new_bucket(server: CloudServer) -> str:
    return server.new_bucket(f"test-{uuid.uuid4().hex[:12]}")


class TestAzureStorage(StorageConformance):
    in_soak = ("test_list_spans_several_server_pages",)

    @pytest.fixture
    def storage(self, azure_server: AzureServer) -> ObjectStorage:
        return ObjectStorage(new_bucket(azure_server), azure_server.options)


class TestGcsStorage(StorageConformance):
    in_soak = ("test_list_spans_several_server_pages",)

    @pytest.fixture
    def storage(self, gcs_server: GcsServer) -> ObjectStorage:
        return ObjectStorage(new_bucket(gcs_server), gcs_server.options)


@pytest.fixture(params=CLOUDS)
def server(request: pytest.FixtureRequest) -> CloudServer:
    server: CloudServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def connect(
    server: CloudServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Connect]:
    """Connect to a store in one bucket; ``cache`` names the registry file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    location = f"{new_bucket(server)}/team a/store"
    stores: list[FeatureStore] = []

    def call(cache: str = "cache") -> FeatureStore:
        registry = f"sqlite:///{tmp_path / cache}.db"
        stores.append(
            featurestore.connect(location, registry=registry, storage_options=server.options)
        )
        return stores[-1]

    yield call
    for store in stores:
        store.close()


@pytest.fixture(scope="module")
def local_history(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The history of a group in a local folder, for both clouds."""
    with featurestore.connect(tmp_path_factory.mktemp("disk")) as disk:
        return history_of_a_group(disk)


@pytest.fixture(scope="module")
def local_dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingDataset]:
    """A training dataset in a local folder, for both clouds."""
    with featurestore.connect(tmp_path_factory.mktemp("disk")) as disk:
        disk.create_featuregroup(labeled(), "weather", primary_key="id", event_time="at")
        yield export(disk)


# On Google Cloud Storage in soak: in every run, test_spark_on_clouds.py compares both engines there.
@pytest.mark.parametrize(
    "server",
    [
        pytest.param("azure_server", marks=pytest.mark.xdist_group("az")),
        pytest.param("gcs_server", marks=[pytest.mark.xdist_group("gs"), pytest.mark.soak]),
    ],
    indirect=True,
)
def test_cloud_groups_equal_local_groups(connect: Connect, local_history: Any) -> None:
    assert history_of_a_group(connect()) == local_history


def test_cloud_dataset_equals_local_dataset(
    connect: Connect, local_dataset: TrainingDataset
) -> None:
    store = connect()
    store.create_featuregroup(labeled(), "weather", primary_key="id", event_time="at")
    remote = export(store)
    assert remote.manifest.content_hash == local_dataset.manifest.content_hash
    assert remote.read("test").to_pandas().equals(local_dataset.read("test").to_pandas())
    batches = [
        [batch["x"].tolist() for batch in dataset.reader("train", global_batch_size=32).batches()]
        for dataset in (local_dataset, remote)
    ]
    assert batches[0] == batches[1]
    assert remote.verify(recompute=True).problems == ()
    store.delete_training_dataset("d", version=1)
    assert files.list_directory(os.path.dirname(remote.path)) == []


def test_leases_of_two_registries_protect_cloud_exports(connect: Connect) -> None:
    first, second = connect("first"), connect("second")
    first.create_featuregroup(labeled(60), "weather", primary_key="id")
    versions = []

    def export_meanwhile(phase: str, count: int, total: int) -> None:
        if phase == "plan shards":
            frame = labeled(60)[["x", "late"]]
            versions.append(second.create_training_dataset(frame, "d", label="late").version)
            # The lease of the running export is not expired, by the clock of the server.
            assert clean_all(second.session) == []

    assert export(first, progress=export_meanwhile).version == 1
    assert versions == [2]
    assert first.get_training_dataset("d", version=1).verify().ok


def test_concurrent_cloud_appends_keep_rows_and_write_checkpoint(
    connect: Connect, tmp_path: Path
) -> None:
    first = connect()
    first.create_featuregroup(rows(0, 5), "weather", primary_key="id")
    rebuild(first.location, url=f"sqlite:///{tmp_path / 'second.db'}")
    stores = [first, connect("second")]

    def append(number: int) -> None:
        stores[number % 2].insert_into_featuregroup(rows(number * 5, 5), "weather")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(append, range(1, 12)))
    ids = first.get_featuregroup("weather").to_pandas()["id"]
    assert sorted(ids) == list(range(60))
    path = first.featuregroup("weather").path
    # Written by delta-rs, which has a client of its own.
    assert "_last_checkpoint" in files.list_directory(f"{path}/_delta_log")
    table = DeltaTable(path, storage_options=delta_options(path))
    assert table.to_pyarrow_dataset().count_rows() == 60


@pytest.mark.parametrize("name", CLOUDS)
def test_doctor_reads_cloud_settings_from_environment(
    name: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    command_line: Callable[..., Any],
    tmp_path: Path,
) -> None:
    server: CloudServer = request.getfixturevalue(name)
    location = f"{new_bucket(server)}/team a"
    # Connections of this test do not outlast its environment.
    monkeypatch.setattr(connections, "_connections", {})
    for key, value in server.environment.items():
        monkeypatch.setenv(key, value)
    registry = f"sqlite:///{tmp_path}/cache.db"
    words = ("--location", location, "--registry", registry, "--output", "json", "doctor")
    document = {check["check"]: check["state"] for check in json.loads(command_line(*words).out)}
    checks = {key: state for key, state in document.items() if key.startswith("location: ")}
    # Settings for Spark, if it is installed and supports the location.
    checks.pop("location: spark sessions", None)
    names = ("reach", "write", "conditional put", "clock", "delete")
    assert checks == {f"location: {name}": "ok" for name in names}
    # Executors on other machines get the settings of this environment.
    root = root_of(location)
    settings = store_settings(scheme_of(root), {})
    for name in server.environment:
        monkeypatch.delenv(name)
    assert ObjectStorage(root, {**settings.store, **settings.client}).children("") == []


def test_azure_errors_name_the_cause_without_secrets(
    azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_FIRST_PAUSE", 0.001)
    bucket = new_bucket(azure_server)
    wrong_key = base64.b64encode(b"another-key").decode()
    closed = f"http://127.0.0.1:{free_port()}/{ACCOUNT}"
    for location, options, reason in (
        (bucket, {"account_key": wrong_key}, "403 .AuthorizationFailure.*\nHint: .*permissions"),
        (bucket, {"endpoint": closed}, "cannot be reached"),
        ("az://absent", {}, "404 .ContainerNotFound.*\nHint: .*must exist"),
    ):
        storage = ObjectStorage(location, {**azure_server.options, **options})
        with pytest.raises(StorageError, match=reason) as refused:
            storage.read("a")
        assert wrong_key not in str(refused.value)
        assert ACCOUNT_KEY not in str(refused.value)


@pytest.mark.parametrize(
    ("location", "options", "error", "words"),
    [
        ("az://c/a", {}, ConfigurationError, "AZURE_STORAGE_ACCOUNT_NAME"),
        (
            "az://c/a",
            {"account_name": "a", "account_key": "S3 cret"},
            ConfigurationError,
            "Access Key",
        ),
        ("az://c/a", {"account_name": "a", "sas_token": "S3 cret"}, ConfigurationError, "SAS"),
        ("az://c/a", {"account_nme": "S3 cret"}, ConfigurationError, "account_name"),
        ("gs://b/a", {"endpiont": "S3 cret"}, ConfigurationError, "google_endpoint"),
        ("gs://b/a", {"service_account_key": "S3 cret"}, ConfigurationError, "service account"),
        (
            "abfss://c@shop.dfs.core.windows.net/a",
            {},
            UnsupportedLocation,
            "'az://c/a' with storage_options={'account_name': 'shop'}",
        ),
        ("gs://name:S3 cret@b/a", {}, UnsupportedLocation, r"az://container/path"),
    ],
)
def test_invalid_cloud_settings_raise_without_secrets(
    tmp_path: Path,
    location: str,
    options: dict[str, str],
    error: type[FeatureStoreError],
    words: str,
) -> None:
    registry = f"sqlite:///{tmp_path}/cache.db"
    with pytest.raises(error, match=words) as refused:
        featurestore.connect(location, registry=registry, storage_options=options)
    assert "S3 cret" not in str(refused.value)


def test_options_replace_credentials_of_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shop")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    from_environment = store_settings("az", {})
    assert from_environment.store["azure_storage_account_key"] == "a2V5"
    settings = store_settings("az", {"sas_token": "sv=1&sig=x"})
    assert settings.store == {
        "azure_storage_account_name": "shop",
        "azure_storage_sas_token": "sv=1&sig=x",
        "azure_credential_type": "sas_token",
    }
    assert "allow_http" not in settings.client
