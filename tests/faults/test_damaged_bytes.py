"""Changed, zeroed and missing bytes of every file of a store are harmless, or an error names them."""

from __future__ import annotations

import random
import re
import struct
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from featurestore.model.times import to_micros
from featurestore.retrieval.frame import FeatureFrame
from featurestore.store import FeatureStore
from tests.faults.damaged_files import (
    DATASETS,
    KINDS,
    NOON,
    Call,
    Damage,
    DamagedStore,
    connect_again,
    draw_damage,
    read_dataset,
    read_group,
    read_model,
    read_runs,
    rebuild_registry,
    run_deep_doctor,
    verify_dataset,
    verify_groups,
    verify_online,
)

pytestmark = [pytest.mark.services, pytest.mark.slow]

SOAK_POSITIONS = 2_000
# Damages that once raised errors of other libraries, by kind: a path, and a text at the position.
KNOWN = [
    ("registry", "registry.db", b"CREATE TABLE tags", 128),
    ("registry", "registry.db", b"search_trigrams_config", 128),
    ("shard of variable", "trainingdatasets/variable/v1/train/tfrecord-00000-of-00001", b"wordword", 128),
    ("shard of zipped", "trainingdatasets/zipped/v1/train/tfrecord-00000-of-00001", b"", 1),
]  # fmt: skip


# The table of changed files in docs/reliability.md: a pattern of paths, the calls that find a
# changed bit, and those that find a shortened file. The runs of this store have no checksums:
# `tests/experiments/test_run_files.py` damages the files of others.
DOCUMENTED: list[tuple[str, tuple[Call, ...], tuple[Call, ...]]] = [
    (r"featuregroups/g/v1/day=\d/.*", (verify_groups, run_deep_doctor), (read_group,)),
    (r"featuregroups/g/v1/_delta_log/\d+\.json", (verify_groups,), (verify_groups,)),
    (r"featuregroups/g/v1/_delta_log/\d+\.checkpoint\.parquet", (verify_groups,), (verify_groups,)),
    (r"experiments/line/2024030[12]-[^/]*/run\.json", (read_runs,), (read_runs, rebuild_registry)),
    (r"models/line/v2/.*/(?!model\.json)[^/]+", (read_model, run_deep_doctor), (read_model,)),
    (r"models/line/v2/model\.json", (read_model,), (read_model,)),
    (r"registry\.db", (), (connect_again,)),
    (r"online/.*\.db", (), (verify_online,)),
]
for _name in DATASETS:
    _folder, _verify, _read = (
        f"trainingdatasets/{_name}/v1",
        verify_dataset(_name),
        read_dataset(_name),
    )
    DOCUMENTED += [
        (rf"{_folder}/train/.*", (_verify, run_deep_doctor), (_read,)),
        (rf"{_folder}/manifest\.json", (_read,), (_read,)),
        (rf"{_folder}/_statistics/.*", (_verify,), (_verify,)),
    ]


@pytest.fixture(scope="module")
def damaged_store(tmp_path_factory: pytest.TempPathFactory) -> DamagedStore:
    return DamagedStore(tmp_path_factory.mktemp("damaged"))


def test_each_file_of_store_has_kind(damaged_store: DamagedStore) -> None:
    files_by_kind = {
        kind: [path for path in damaged_store.paths if re.fullmatch(pattern, path)]
        for kind, (pattern, _) in KINDS.items()
    }
    assert [kind for kind, paths in files_by_kind.items() if not paths] == []
    counts = Counter(path for paths in files_by_kind.values() for path in paths)
    assert counts == Counter(damaged_store.paths)


def test_known_damages_raise_library_errors(
    damaged_store: DamagedStore, subtests: pytest.Subtests
) -> None:
    for kind, path, text, mask in KNOWN:
        content = (damaged_store.template / path).read_bytes()
        with subtests.test(path, text=text):
            position = content.index(text) if text else len(content) // 2
            problems = problems_of(damaged_store, kind, Damage(path, position, f"flip {mask}"))
            assert problems == []


