"""What ``doctor`` looks at. Nothing here changes the store."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from featurestore import config
from featurestore.cli.state import Settings
from featurestore.errors import FeatureStoreError
from featurestore.plugins.lookup import plugin_names
from featurestore.storage import files

OK, ABSENT, PROBLEM = "ok", "absent", "problem"
JAVA_VERSIONS = (17, 21)
_CORE = ("duckdb", "deltalake", "pyarrow", "numpy", "sqlalchemy", "alembic", "sqlglot")
_EXTRAS = {
    "pyspark": "spark", "delta-spark": "spark", "tensorflow": "tensorflow", "tf_keras": "keras2",
    "petastorm": "petastorm", "great-expectations": "validation", "matplotlib": "plots", "croniter": "jobs",
    "narwhals": "jobs", "pandas": "pandas", "polars": "polars", "psycopg": "postgres",
}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """One thing looked at; ``state`` is "ok", "absent" (optional) or "problem"."""

    check: str
    state: str
    detail: str
    hint: str | None = None


def run(options: Settings) -> list[Check]:
    """Return the outcome of every check."""
    return [_python(), *_libraries(), _java(), *_store(options), *_plugins()]


def toml_text(value: str) -> str:
    """Return a TOML string."""
    return json.dumps(value)


def _python() -> Check:
    fine = sys.version_info >= (3, 11)
    return Check(
        "python",
        OK if fine else PROBLEM,
        platform.python_version(),
        None if fine else "3.11 or newer",
    )


def _libraries() -> Iterator[Check]:
    for name in _CORE:
        found = _version(name)
        yield Check(
            name,
            OK if found else PROBLEM,
            found or "not installed",
            None if found else f"pip install {name}",
        )
    for name, extra in _EXTRAS.items():
        found = _version(name)
        hint = None if found else f"pip install 'featurestore[{extra}]'"
        yield Check(name, OK if found else ABSENT, found or "not installed", hint)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _java() -> Check:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    wanted = f"the Spark engine needs Java {' or '.join(map(str, JAVA_VERSIONS))}"
    if java is None or not os.access(java, os.X_OK):
        return Check("java", ABSENT, "not found", wanted)
    answer = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=60, check=False
    )
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', answer.stderr + answer.stdout)
    if found is None:
        return Check("java", ABSENT, f"{java} does not run", wanted)
    fine = int(found[1]) in JAVA_VERSIONS
    return Check("java", OK if fine else ABSENT, f"{found[1]} ({java})", None if fine else wanted)


def _store(options: Settings) -> Iterator[Check]:
    from featurestore.registry.database import head_revision, inspect

    try:
        resolved = config.resolve(
            location=options.location, engine=options.engine, registry=options.registry
        )
        directory = files.local_directory(resolved.location)
        yield Check("engine chosen", OK, resolved.engine)
        if not files.exists(directory):
            yield Check("location", ABSENT, f"{directory} does not exist yet", "featurestore init")
            return
        files.ensure_writable(directory)
        yield Check("location", OK, f"{directory} can be written")
        found = inspect(directory, url=resolved.registry)
        head = head_revision()
        if found is None:
            yield Check("registry", ABSENT, "empty", "featurestore init")
        elif found == head:
            yield Check("registry", OK, f"revision {found}")
        else:
            hint = (
                "featurestore registry upgrade"
                if found < head
                else "pip install --upgrade featurestore"
            )
            yield Check("registry", PROBLEM, f"revision {found}; this release has {head}", hint)
    except FeatureStoreError as error:
        yield Check("store", PROBLEM, error.message, error.hint)


def _plugins() -> Iterator[Check]:
    for group in ("engines", "formats", "validators"):
        names = plugin_names(group)
        yield Check(group, OK if names else PROBLEM, ", ".join(names) or "none", None)
