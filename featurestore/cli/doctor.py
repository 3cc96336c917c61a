"""``doctor``: check this machine, and the registry and the files of a store."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from featurestore.cli.output import show_rows
from featurestore.cli.state import GlobalOptions, settings, store
from featurestore.errors import FeatureStoreError, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from featurestore.store import FeatureStore

app = typer.Typer()

OK, ABSENT, PROBLEM = "ok", "absent", "problem"
JAVA_VERSIONS = (17, 21)
_CORE = ("duckdb", "deltalake", "pyarrow", "numpy", "sqlalchemy", "alembic", "sqlglot")
# The distributions of extras, and a module of each.
_OPTIONAL = {
    "pyspark": "pyspark",
    "delta-spark": "delta",
    "tensorflow": "tensorflow",
    "tf_keras": "tf_keras",
    "petastorm": "petastorm",
    "great-expectations": "great_expectations",
    "matplotlib": "matplotlib",
    "cronsim": "cronsim",
    "narwhals": "narwhals",
    "pandas": "pandas",
    "polars": "polars",
    "psycopg": "psycopg",
    "obstore": "obstore",
    "hdfs-native": "hdfs_native",
}


@dataclass(frozen=True)
class Check:
    """The result of one check; ``state`` is "ok", "absent" (optional) or "problem"."""

    check: str
    state: str
    detail: str
    hint: str | None = None


@app.command(epilog="Example: featurestore doctor --output json")
def doctor(
    context: typer.Context,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also read all files of the store and compare checksums.")
    ] = False,
) -> None:
    """Check this machine: Python, libraries, Java, location, registry, engines, formats."""
    checks = run_checks(settings(context))
    if deep:
        checks += _check_files(store(context))
    show_rows(
        context, [vars(check) for check in checks], columns=["check", "state", "detail", "hint"]
    )
    if any(check.state == PROBLEM for check in checks):
        raise typer.Exit(1)


def run_checks(options: GlobalOptions) -> list[Check]:
    """Run all checks and return their results."""
    import platform

    # Older Python versions cannot import this module.
    python = Check("python", OK, platform.python_version())
    return [python, *_check_libraries(), _check_java(), *_check_store(options), *_check_plugins()]


def _check_libraries() -> Iterator[Check]:
    from featurestore.model.distributions import install_command

    for name in _CORE:
        yield _check_library(name, PROBLEM, f"pip install {name}")
    for name, module in _OPTIONAL.items():
        yield _check_library(name, ABSENT, install_command(module))


def _check_library(name: str, state_if_missing: str, hint: str | None) -> Check:
    installed_version = _installed_version(name)
    if installed_version is None:
        return Check(name, state_if_missing, "not installed", hint)
    return Check(name, OK, installed_version)


def _installed_version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _check_java() -> Check:
    """Check that a Java version that Spark supports is installed."""
    import subprocess

    requirement = f"the Spark engine needs Java {' or '.join(map(str, JAVA_VERSIONS))}"
    java = shutil.which("java")
    if "JAVA_HOME" in os.environ:
        # Spark uses JAVA_HOME in preference to the PATH.
        java = os.path.join(os.environ["JAVA_HOME"], "bin", "java")
    if java is None or not os.access(java, os.X_OK):
        return Check("java", ABSENT, "not found", requirement)
    process = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=60, check=False
    )
    # Java prints its version to standard error; Java 8 reports version 1.8.
    version_match = re.search(r'version "(?:1\.)?(\d+)[^"]*"', process.stderr + process.stdout)
    if version_match is None:
        return Check("java", ABSENT, f"{java} does not run", requirement)
    if int(version_match[1]) not in JAVA_VERSIONS:
        return Check("java", ABSENT, f"{version_match[1]} ({java})", requirement)
    return Check("java", OK, f"{version_match[1]} ({java})")


def _check_store(options: GlobalOptions) -> Iterator[Check]:
    """Check the engine, the location and the registry that the options select."""
    from featurestore import config
    from featurestore.storage import storage_for
    from featurestore.storage.location import location_of

    settings_file = config.find_file()
    if settings_file is not None and config.is_trusted(settings_file):
        yield Check("settings", OK, f"{settings_file} is used")
    elif settings_file is not None:
        yield Check(
            "settings",
            ABSENT,
            f"{settings_file} is not used, because it belongs to another user",
            "export FEATURESTORE_LOCATION=/path/to/the/store",
        )
    try:
        resolved = config.resolve(
            location=options.location, engine=options.engine, registry=options.registry
        )
        yield Check("engine", OK, resolved.engine)
        directory = location_of(resolved.location)
        storage = storage_for(directory)
        if not storage.is_local:
            yield from _check_remote_store(directory, resolved.registry)
            return
        if not storage.exists(directory):
            yield Check("location", ABSENT, f"{directory} does not exist yet", "featurestore init")
            return
        storage.ensure_writable(directory)
        yield Check("location", OK, f"{directory} is writable")
        yield _check_registry(directory, resolved.registry)
        yield from _check_private_files(directory)
    except FeatureStoreError as error:
        yield Check("store", PROBLEM, error.message, error.hint)


def _check_private_files(location: str) -> Iterator[Check]:
    """Check that other users of the machine have no access to private files of a local store."""
    from featurestore.storage.protection import find_exposed_paths

    if os.name != "posix":  # Windows has access lists instead of modes
        return
    exposed_paths = list(find_exposed_paths(location))
    for exposed in exposed_paths:
        detail = f"{exposed.path} has the mode {exposed.mode:04o}: other users have access"
        yield Check("private files", PROBLEM, detail, exposed.command)
    if not exposed_paths:
        yield Check("private files", OK, "other users have no access")


def _check_remote_store(location: str, registry: str | None) -> Iterator[Check]:
    """Check the requirements of a store at a URI."""
    from featurestore.storage.connections import check_location

    for inspection in check_location(location):
        state = OK if inspection.passed else PROBLEM
        yield Check(f"location: {inspection.check}", state, inspection.detail, inspection.hint)
    yield from _check_session_settings(location)
    if registry is None:
        hint = "--registry postgresql://user@host/database, or sqlite:////path/to/cache.db"
        yield Check("registry", PROBLEM, "a store at a URI requires a registry URL", hint)
    else:
        yield _check_registry(location, registry)


def _check_session_settings(location: str) -> Iterator[Check]:
    """Report required session settings that the engines do not apply themselves."""
    from featurestore.plugins import plugin_names
    from featurestore.plugins.engine import find_engine

    for name in plugin_names("engines"):
        try:
            needed = find_engine(name).session_settings(location)
        # The check of libraries reports the missing extra.
        except MissingExtra:
            continue
        assignments = " ".join(f"{key}={value}" for key, value in needed.items())
        if assignments:
            detail = f"sessions that are built elsewhere need {assignments}"
            yield Check(f"location: {name} sessions", OK, detail)


def _check_registry(directory: str, url: str | None) -> Check:
    """Compare a registry with this release and with the objects in the location."""
    from featurestore.registry.migrations import head_revision
    from featurestore.registry.opening import find_problems, inspect
    from featurestore.registry.stores import rebuild_command

    problems = find_problems(directory, url=url)
    if problems:
        return Check("registry", PROBLEM, "; ".join(problems), rebuild_command(directory))
    revision, release_revision = inspect(directory, url=url), head_revision()
    if revision is None:
        return Check("registry", ABSENT, "empty", "featurestore init")
    if revision == release_revision:
        return Check("registry", OK, f"revision {revision}")
    hint = "featurestore registry upgrade"
    if revision > release_revision:
        hint = "pip install --upgrade featurestore"
    return Check(
        "registry", PROBLEM, f"revision {revision}; this release has {release_revision}", hint
    )


def _check_plugins() -> Iterator[Check]:
    from featurestore.plugins import plugin_names

    for plugin_type in ("engines", "formats", "validators"):
        names = plugin_names(plugin_type)
        yield Check(plugin_type, OK if names else PROBLEM, ", ".join(names) or "none")


class _Report(Protocol):
    @property
    def problems(self) -> Sequence[object]: ...


def _check_files(opened_store: FeatureStore) -> Iterator[Check]:
    """Yield a check for each feature group, training dataset, run and model; reads all files."""
    for group in opened_store.get_featuregroups():
        yield from _check_report(
            f"feature group {group.name}@v{group.version}",
            partial(opened_store.verify_featuregroup, group.name, version=group.version),
        )
    for dataset in opened_store.get_training_datasets():
        name = f"training dataset {dataset.name}@v{dataset.version}"
        yield from _check_report(name, dataset.verify)
    yield from _check_experiments(opened_store)


def _check_experiments(opened_store: FeatureStore) -> Iterator[Check]:
    from featurestore.experiments import catalog, get_models, get_runs
    from featurestore.experiments.models import loading
    from featurestore.experiments.run_files import ARTIFACTS

    for run in get_runs(trials=True, store=opened_store):
        yield _check_call(
            f"run {run.id}", partial(catalog.verify, run.session, run.record, artifacts=[ARTIFACTS])
        )
    for model in get_models(store=opened_store):
        yield _check_call(
            f"model {model.name}@v{model.version}",
            partial(loading.check_files, model.path, model.spec),
        )


def _check_report(name: str, verify: Callable[[], _Report]) -> Iterator[Check]:
    """Yield a check for each problem in a report, or one without problems."""
    try:
        problems = verify().problems
    except FeatureStoreError as error:
        yield Check(name, PROBLEM, error.message, error.hint)
        return
    if not problems:
        yield Check(name, OK, "all files match their checksums")
    for problem in problems:
        yield Check(name, PROBLEM, str(problem), getattr(problem, "hint", None))


def _check_call(name: str, verify: Callable[[], None]) -> Check:
    try:
        verify()
    except FeatureStoreError as error:
        return Check(name, PROBLEM, error.message, error.hint)
    return Check(name, OK, "all files match their checksums")
