"""``doctor``, ``serve`` and ``registry``: check, serve and re-index a store."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from featurestore.cli.output import show_record, show_rows, show_text
from featurestore.cli.state import Settings, settings, store
from featurestore.errors import FeatureStoreError, MissingExtra

app = typer.Typer()
registry_app = typer.Typer(no_args_is_help=True)

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


@app.command(epilog="Example: featurestore metrics > /var/lib/node_exporter/featurestore.prom")
def metrics(context: typer.Context) -> None:
    """Print metrics of rows, commits, runs, monitors and alerts in the Prometheus text format."""
    text = store(context).get_metrics()
    show_text(context, text, data={"text": text})


@app.command(epilog="Example: featurestore doctor --output json")
def doctor(
    context: typer.Context,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also read all files of the store and compare checksums."),
    ] = False,
) -> None:
    """Check this machine: Python, libraries, Java, location, registry, engines, formats."""
    checks = run_checks(settings(context))
    if deep:
        from featurestore.cli.file_checks import check_store_files

        checks += check_store_files(store(context))
    show_rows(
        context, [vars(check) for check in checks], columns=["check", "state", "detail", "hint"]
    )
    if any(check.state == PROBLEM for check in checks):
        raise typer.Exit(1)


def run_checks(options: Settings) -> list[Check]:
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


def _check_store(options: Settings) -> Iterator[Check]:
    """Check the engine, the location and the registry that the options select."""
    from featurestore import config
    from featurestore.storage import files, storage_for

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
        directory = files.location_of(resolved.location)
        if not storage_for(directory).is_local:
            yield from _check_remote_store(directory, resolved.registry)
            return
        if not files.exists(directory):
            yield Check("location", ABSENT, f"{directory} does not exist yet", "featurestore init")
            return
        files.ensure_writable(directory)
        yield Check("location", OK, f"{directory} is writable")
        yield _check_registry(directory, resolved.registry)
        yield from _check_private_files(directory)
    except FeatureStoreError as error:
        yield Check("store", PROBLEM, error.message, error.hint)


def _check_private_files(location: str) -> Iterator[Check]:
    """Check that other users of the machine have no access to private files of a local store."""
    from featurestore.storage.private import find_exposed_paths

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
    from featurestore.registry.inspection import find_problems, inspect
    from featurestore.registry.migrations import head_revision
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

    for kind in ("engines", "formats", "validators"):
        names = plugin_names(kind)
        yield Check(kind, OK if names else PROBLEM, ", ".join(names) or "none")


@app.command(epilog="Example: featurestore serve --port 8787")
def serve(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8787,
    auth: Annotated[
        bool, typer.Option("--auth", help="Require users to sign in and programs to send tokens.")
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name that clients use for this server, repeatable.", show_default=False
        ),
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(help="TLS certificate file.", show_default=False)
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(help="Private key file of the certificate.", show_default=False)
    ] = None,
    oidc_issuer: Annotated[
        str | None,
        typer.Option(help="Issuer URL of an OpenID Connect provider.", show_default=False),
    ] = None,
    oidc_client: Annotated[str, typer.Option(help="Client id of this server.")] = "featurestore",
    oidc_secret: Annotated[
        str, typer.Option(help="Client secret: env:NAME or file:path.")
    ] = "env:FEATURESTORE_OIDC_SECRET",
    oidc_role: Annotated[
        str | None,
        typer.Option(
            help="Role of new users of the provider; if unset, an admin must add each user.",
            show_default=False,
        ),
    ] = None,
    query_seconds: Annotated[
        float, typer.Option(help="Time limit of a page or response in seconds.", min=0.1)
    ] = 30.0,
    requests_per_person: Annotated[
        int, typer.Option(help="Requests of one person that run at the same time.", min=1)
    ] = 8,
    connections: Annotated[
        int, typer.Option(help="Open connections, at most; idle ones are closed first.", min=1)
    ] = 512,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy on this machine terminates TLS.")
    ] = False,
    trust_models: Annotated[
        bool,
        typer.Option("--trust-models", help="Predict with models that run code, such as pickles."),
    ] = False,
) -> None:
    """Serve web pages and a REST interface until Ctrl-C."""
    from featurestore.errors import missing_extra

    try:
        from featurestore.server import Provider, ServerSettings, serve
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "fastapi", "server") from None
    if (tls_certificate is None) != (tls_key is None):
        raise typer.BadParameter("--tls-certificate and --tls-key must be used together")
    provider = None
    if oidc_issuer is not None:
        provider = Provider(oidc_issuer, oidc_client, oidc_secret, role=oidc_role)
    settings = ServerSettings(
        host=host,
        port=port,
        auth=auth,
        names=tuple(name or ()),
        certificate=tls_certificate,
        key=tls_key,
        behind_proxy=behind_proxy,
        trust_models=trust_models,
        query_seconds=query_seconds,
        requests_per_person=requests_per_person,
        connections=connections,
        provider=provider,
    )
    serve(store(context), settings)


@registry_app.command(epilog="Example: featurestore registry rebuild")
def rebuild(context: typer.Context) -> None:
    """Rebuild the registry from the Delta tables and manifests; list what they do not contain."""
    from featurestore.jobs.recovery import restore_runs
    from featurestore.recovery.rebuild import rebuild as rebuild_registry

    location, url = _location_and_registry(context)
    show_record(context, vars(rebuild_registry(location, url=url, restore=restore_runs)))


@registry_app.command(epilog="Example: featurestore registry upgrade")
def upgrade(context: typer.Context) -> None:
    """Upgrade the registry to this release's revision, as opening the store does."""
    from featurestore.registry import open_registry
    from featurestore.registry.inspection import inspect, revision

    location, url = _location_and_registry(context)
    # Opening the registry upgrades it, so the earlier revision is read first.
    earlier_revision = inspect(location, url=url)
    registry = open_registry(location, url=url)
    try:
        show_record(context, {"before": earlier_revision, "now": revision(registry)})
    finally:
        registry.close()


def _location_and_registry(context: typer.Context) -> tuple[str, str | None]:
    from featurestore import config
    from featurestore.storage import files

    options = settings(context)
    resolved = config.resolve(
        location=options.location, engine=options.engine, registry=options.registry
    )
    directory = files.location_of(resolved.location)
    files.ensure_writable(directory)
    return directory, resolved.registry