def test_frames_with_damaged_times_raise_library_errors(damaged_store: DamagedStore) -> None:
    times = [struct.pack("<q", to_micros(NOON + timedelta(minutes=20 * n + 1))) for n in range(12)]
    paths = [p for p in damaged_store.paths if re.fullmatch(r"featuregroups/g/v1/day=1/.*", p)]
    contents = {path: Path(damaged_store.template, path).read_bytes() for path in paths}
    damages = [
        Damage(path, content.index(time) + 7, "flip 8")  # the highest byte: after the year 9999
        for path, content in contents.items()
        for time in times
        if time in content
    ]
    assert damages
    reads: dict[str, Callable[[FeatureFrame], object]] = {
        "to_arrow": lambda frame: frame.to_arrow().num_rows,
        "to_pandas": lambda frame: len(frame.to_pandas()),
        "to_polars": lambda frame: len(frame.to_polars()),
        "to_numpy": lambda frame: frame.to_numpy(),
        "show": lambda frame: frame.show(100),
    }
    states = {}
    for name, read in reads.items():

        def call(store: FeatureStore, read: Callable[[FeatureFrame], object] = read) -> object:
            return read(store.get_featuregroup("g"))

        states[name] = damaged_store.outcome(damages[0], name, call).state
    # The results of these calls without the damage are not known to the store.
    assert states == dict.fromkeys(reads, "different") | {"to_numpy": "error", "show": "equal"}


def test_damaged_bytes_are_found_or_harmless(damaged_store: DamagedStore) -> None:
    problems = []
    random_numbers = random.Random(56)
    for kind in KINDS:
        problems += problems_of(
            damaged_store, kind, random_damage(damaged_store, kind, random_numbers)
        )
    assert problems == []


def test_documented_calls_find_changed_files(
    damaged_store: DamagedStore, subtests: pytest.Subtests
) -> None:
    random_numbers = random.Random(7)
    for pattern, calls_for_bit, calls_for_end in DOCUMENTED:
        with subtests.test(pattern):
            path = random_numbers.choice(
                [p for p in damaged_store.paths if re.fullmatch(pattern, p)]
            )
            size = Path(damaged_store.template, path).stat().st_size
            flip = Damage(
                path, random_numbers.randrange(size), f"flip {1 << random_numbers.randrange(8)}"
            )
            cut = Damage(path, size // 2, "truncate")
            outcomes = [damaged_store.outcome(flip, call.__name__, call) for call in calls_for_bit]
            outcomes += [damaged_store.outcome(cut, call.__name__, call) for call in calls_for_end]
            assert [outcome for outcome in outcomes if outcome.state != "error"] == []


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_bytes_are_found_or_harmless(damaged_store: DamagedStore, kind: str) -> None:
    problems = []
    random_numbers = random.Random()
    for _ in range(SOAK_POSITIONS // len(KINDS) + 1):
        problems += problems_of(
            damaged_store, kind, random_damage(damaged_store, kind, random_numbers)
        )
    assert problems == []


def random_damage(store: DamagedStore, kind: str, random_numbers: random.Random) -> Damage:
    """Return a random damage of a file of a kind."""
    pattern, _ = KINDS[kind]
    sizes = {path: Path(store.template, path).stat().st_size for path in store.paths}
    paths = [path for path in store.paths if re.fullmatch(pattern, path) and sizes[path]]
    path = random_numbers.choice(paths)
    return draw_damage(random_numbers, path, sizes[path])


def problems_of(store: DamagedStore, kind: str, damage: Damage) -> list[str]:
    """Return the outcomes that are neither harmless nor an error of the library with a way out.

    A call may return another result if a call that verifies the file reports the damage. Values in
    the registry have no checksums: a changed value is a documented limit, a shorter file is not.
    """
    outcomes = list(store.outcomes(kind, damage))
    is_reported = any(outcome.state == "error" for outcome in outcomes)
    is_limit = kind == "registry" and damage.change != "truncate"
    return [
        f"{kind}, {outcome.call}: {outcome.state} {outcome.text[:300]}, {damage}"
        for outcome in outcomes
        if outcome.state in ("unhandled", "without hint")
        or (outcome.state == "different" and not is_reported and not is_limit)
    ]
