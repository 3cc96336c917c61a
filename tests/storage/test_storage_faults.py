"""Failing, throttling and disconnecting servers cause no loss or duplicates."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from featurestore.errors import StorageError
from featurestore.storage import failures
from featurestore.storage.objects import ObjectStorage
from tests.object_server import ACCESS_KEY, SECRET_KEY, ObjectServer, free_port, options_for
from tests.storage.faulty_proxy import FAULTS, faulty

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


@pytest.mark.parametrize("fault", FAULTS)
def test_object_storage_operations_succeed_despite_faults(
    fault: str, bucket: str, object_server: ObjectServer, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 100
    (tmp_path / "file").write_bytes(data)
    with faulty(object_server.port, rate=0.4, kinds=(fault,), seed=5) as (proxy, endpoint):
        storage = ObjectStorage(bucket, options_for(endpoint))
        storage.put("a/put", data)
        storage.put_new("a/new", data)
        storage.upload("a/uploaded", str(tmp_path / "file"))
        with storage.writer("a/written") as writer:
            writer.write(data)
        storage.copy("a/put", "a/copied")
        names = ["a/copied", "a/new", "a/put", "a/uploaded", "a/written"]
        for name in names:
            assert storage.read(name) == data
            assert storage.ranges(name, [(3, 4), (9_000, 50)]) == [data[3:7], data[9_000:9_050]]
            target = bytearray(20_000)
            storage.read_into(name, 11, [memoryview(target)[:700], memoryview(target)[700:]])
            assert target == data[11:20_011]
            actual = storage.find(name)
            assert actual is not None
            assert actual.size == len(data)
        assert [entry.name for entry in storage.list("a")] == names
        assert storage.children("a") == [name[2:] for name in names]
        assert storage.remove("a/put")
        assert storage.remove_below("a") == 4
        assert list(storage.list("a")) == []
        assert proxy.faults[fault] >= 5


@pytest.mark.parametrize("call", ["read", "find", "put", "put_new", "remove"])
def test_failing_requests_are_not_retried_twice(
    call: str, bucket: str, object_server: ObjectServer
) -> None:
    """Nested retries would multiply the attempts and the waits."""
    with faulty(object_server.port, rate=1.0, kinds=("503",), seed=1) as (proxy, endpoint):
        storage = ObjectStorage(bucket, options_for(endpoint))
        arguments = (b"data",) if call.startswith("put") else ()
        with pytest.raises(StorageError, match="503"):
            getattr(storage, call)("name", *arguments)
        assert proxy.requests.total() == failures.ATTEMPTS


@pytest.mark.parametrize("fault", ["503", "cut"])
def test_large_upload_retries_failed_parts_only(
    fault: str, bucket: str, object_server: ObjectServer, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(bytes(50 << 20))
    with faulty(object_server.port, rate=0.2, kinds=(fault,), seed=7) as (proxy, endpoint):
        storage = ObjectStorage(bucket, options_for(endpoint))
        storage.upload("large", str(tmp_path / "file"))
        assert proxy.faults[fault] > 0
        assert proxy.requests["PUT"] <= 7 + proxy.faults[fault]
    upload = ObjectStorage(bucket, object_server.options).find("large")
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


def test_racing_writers_with_faulty_network_commit_once(
    bucket: str, object_server: ObjectServer
) -> None:
    assert race(bucket, object_server, commits=15, rate=0.2) > 30


@pytest.mark.soak
def test_racing_writers_with_thousand_faults_commit_once(
    bucket: str, object_server: ObjectServer
) -> None:
    assert race(bucket, object_server, commits=300, rate=0.3) > 1_000


def test_object_storage_errors_omit_credentials(
    bucket: str, object_server: ObjectServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = {**object_server.options, "aws_secret_access_key": SECRET_KEY + "-wrong"}
    storages = {
        "(SignatureDoesNotMatch|AccessDenied|403)": ObjectStorage(bucket, wrong),
        "cannot be reached": ObjectStorage(bucket, options_for(f"http://127.0.0.1:{free_port()}")),
        "the bucket does not exist|NoSuchBucket": ObjectStorage(
            "s3://absent", object_server.options
        ),
    }
    for reason, storage in storages.items():
        for call in (
            lambda target: target.put("some/name", b"1"),
            lambda target: target.put_new("some/name", b"1"),
            lambda target: target.read("some/name"),
            lambda target: list(target.list("some")),
        ):
            with pytest.raises(StorageError, match=reason) as refused:
                call(storage)
            text = str(refused.value)
            assert "some" in text
            assert refused.value.__cause__ is None or ACCESS_KEY not in str(refused.value.__cause__)
            assert not any(secret in text for secret in (ACCESS_KEY, SECRET_KEY))
            assert not any(secret in repr(storage) for secret in (ACCESS_KEY, SECRET_KEY))
    assert ACCESS_KEY not in caplog.text
    assert SECRET_KEY not in caplog.text
