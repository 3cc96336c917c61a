"""Failing, throttling and disconnecting servers cause no loss or duplicates."""

from __future__ import annotations

import base64
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from featurestore.errors import StorageError
from featurestore.storage import failures
from featurestore.storage.objects import ObjectStorage
from tests.azure_server import ACCOUNT
from tests.object_server import ObjectServer, free_port, options_for
from tests.storage.faulty_proxy import FAULTS, faulty
from tests.storage.stores import StoreLocation, on_servers

_WRITERS = 4


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits between retries."""
    monkeypatch.setattr(failures, "_FIRST_PAUSE", 0.002)


def test_put_new_with_lost_response_is_detected(bucket: str, object_server: ObjectServer) -> None:
    """The object is written, the response is lost, and the retry reports a conflict."""
    clean = ObjectStorage(bucket, object_server.options)
    clean.put_new("taken", b"theirs")
    kinds = ("lost", "late 500")
    with faulty(object_server.port, rate=0.5, kinds=kinds, seed=3) as (proxy, endpoint):
        storage = ObjectStorage(bucket, options_for(endpoint))
        for number in range(20):
            storage.put_new(f"claim/{number}", b"mine")
            with pytest.raises(FileExistsError):
                storage.put_new("taken", b"mine")
        assert proxy.faults["lost"] > 3
        assert proxy.faults["late 500"] > 3
    assert clean.read("taken") == b"theirs"
    assert [clean.read(f"claim/{number}") for number in range(20)] == [b"mine"] * 20


def test_object_storage_operations_succeed_despite_faults(
    bucket: str, object_server: ObjectServer, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    data = bytes(range(256)) * 100
    (tmp_path / "file").write_bytes(data)
    for fault in FAULTS:
        with (
            subtests.test(fault),
            faulty(object_server.port, rate=0.4, kinds=(fault,), seed=5) as (proxy, endpoint),
        ):
            storage = ObjectStorage(bucket, options_for(endpoint))
            use_all_operations(storage, fault, data, tmp_path / "file")
            assert proxy.faults[fault] >= 5


def use_all_operations(storage: ObjectStorage, folder: str, data: bytes, file: Path) -> None:
    """Write, read, list and remove objects in a folder; ``file`` contains the data."""
    storage.put(f"{folder}/put", data)
    storage.put_new(f"{folder}/new", data)
    storage.upload(f"{folder}/uploaded", str(file))
    with storage.writer(f"{folder}/written") as writer:
        writer.write(data)
    storage.copy(f"{folder}/put", f"{folder}/copied")
    names = [f"{folder}/{name}" for name in ("copied", "new", "put", "uploaded", "written")]
    for name in names:
        assert storage.read(name) == data
        assert storage.ranges(name, [(3, 4), (9_000, 50)]) == [data[3:7], data[9_000:9_050]]
        target = bytearray(20_000)
        storage.read_into(name, 11, [memoryview(target)[:700], memoryview(target)[700:]])
        assert target == data[11:20_011]
        stored_object = storage.find(name)
        assert stored_object is not None
        assert stored_object.size == len(data)
    assert [entry.name for entry in storage.list(folder)] == names
    assert storage.children(folder) == [name.rpartition("/")[2] for name in names]
    assert storage.remove(names[2])
    assert storage.remove_below(folder) == 4
    assert list(storage.list(folder)) == []


def test_failing_requests_are_not_retried_twice(
    bucket: str, object_server: ObjectServer, subtests: pytest.Subtests
) -> None:
    """Nested retries would multiply the attempts and the waits."""
    with faulty(object_server.port, rate=1.0, kinds=("503",), seed=1) as (proxy, endpoint):
        storage = ObjectStorage(bucket, options_for(endpoint))
        for call in ("read", "find", "put", "put_new", "remove"):
            arguments = (b"data",) if call.startswith("put") else ()
            proxy.requests.clear()
            with subtests.test(call):
                with pytest.raises(StorageError, match="503"):
                    getattr(storage, call)("name", *arguments)
                assert proxy.requests.total() == failures.ATTEMPTS


def test_large_upload_retries_failed_parts_only(
    bucket: str, object_server: ObjectServer, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    (tmp_path / "file").write_bytes(bytes(50 << 20))
    for fault in ("503", "cut"):
        with (
            subtests.test(fault),
            faulty(object_server.port, rate=0.2, kinds=(fault,), seed=7) as (proxy, endpoint),
        ):
            storage = ObjectStorage(bucket, options_for(endpoint))
            storage.upload(f"large {fault}", str(tmp_path / "file"))
            assert proxy.faults[fault] > 0
            assert proxy.requests["PUT"] <= 7 + proxy.faults[fault]
            upload = ObjectStorage(bucket, object_server.options).find(f"large {fault}")
            assert upload is not None
            assert upload.size == 50 << 20


def race(bucket: str, object_server: ObjectServer, *, commits: int, rate: float) -> int:
    """Append to one log from several writers through a faulty network; return the number of faults."""
    with faulty(object_server.port, rate=rate, seed=11) as (proxy, endpoint):
        unsure: list[str] = []
        acknowledged: list[str] = []
        lock = threading.Lock()

        def write(writer: int) -> None:
            storage = ObjectStorage(bucket, options_for(endpoint))
            version = 0
            for number in range(commits):
                text = f"{writer}/{number}"
                while True:
                    try:
                        storage.put_new(f"log/{version:06d}", text.encode())
                    except FileExistsError:
                        version += 1
                        continue
                    except StorageError:
                        with lock:
                            unsure.append(text)
                        break
                    with lock:
                        acknowledged.append(text)
                    break

        with ThreadPoolExecutor(_WRITERS) as pool:
            list(pool.map(write, range(_WRITERS)))
        injected = proxy.faults.total()
    clean = ObjectStorage(bucket, object_server.options)
    log_texts = [clean.read(entry.name).decode() for entry in clean.list("log")]
    assert len(set(log_texts)) == len(log_texts)  # none doubled
    assert set(acknowledged) <= set(log_texts)  # none lost
    assert set(log_texts) <= set(acknowledged) | set(unsure)
    assert len(unsure) <= len(log_texts) // 20
    return injected


@pytest.mark.parametrize(
    ("commits", "rate", "faults"),
    [(15, 0.2, 30), pytest.param(300, 0.3, 1_000, marks=pytest.mark.soak)],
)
def test_racing_writers_with_faulty_network_commit_once(
    bucket: str, object_server: ObjectServer, commits: int, rate: float, faults: int
) -> None:
    assert race(bucket, object_server, commits=commits, rate=rate) > faults


WRONG_KEY = base64.b64encode(b"another-key").decode()
FORBIDDEN = r"403.*\nHint: .*permissions"
ABSENT = r"(does not exist|404 .(NoSuchBucket|ContainerNotFound)).*\nHint: .*(must exist|its name)"


@on_servers("s3", "az")
def test_object_storage_errors_name_cause_without_secrets(
    store_location: StoreLocation, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    caplog.set_level(logging.DEBUG)
    key = {"s3": "aws_secret_access_key", "az": "account_key"}[store_location.scheme]
    endpoint = {"s3": "aws_endpoint_url", "az": "endpoint"}[store_location.scheme]
    closed = f"http://127.0.0.1:{free_port()}/{ACCOUNT}"
    for root, overrides, reason in (
        (store_location.folder, {key: WRONG_KEY}, FORBIDDEN),
        (store_location.folder, {endpoint: closed}, "cannot be reached"),
        (f"{store_location.scheme}://absent", {}, ABSENT),
    ):
        storage = ObjectStorage(root, {**store_location.options, **overrides})
        with subtests.test(reason):
            for call in (
                lambda target: target.put("some/name", b"1"),
                lambda target: target.put_new("some/name", b"1"),
                lambda target: target.read("some/name"),
                lambda target: list(target.list("some")),
            ):
                with pytest.raises(StorageError, match=reason) as refused:
                    call(storage)
                assert "some" in str(refused.value)
                texts = f"{refused.value} {refused.value.__cause__} {storage!r} {caplog.text}"
                for secret in (*store_location.secrets, WRONG_KEY):
                    assert secret not in texts
