"""The flights example on a slice.

The same rows on both engines, and the whole job from raw tables to proof.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore import FeatureStore

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights"
SLICE = "2013-01-08"


@pytest.fixture
def late_flights(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    for name in [each for each in sys.modules if each.split(".")[0] == "late_flights"]:
        del sys.modules[name]


def training_rows(store: FeatureStore) -> pa.Table:
    from late_flights import features

    features.write_groups(store, until=SLICE)
    frame = store.get_features(features.FEATURES, labels="questions")
    return frame.to_arrow().sort_by(
        [(name, "ascending") for name in ("asked_at", "carrier", "flight", "origin")]
    )


@pytest.mark.soak  # the suites of retrieval hold each part of it on Spark
@pytest.mark.spark
@pytest.mark.usefixtures("late_flights", "spark")
def test_both_engines_give_the_same_training_rows(tmp_path: Path) -> None:
    embedded = training_rows(featurestore.connect(tmp_path / "duckdb", engine="duckdb"))
    cluster = training_rows(featurestore.connect(tmp_path / "spark", engine="spark"))
    assert embedded.num_rows > 5000
    assert cluster.schema.equals(embedded.schema)
    for name in embedded.column_names:
        if name in ("mean_delay", "late_share"):  # means: each engine adds in its own order
            assert cluster[name].is_null().equals(embedded[name].is_null())
            pairs = zip(cluster[name].to_pylist(), embedded[name].to_pylist(), strict=True)
            assert all(a == pytest.approx(b, rel=1e-12) for a, b in pairs if a is not None)
        else:
            assert cluster[name].combine_chunks().equals(embedded[name].combine_chunks()), name


@pytest.mark.usefixtures("late_flights")
def test_no_feature_was_known_later_than_its_question(duckdb_store: FeatureStore) -> None:
    from late_flights import features

    features.write_groups(duckdb_store, until=SLICE)
    frame = duckdb_store.get_features(features.FEATURES, labels="questions")
    assert duckdb_store.check_leakage(frame, sample=200).ok


@pytest.mark.usefixtures("late_flights")
@pytest.mark.parametrize("honest", [True, False])
def test_values_stamped_before_they_were_known_are_caught(
    duckdb_store: FeatureStore, honest: bool
) -> None:
    from late_flights import features, leaking

    features.write_groups(duckdb_store, until=SLICE)
    departures = duckdb_store.get_featuregroup("departures")
    make = features.origin_traffic if honest else leaking.leaking_traffic
    duckdb_store.create_featuregroup(
        make(departures.native()),
        "traffic",
        primary_key=["origin"],
        event_time="known_at",
        ttl="3h",
    )
    frame = duckdb_store.get_features(
        ["traffic.mean_delay", "traffic.late_share"], labels="questions"
    )
    report = duckdb_store.check_leakage(
        frame,
        sample=100,
        recompute={"traffic": lambda moment: make(leaking.up_to(departures, moment).native())},
    )
    assert report.ok is honest, str(report)
    if not honest:
        assert {leak.feature for leak in report.leaks} == {"mean_delay", "late_share"}


@pytest.mark.tensorflow
def test_the_whole_example_runs_on_a_slice(tmp_path: Path) -> None:
    command = [sys.executable, "main.py", "--until", SLICE, "--epochs", "1", "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=EXAMPLE, capture_output=True, text=True, timeout=540, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verify: ok" in done.stdout
    assert re.search(r"test AUC: 0\.\d{3}", done.stdout)
    pictures = list(tmp_path.glob("run-*/*.png"))
    assert sorted(each.name for each in pictures) == ["correlations.png", "loss.png"]
    assert all(each.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for each in pictures)


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("late_flights")
def test_the_network_is_searched_taken_apart_and_scored_with(duckdb_store: FeatureStore) -> None:
    for library in ("optuna", "tensorboard", "tf_keras"):
        pytest.importorskip(library)
    from late_flights import datasets, features, trials

    features.write_groups(duckdb_store, until=SLICE)
    frame = duckdb_store.get_features(features.FEATURES, labels="questions")
    dataset = datasets.make(duckdb_store, frame, "tfrecord", until=SLICE)
    study = trials.search(dataset, trials=1, parallel=1, epochs=1)
    assert 0.4 < study.best.metrics["val_auc"] < 1
    parts = {"weather": ["temp", "humid"]}
    worth = trials.ablate(dataset, features=parts, repeats=1, parallel=1)
    assert [row.name for row in worth.rows] == ["weather"]
    asked = duckdb_store.get_featuregroup("questions").filter("origin = 'JFK'")
    model, auc = trials.score(duckdb_store, dataset, asked)
    assert 0.4 < auc < 1
    assert duckdb_store.featuregroup("late_predictions").read().count() == asked.count()
    assert model.label == ("late",)


@pytest.mark.tensorflow
def test_keras_3_trains_in_one_process(tmp_path: Path) -> None:
    command = [sys.executable, "one_process.py", "--until", SLICE, "--epochs", "1"]
    command += ["--framework", "keras", "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=EXAMPLE, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"keras: test AUC 0\.[4-9]\d\d on 1,154 flights", done.stdout)


def test_the_monitor_of_the_weather_finds_the_winter(tmp_path: Path) -> None:
    command = [sys.executable, "watch.py", "--until", "2013-11-04T00:00Z", "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=EXAMPLE, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "weather_watch: alarm, 2013-10-14" in done.stdout
    assert "temp psi" in done.stdout
    assert (tmp_path / "winter.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "<svg" in (tmp_path / "winter.html").read_text()
