"""Shared fixtures, and the scheduling rules for the single Spark session of a run.

Spark tests carry the marker ``spark`` (set by itself where a test asks for the fixture), run last,
and under xdist are one group, so that one process holds the only session; the other tests are given
out by file. Without Java they are skipped, and the last lines say so; with ``CI=true`` a missing
Java is a failure.
"""

from __future__ import annotations

import ast
import gc
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests import azure_server as azure
from tests import gcs_server as gcs
from tests import hdfs_server as hdfs
from tests.forking import WORKER_MODULE, ForkedWorker, ForkServer
from tests.hint_checks import find_recorded_problems, record_hints
from tests.maven import NotFetched
from tests.object_server import ObjectServer, program, serving
from tests.on_spark import INTERPRETED_QUERIES, QUICK_JAVA, look_names_up_once
from tests.streams import kafka_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from featurestore.store import FeatureStore
    from featurestore_connectors.duckdb_delta import DuckDBEngine
    from featurestore_connectors.spark_delta import SparkEngine

pytest_plugins = ["tests.leftover_processes"]
JAVA_VERSIONS = (17, 21)
# Libraries of extras: a run with --core-only leaves out what needs one that is not installed.
OPTIONAL = (
    "delta",
    "great_expectations",
    "keras",
    "petastorm",
    "pyspark",
    "ray",
    "tensorflow",
    "tf_keras",
    "torch",
)
SKIPPED_SPARK = "Spark suite skipped"
SKIPPED_STORAGE = "S3 suite skipped"
SKIPPED_HDFS = "HDFS suite skipped"
SKIPPED_CLOUDS = "suites of Azure and Google Cloud Storage skipped"
# PyTorch brings gigabytes of libraries: it has an environment of its own, and these tests with it.
TORCH_TESTS = "tests/torch"
RAY_TESTS = "tests/ray"  # in the same environment
WITHOUT_TORCH = (
    f"PyTorch suite left out: torch is not installed (.ci/run runs {TORCH_TESTS} in .venv-torch)"
)
# Tests with these markers run in one process, by the name of their group.
MARKED_GROUPS = {"tensorflow": "tensorflow", "postgres": "databases", "mariadb": "databases"}
# Tests that request one of these fixtures run in one process, so that the server starts once.
FIXTURE_GROUPS = {
    "azure_server": "az",
    "broker": "kafka",
    "gcs_server": "gs",
    "hdfs_server": "hdfs",
}
# Tests with one of these fixtures or markers get the marker ``services``. Others have it in their file:
# tests that start or kill processes, or whose parameters choose the server.
SERVICE_FIXTURES = frozenset(
    {
        *FIXTURE_GROUPS,
        *("browser", "cluster", "durable_redis", "fork_server", "forked_workers"),
        *("object_server", "ray_cluster", "redis_server"),
    }
)
SERVICE_MARKERS = ("spark", "postgres", "mariadb")

# Two processes share two cores with a JVM, so the duration of an example is not checked; pytest-timeout
# limits each test. Examples are the same in each run, so that a failure is repeated by the next run;
# soak tests draw new ones.
settings.register_profile(
    "house",
    max_examples=50,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", settings.get_profile("house"), derandomize=False)
settings.load_profile("house")

# Tests do not cover power loss, so files need no sync.
os.environ.setdefault("FEATURESTORE_DURABILITY", "fast")
# Every Java that a test starts, in any process.
os.environ.setdefault("JDK_JAVA_OPTIONS", QUICK_JAVA)


# The environment variable with the folder of recorded hints, for all processes of a run.
HINTS_FOLDER = "FEATURESTORE_TEST_HINTS"
HINT_PROBLEMS = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--core-only",
        action="store_true",
        help="skip the tests of extras that are not installed",
    )
    parser.addoption(
        "--hints",
        action="store_true",
        help="check the code and commands in the hints of all errors that tests raise",
    )
    parser.addoption(
        "--times", action="store_true", help="print the 20 slowest tests and the sum of each folder"
    )


# -- Java ---------------------------------------------------------------------------------------------------------


