"""Verification of feature groups: changed, missing and replaced files of all kinds are found."""

from __future__ import annotations

import json
import os
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from featurestore.cli.main import app
from featurestore.delta import snapshot
from featurestore.delta.verification import verify_table
from featurestore.errors import TableDamaged
from featurestore.store import FeatureStore
from tests.store_copies import copy_of, embedded

FLIPS = 2


def rows(first: int, count: int = 20) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"id": numbers, "day": [n % 2 for n in numbers], "v": [n / 7 for n in numbers]})


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a group that has all kinds of commits, and a commit after its checkpoint."""
    location = tmp_path_factory.mktemp("verified") / "store"
    with embedded(location) as store:
        store.create_featuregroup(rows(0), "g", primary_key=["id"], partition_by=["day"])
        for number in range(1, 8):
            store.insert_into_featuregroup(rows(20 * number), "g")
        store.insert_into_featuregroup(rows(10), "g", mode="upsert")
        store.delete_from_featuregroup("g", "id = 3")
        store.add_featuregroup_tag("g", "team", "sky")
        store.insert_into_featuregroup(rows(200), "g")
        assert list(Path(store.featuregroup("g").path).glob("_delta_log/*.checkpoint.parquet"))
    return location


@pytest.fixture
def group(template: Path, tmp_path: Path) -> Iterator[tuple[FeatureStore, Path]]:
    """The store and the table of a copied group that a test may damage."""
    with copy_of(template, tmp_path / "store") as store:
        yield store, Path(store.featuregroup("g").path)


def table_files(path: Path) -> list[Path]:
    """Return the data files, commits and checkpoints of a table."""
    files = [*path.rglob("*.parquet"), *path.glob("_delta_log/*.json")]
    return sorted(set(files))


def flips(content: bytes, generator: random.Random) -> Iterator[bytes]:
    for _ in range(FLIPS):
        bit = generator.randrange(8 * len(content))
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


def test_every_flipped_bit_is_found_with_its_file(group: tuple[FeatureStore, Path]) -> None:
    store, path = group
    assert store.verify_featuregroup("g").ok
    generator = random.Random(7)
    count = 0
    for file in table_files(path):
        content = file.read_bytes()
        for changed in flips(content, generator):
            file.write_bytes(changed)
            report = store.verify_featuregroup("g")
            assert str(file.relative_to(path)) in {problem.file for problem in report.problems}
            count += 1
        file.write_bytes(content)
    assert count >= 60
    assert store.verify_featuregroup("g").ok


def test_flipped_commit_is_found_by_reads(group: tuple[FeatureStore, Path]) -> None:
    store, path = group
    expected = store.get_featuregroup("g").count()
    generator = random.Random(7)
    for file in path.glob("_delta_log/0000000000000000001[1-9].json"):
        content = file.read_bytes()
        for changed in flips(content, generator):
            file.write_bytes(changed)
            with pytest.raises(TableDamaged, match=file.name):
                store.get_featuregroup("g").count()
        file.write_bytes(content)
    assert store.get_featuregroup("g").count() == expected


def test_missing_replaced_and_exchanged_files_are_found(group: tuple[FeatureStore, Path]) -> None:
    store, path = group
    report = store.verify_featuregroup("g")
    current = {Path(file.path) for file in snapshot.read_snapshot(str(path)).files}
    assert report.rows == store.get_featuregroup("g").count()
    for file in [*current, *path.glob("_delta_log/*.json")]:
        content = file.read_bytes()
        file.unlink()
        problems = store.verify_featuregroup("g").problems
        assert str(file.relative_to(path)) in {problem.file for problem in problems}
        file.write_bytes(content)
    # Two neighbors exchange their names: commits, and data files.
    commits = sorted(path.glob("_delta_log/*.json"))
    for first, second in [*pairwise(commits), tuple(sorted(current)[:2])]:
        contents = first.read_bytes(), second.read_bytes()
        first.write_bytes(contents[1])
        second.write_bytes(contents[0])
        assert not store.verify_featuregroup("g").ok
        first.write_bytes(contents[0])
        second.write_bytes(contents[1])
    assert store.verify_featuregroup("g").ok


def test_removed_newest_commit_is_found_by_registry_and_reads(
    group: tuple[FeatureStore, Path],
) -> None:
    store, path = group
    newest = max(path.glob("_delta_log/*.json"))
    newest.unlink()
    [problem] = store.verify_featuregroup("g").problems
    assert problem.file == f"_delta_log/{newest.name}"
    assert "the registry" in problem.message
    with pytest.raises(TableDamaged, match=newest.name):
        store.get_featuregroup("g")
    result = CliRunner().invoke(app, ["--location", store.location, "fg", "verify", "g"])
    assert result.exit_code == 1
    assert newest.name in result.output
    result = CliRunner().invoke(
        app, ["--location", store.location, "--output", "json", "doctor", "--deep"]
    )
    assert result.exit_code == 1
    assert newest.name in result.output


def test_commit_of_another_program_is_unverified_then_chained(
    group: tuple[FeatureStore, Path],
) -> None:
    store, path = group
    foreign = rows(300, 1).cast(snapshot.read_snapshot(str(path)).schema)
    write_deltalake(str(path), foreign, mode="append")
    report = store.verify_featuregroup("g")
    assert report.ok
    assert any(f"Delta version {report.delta_version}:" in text for text in report.unverified)
    store.insert_into_featuregroup(rows(400), "g")
    file = path / "_delta_log" / f"{report.delta_version:020d}.json"
    content = file.read_text()
    file.write_text(content.replace('"numRecords', '"numrecords', 1))
    assert not store.verify_featuregroup("g").ok


def test_checksums_equal_an_independent_computation(group: tuple[FeatureStore, Path]) -> None:
    _, path = group
    checked = 0
    for file in path.glob("_delta_log/*.json"):
        for line in file.read_text().splitlines():
            add = json.loads(line).get("add")
            if add is not None and (path / add["path"]).exists():
                expected = plain_crc32c((path / add["path"]).read_bytes())
                assert add["tags"]["featurestore.crc32c"] == f"{expected:08x}"
                checked += 1
    assert checked > 10


def plain_crc32c(content: bytes) -> int:
    """Return the CRC-32C by its definition (RFC 3720), bit by bit."""
    assert zlib.crc32(b"") == 0
    remainder = 0xFFFFFFFF
    for byte in content:
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


def test_rewrites_refuse_damaged_files(group: tuple[FeatureStore, Path]) -> None:
    store, path = group
    [file, *_] = [Path(each.path) for each in snapshot.read_snapshot(str(path)).files]
    content = bytearray(file.read_bytes())
    # The values of a page, whose change Parquet readers do not notice.
    content[len(content) // 4] ^= 1
    file.write_bytes(content)
    log = path / "_delta_log"
    before = sorted(os.listdir(log))
    rewrites: list[Callable[[], object]] = [
        lambda: store.compact_featuregroup("g"),
        lambda: store.delete_from_featuregroup("g", "id >= 5"),
        lambda: store.insert_into_featuregroup(rows(0, 210), "g", mode="upsert"),
    ]
    for rewrite in rewrites:
        with pytest.raises(TableDamaged, match=file.name):
            rewrite()
    assert sorted(os.listdir(log)) == before


def test_verified_reads_find_a_changed_file(group: tuple[FeatureStore, Path]) -> None:
    store, path = group
    assert store.get_featuregroup("g", verify="all").count() > 0
    assert store.get_features(["g.v"], verify="sample").count() > 0
    for file in snapshot.read_snapshot(str(path)).files:
        content = bytearray(Path(file.path).read_bytes())
        content[len(content) // 4] ^= 1
        Path(file.path).write_bytes(content)
    for mode in ("sample", "all"):
        with pytest.raises(TableDamaged, match=r"differs from its checksum"):
            store.get_featuregroup("g", verify=mode)
        with pytest.raises(TableDamaged, match=r"differs from its checksum"):
            store.get_features(["g.v"], verify=mode)


def test_erasure_keeps_the_chain(group: tuple[FeatureStore, Path]) -> None:
    store, path = group
    store.erase({"id": 7}, dry_run=False)
    report = store.verify_featuregroup("g")
    assert report.ok, report
    generator = random.Random(7)
    for file in path.glob("_delta_log/*.json"):
        content = file.read_bytes()
        file.write_bytes(next(flips(content, generator)))
        assert not store.verify_featuregroup("g").ok
        file.write_bytes(content)


def test_log_that_starts_with_a_checkpoint_is_verified(group: tuple[FeatureStore, Path]) -> None:
    store, path = group
    [checkpoint] = path.glob("_delta_log/*.checkpoint.parquet")
    for file in sorted(path.glob("_delta_log/*.json"))[: int(checkpoint.name[:20])]:
        file.unlink()
    assert store.verify_featuregroup("g").ok
    shutil.copy(checkpoint, path / "copy")
    checkpoint.unlink()
    assert not store.verify_featuregroup("g").ok


def test_log_that_another_program_trimmed_is_unverified(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    for number in range(6):
        write_deltalake(path, rows(20 * number), mode="append")
    DeltaTable(path).create_checkpoint()
    commits = sorted(Path(path).glob("_delta_log/*.json"))
    for file in commits[:3]:
        file.unlink()
    report = verify_table(path)
    assert (report.problems, report.rows) == ([], 120)
    assert any(text.startswith("Delta versions before 3:") for text in report.unverified)
    # Without the checkpoint, the rows of the first commits are lost.
    next(Path(path).glob("_delta_log/*.checkpoint.parquet")).unlink()
    assert [problem.delta_version for problem in verify_table(path).problems] == [2]
