"""The flights example on a slice.

The same rows on both engines, and the whole job from raw tables to proof.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore import FeatureStore
from tests.forking import ForkedPrograms, ForkServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights"
SLICE = "2013-01-08"


@pytest.fixture(scope="module")
def late_flights() -> Iterator[None]:
    """Make the package of the example importable."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(EXAMPLE))
        yield
    for name in [module for module in sys.modules if module.split(".")[0] == "late_flights"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def sliced(late_flights: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    """A store with the groups of the slice, to which tests add."""
    from late_flights import features

    with featurestore.connect(tmp_path_factory.mktemp("sliced"), engine="duckdb") as store:
        features.write_groups(store, until=SLICE)
        yield store


def run_program(
    name: str,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *words: str,
) -> str:
    """Run a program of the example on the slice, in this process; return what it printed."""
    arguments = [name, "--until", SLICE, "--epochs", "1", "--out", str(out), *words]
    monkeypatch.setattr(sys, "argv", arguments)
    for variable, value in (("MPLBACKEND", "Agg"), ("TF_CPP_MIN_LOG_LEVEL", "2")):
        monkeypatch.setenv(variable, value)  # else it would stay after the program
    status: object = 0
    try:
        runpy.run_path(str(EXAMPLE / name), run_name="__main__")
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr().out
    assert status == 0, printed
    return printed


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
def test_flights_training_rows_equal_on_both_engines(tmp_path: Path) -> None:
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


def test_flights_served_prediction_equals_score(sliced: FeatureStore) -> None:
    from late_flights import serving

    served, scored = serving.predict(sliced)
    assert served == scored
    assert sliced.get_feature_view("late_flights").verify_online(sample=200).ok


def test_flights_features_have_no_leakage(sliced: FeatureStore) -> None:
    from late_flights import features

    frame = sliced.get_features(features.FEATURES, labels="questions")
    assert sliced.check_leakage(frame, sample=200).ok


@pytest.mark.parametrize("honest", [True, False])
def test_check_leakage_recompute_detects_leaking_flights_features(
    sliced: FeatureStore, honest: bool
) -> None:
    from late_flights import features, leaking

    departures = sliced.get_featuregroup("departures")
    make = features.origin_traffic if honest else leaking.leaking_traffic
    name = "honest_traffic" if honest else "leaking_traffic"
    sliced.create_featuregroup(
        make(departures.native()),
        name,
        primary_key=["origin"],
        event_time="known_at",
        ttl="3h",
    )
    frame = sliced.get_features([f"{name}.mean_delay", f"{name}.late_share"], labels="questions")
    report = sliced.check_leakage(
        frame,
        sample=100,
        recompute={name: lambda timestamp: make(leaking.up_to(departures, timestamp).native())},
    )
    assert report.ok is honest, str(report)
    if not honest:
        assert {leak.feature for leak in report.leaks} == {"mean_delay", "late_share"}


RunMain = Callable[..., str]


@pytest.fixture
def run_main(
    late_flights: None,
    fork_server: ForkServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> RunMain:
    """A function that runs the example on the slice, with workers forked from one process."""
    from late_flights import training

    monkeypatch.setattr(training, "subprocess", ForkedPrograms(fork_server))
    return partial(run_program, "main.py", tmp_path, monkeypatch, capsys)


@pytest.mark.tensorflow
def test_flights_example_runs_on_slice(run_main: RunMain, tmp_path: Path) -> None:
    printed = run_main()
    assert "verify: ok" in printed
    assert re.search(r"test AUC: 0\.\d{3}", printed)
    pictures = list(tmp_path.glob("run-*/*.png"))
    assert sorted(picture.name for picture in pictures) == ["correlations.png", "loss.png"]
    assert all(picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for picture in pictures)


@pytest.mark.tensorflow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "engines",
    [
        ("duckdb", "spark"),
        # CI runs `make demo ENGINE=spark` in a new store.
        pytest.param(("spark", "duckdb"), marks=pytest.mark.soak),
    ],
)
def test_flights_example_runs_again_on_the_other_engine(
    run_main: RunMain, tmp_path: Path, engines: tuple[str, str]
) -> None:
    for number, engine in enumerate(engines, 1):
        printed = run_main("--engine", engine)
        # The second run has the same rows, so it keeps the groups.
        assert len(re.findall(r"^  \w+ version 1: [\d,]+ rows$", printed, re.MULTILINE)) == 7
        assert printed.count("already has this definition and these rows") == 7 * (number - 1)
        assert f"late_flights_tfrecord version {number}: " in printed
        assert re.search(r"served -?\d\.\d+, scored offline -?\d\.\d+: equal True", printed)
        assert re.search(r"verify: ok\ntest AUC: 0\.\d{3}", printed)
    with featurestore.connect(tmp_path / "store") as store:
        datasets = [
            store.get_training_dataset("late_flights_tfrecord", version=version)
            for version in (1, 2)
        ]
        assert all(dataset.verify().ok for dataset in datasets)
        first, second = [
            {path.parent.name: path.read_bytes() for path in Path(dataset.path).rglob("tfrecord-*")}
            for dataset in datasets
        ]
        assert first == second
        assert sorted(first) == ["test", "train", "validation"]
        assert store.get_feature_view("late_flights").verify_online(sample=200).ok


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_flights_network_search_ablation_and_scoring_run(sliced: FeatureStore) -> None:
    for library in ("optuna", "tensorboard", "tf_keras"):
        pytest.importorskip(library)
    from late_flights import datasets, features, trials

    frame = sliced.get_features(features.FEATURES, labels="questions")
    dataset = datasets.make(sliced, frame, "tfrecord", until=SLICE)
    study = trials.search(dataset, trials=1, parallel=1, epochs=1)
    assert 0.4 < study.best.metrics["val_auc"] < 1
    groups = {"weather": ["temp", "humid"]}
    worth = trials.ablate(dataset, features=groups, repeats=1, parallel=1)
    assert [row.name for row in worth.rows] == ["weather"]
    request = sliced.get_featuregroup("questions").filter("origin = 'JFK'")
    model, auc = trials.score(sliced, dataset, request)
    assert 0.4 < auc < 1
    assert sliced.featuregroup("late_predictions").read().count() == request.count()
    assert model.label == ("late",)


@pytest.mark.tensorflow
@pytest.mark.usefixtures("late_flights")
def test_flights_keras_3_trains_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorflow")
    words = ("--framework", "keras")
    printed = run_program("one_process.py", tmp_path, monkeypatch, capsys, *words)
    assert re.search(r"keras: test AUC 0\.[4-9]\d\d on 1,154 flights", printed)


def test_weather_monitor_alarms_in_winter(tmp_path: Path) -> None:
    command = [sys.executable, "watch.py", "--until", "2013-11-04T00:00Z", "--out", str(tmp_path)]
    process = subprocess.run(
        command, cwd=EXAMPLE, capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "weather_watch: alarm, 2013-09-23" in process.stdout
    assert "temp: 9.5% of values are outside the baseline's range" in process.stdout
    assert "temp: distribution shifted; PSI " in process.stdout
    assert (tmp_path / "winter.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "<svg" in (tmp_path / "winter.html").read_text()