@cache
def missing_for_spark() -> str | None:
    """Return why Spark cannot run here, or None if it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    expected = " or ".join(map(str, JAVA_VERSIONS))
    if java is None or not os.access(java, os.X_OK):
        return f"no Java {expected} found"
    answer = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=60, check=False
    )
    matches = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if matches is None or answer.returncode != 0:
        return f"no Java {expected} found ({java} does not run)"
    if int(matches.group(1)) not in JAVA_VERSIONS:
        return f"no Java {expected} found ({java} is Java {matches.group(1)})"
    return None


def require_spark() -> None:
    """Skip the current test if Spark cannot run here, or fail it where CI requires Spark."""
    reason = missing_for_spark()
    if reason is None:
        return
    if os.environ.get("CI", "").lower() in {"1", "true"} and "pyspark" not in reason:
        pytest.fail(f"CI=true, but {reason}", pytrace=False)
    pytest.skip(f"{SKIPPED_SPARK}: {reason}")


# -- which tests, in which order ------------------------------------------------------------------------------------


@cache
def absent() -> frozenset[str]:
    return frozenset(name for name in OPTIONAL if importlib.util.find_spec(name) is None)


def left_out(config: pytest.Config) -> frozenset[str]:
    """Return the absent libraries whose tests are skipped; petastorm has an environment of its own."""
    return absent() if config.getoption("--core-only") else absent() & {"petastorm"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files that import absent extras at their top."""
    name = collection_path.relative_to(config.rootpath).as_posix()
    if name == TORCH_TESTS and "torch" in absent():
        return True
    if name == RAY_TESTS and "ray" in absent():
        return True
    if not left_out(config) or collection_path.suffix != ".py":
        return None
    imported = set()
    for node in ast.parse(collection_path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
    return True if imported & left_out(config) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Turn failures for modules of absent extras into skips; without --core-only, for petastorm."""
    report: Any = yield
    if call.excinfo is not None and report.failed:
        cause: BaseException | None = call.excinfo.value
        while cause is not None and not isinstance(cause, ModuleNotFoundError):
            cause = cause.__cause__ or cause.__context__
        name = (cause.name or "").split(".")[0] if isinstance(cause, ModuleNotFoundError) else ""
        if name in left_out(item.config):
            report.outcome = "skipped"
            report.longrepr = (
                str(item.path),
                item.location[1] or 0,
                f"Skipped: {name} is not installed",
            )
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Assign the tests of a file to one process, so that fixtures are created once.

    Groups stay groups. What comes first is begun first.
    """
    if config.option.dist != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Files(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return scope.split("::")[0]

    config.option.loadscopereorder = False
    return Files(config, log)


def _turn(item: pytest.Item, slow_files: set[Path]) -> int:
    """Return the sort key of a test: Spark last, or first if it has its own process.

    There groups and files with slow tests are next, so that no process waits for one in the end.
    """
    on_spark = item.get_closest_marker("spark") is not None
    if not hasattr(item.config, "workerinput"):
        return int(on_spark)
    if on_spark:
        return 0
    if item.path in slow_files or item.get_closest_marker("xdist_group") is not None:
        return 1
    return 2


def _group(item: pytest.Item) -> str | None:
    """Return the group of tests that share an expensive fixture and run in one process.

    A session of Spark, a server, an import of TensorFlow, a browser.
    """
    if item.get_closest_marker("spark") is not None:
        return "spark"
    for fixture in getattr(item, "fixturenames", ()):
        if fixture in FIXTURE_GROUPS:
            return FIXTURE_GROUPS[fixture]
    for marker, group in MARKED_GROUPS.items():
        if item.get_closest_marker(marker) is not None:
            return group
    return "server" if item.path.parent.name == "server" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Pause garbage collection, and exclude what was collected from later passes.

    Modules and tests, a million objects, live until the end of the run, and the collector would
    search them again and again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


# Before xdist looks for groups: else both workers would start a Spark session.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if "spark" in fixtures and item.get_closest_marker("spark") is None:
            item.add_marker(pytest.mark.spark)
        if fixtures & SERVICE_FIXTURES or any(map(item.get_closest_marker, SERVICE_MARKERS)):
            item.add_marker(pytest.mark.services)
        group = _group(item)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        if item.name in getattr(getattr(item, "cls", None), "in_soak", ()):
            item.add_marker(pytest.mark.soak)
    slow_files = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: _turn(item, slow_files))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr").startswith("soak"):
        settings.load_profile("soak")
    if config.getoption("--hints"):
        if not hasattr(config, "workerinput"):
            os.environ[HINTS_FOLDER] = tempfile.mkdtemp(prefix="featurestore-hints-")
        record_hints(Path(os.environ[HINTS_FOLDER]))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if recorded hints have problems."""
    config = session.config
    if config.getoption("--hints") and not hasattr(config, "workerinput"):
        config.stash[HINT_PROBLEMS] = find_recorded_problems(Path(os.environ[HINTS_FOLDER]))
        if config.stash[HINT_PROBLEMS]:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the recorded hints, to which no worker writes any more."""
    if config.getoption("--hints") and not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(HINTS_FOLDER, ""), ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spark") is not None:
        require_spark()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """Print what was skipped, and how many random cases agreed with the oracle."""
    yield
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        if not isinstance(report.longrepr, tuple):
            continue
        reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section(f"{reasons.total()} skipped, by reason")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5} {reason}", yellow=True)
    if "torch" in absent():
        terminalreporter.write_line(WITHOUT_TORCH, yellow=True)
    cases: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", ()):
        noted = dict(getattr(report, "user_properties", ()))
        cases.update(
            {name: count for name, count in noted.items() if name.startswith("random cases on ")}
        )
        for line in noted.get("canary responses", ()):
            terminalreporter.write_line(line)
    for name, count in sorted(cases.items()):
        terminalreporter.write_line(f"point in time: the oracle agreed with {count:,} {name}")
    if terminalreporter.config.getoption("--times"):
        _write_times(terminalreporter)
    # Last, since a log that is cut keeps its end.
    for report in (*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")):
        terminalreporter.write_line(f"FAILED {report.nodeid}", red=True)
    for problem in terminalreporter.config.stash.get(HINT_PROBLEMS, []):
        terminalreporter.write_line(f"invalid hint: {problem}", red=True)


def _write_times(terminalreporter: Any) -> None:
    """Print the slowest folders and tests.

    The slowest tests with their fixtures, and the sum of each folder.
    """
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            # The duration of a test includes its subtests.
            if isinstance(report, pytest.TestReport) and not isinstance(
                report, pytest.SubtestReport
            ):
                seconds[report.nodeid] += report.duration
    folders: Counter[str] = Counter()
    for name, duration in seconds.items():
        folders["/".join(name.split("::")[0].split("/")[:2])] += duration
    terminalreporter.section("where the time went, seconds")
    for name, duration in seconds.most_common(20):
        terminalreporter.write_line(f"{duration:8.1f} {name}")
    terminalreporter.write_line("")
    for name, duration in folders.most_common():
        terminalreporter.write_line(f"{duration:8.1f} {name}")


# -- what this machine remembers -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def unwarned_positions() -> None:
    """Let warnings that are issued once per position appear in each test."""
    arguments = sys.modules.get("featurestore.model.arguments")
    if arguments is not None:
        arguments._warned_positions.clear()


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the job grants of tests out of the user's state directory."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    yield
    if before is None:
        del os.environ["XDG_STATE_HOME"]
    else:
        os.environ["XDG_STATE_HOME"] = before


# -- fixtures -------------------------------------------------------------------------------------------------------


@pytest.fixture
def command_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Run a ``featurestore`` command in this process.

    It has to end with ``code``. Returns what it printed.
    """
    from featurestore.cli.main import main

    def call(*words: str, code: int = 0) -> Any:
        monkeypatch.setattr(sys, "argv", ["featurestore", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code == code, printed.err
        return printed

    return call


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """The process that forks the programs that need TensorFlow."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def forked_workers(fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the workers of experiments, which saves their TensorFlow import.

    For tests of what is trained; how workers are started and ended has tests of its own.
    """
    from featurestore_connectors.launchers import local

    def start(command: list[str], given: bytes, **where: Any) -> ForkedWorker:
        assert command == [sys.executable, "-m", WORKER_MODULE]
        return ForkedWorker(fork_server, given, **where)

    monkeypatch.setattr(local, "SupervisedProcess", start)


@pytest.fixture(scope="session")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """A real S3 server, built on first use."""
    path, why = program()
    if path is None or importlib.util.find_spec("obstore") is None:
        pytest.skip(f"{SKIPPED_STORAGE}: {why or 'obstore is not installed'}")
    with serving(tmp_path_factory.mktemp("buckets")) as server:
        yield server


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[azure.AzureServer]:
    """A real Azure Blob Storage server, installed on first use."""
    pytest.importorskip("obstore", reason=f"{SKIPPED_CLOUDS}: obstore is not installed")
    try:
        with azure.serving(tmp_path_factory.mktemp("azurite")) as server:
            yield server
    except NotFetched as error:
        pytest.skip(f"{SKIPPED_CLOUDS}: {error}")


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[gcs.GcsServer]:
    """A real Google Cloud Storage server, built on first use."""
    pytest.importorskip("obstore", reason=f"{SKIPPED_CLOUDS}: obstore is not installed")
    try:
        with gcs.serving() as server:
            yield server
    except NotFetched as error:
        pytest.skip(f"{SKIPPED_CLOUDS}: {error}")


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hdfs.HdfsServer]:
    """A real HDFS, downloaded on first use."""
    pytest.importorskip("hdfs_native", reason=f"{SKIPPED_HDFS}: hdfs-native is not installed")
    try:
        with hdfs.serving(tmp_path_factory.mktemp("hdfs"), hdfs.QUICK) as server:
            yield server
    except hdfs.NoHdfs as error:
        pytest.skip(f"{SKIPPED_HDFS}: {error}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one local Spark session of the run, with Delta."""
    require_spark()
    from pyspark.sql import SparkSession

    from featurestore_connectors.spark_delta import configure_session
    from featurestore_connectors.spark_delta.jars import gcs_connector

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # A session started inside Python reads this variable and not spark.pyspark.python; else workers
    # are PATH's python3.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.memory": "2g",
        # Most tests that start their own Spark (on a cluster, by spark-submit, by the engine) have
        # the settings of users.
        **INTERPRETED_QUERIES,
        # Recording the source line of each column is slow.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    jars = [*kafka_server.spark_jars(), *kafka_server.spark_jars(kafka_server.JDBC_DRIVER)]
    jars += kafka_server.spark_jars(kafka_server.S3A)
    jars += [jar for jar in (gcs_connector(),) if jar.exists()]
    if jars:  # fetched once by make test
        settings["spark.jars"] = ",".join(map(str, jars))
    builder = SparkSession.builder.master("local[2]").appName("featurestore-tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = configure_session(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    look_names_up_once(session)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def compiled_queries(spark: SparkSession) -> Iterator[None]:
    """Compile and adaptively plan queries, as in production, until the end of the module."""
    usual = {
        "spark.sql.codegen.wholeStage": "true",
        "spark.sql.codegen.factoryMode": "FALLBACK",
        "spark.sql.adaptive.enabled": "true",
    }
    before = {key: spark.conf.get(key) for key in usual}
    for key, value in usual.items():
        spark.conf.set(key, value)
    yield
    for key, value in before.items():
        spark.conf.set(key, str(value))


@pytest.fixture(scope="module")
def engine() -> Iterator[DuckDBEngine]:
    """An embedded engine; its first query takes longer than most tests."""
    from featurestore_connectors.duckdb_delta import DuckDBEngine

    engine = DuckDBEngine()
    yield engine
    engine.close()


@pytest.fixture
def spark_engine(spark: SparkSession) -> Iterator[SparkEngine]:
    """A new engine on the Spark session of the run."""
    from featurestore_connectors.spark_delta import SparkEngine

    engine = SparkEngine(spark)
    yield engine
    engine.close()


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def engine_name(request: pytest.FixtureRequest) -> str:
    """The name of an engine; the test runs once per engine."""
    name: str = request.param
    return name


@pytest.fixture
def connect(engine_name: str, request: pytest.FixtureRequest) -> Callable[..., FeatureStore]:
    """A function that opens a store at a location; the test runs once per engine."""
    import featurestore

    if engine_name == "spark":
        request.getfixturevalue("spark")
    return partial(featurestore.connect, engine=engine_name)


@pytest.fixture
def store(connect: Callable[..., FeatureStore], tmp_path: Path) -> FeatureStore:
    """A new, empty store; the test runs once per engine."""
    return connect(tmp_path / "store")


@pytest.fixture(scope="session")
def empty_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an empty store, created once: copying it is cheaper than creating tables."""
    import featurestore

    folder = tmp_path_factory.mktemp("empty") / "store"
    featurestore.connect(folder, engine="duckdb").close()
    return folder


@pytest.fixture
def empty_store(empty_template: Path, tmp_path: Path) -> Iterator[FeatureStore]:
    """A new, empty store on the embedded engine."""
    from tests.store_copies import copy_of

    with copy_of(empty_template, tmp_path / "store") as store:
        yield store


@pytest.fixture(scope="session")
def flights_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store with flights, weather and planes (``tests/flights.py``)."""
    import featurestore
    from tests.flights import fill_flights

    folder = tmp_path_factory.mktemp("flights") / "store"
    with featurestore.connect(folder, engine="duckdb") as store:
        fill_flights(store)
    return folder


@pytest.fixture(scope="session")
def flights_store(
    flights_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FeatureStore]:
    """A store with flights, weather and planes that tests only read."""
    from tests.flights import content_of
    from tests.store_copies import copy_of

    with copy_of(flights_template, tmp_path_factory.mktemp("read") / "store") as store:
        content = content_of(store)
        yield store
        assert content_of(store) == content, "a test changed flights_store; use flights_copy"


@pytest.fixture
def flights_copy(flights_template: Path, tmp_path: Path) -> Iterator[FeatureStore]:
    """A store with flights, weather and planes that the test may change."""
    from tests.store_copies import copy_of

    with copy_of(flights_template, tmp_path / "store") as store:
        yield store
