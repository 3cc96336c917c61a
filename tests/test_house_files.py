"""Allowed contents of the repository and the built wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("featurestore", "featurestore_connectors", "featurestore_schemas")
# Indexes, mirrors and download hosts: the user decides where packages come from.
ADDRESSES = re.compile(
    r"(registry\.npmjs|pypi\.org|pythonhosted\.org|test\.pypi|repo1?\.maven|maven\.org|maven\.apache\.org/maven2|conda\.anaconda|deb\.debian\.org|proxy\.golang|"
    r"--(extra-)?index-url|--find-links|index-url\s*=|git\+https?:)"
)
# Home directories and the folders of build machines; `/tmp` in an example is fine.
MACHINE_PATHS = re.compile(r"(?<![\w.<{$}>/-])/(work|root|home/\w+|Users/\w+|builds?/\w+)/[\w.]")
LINKS_WITH_CREDENTIALS = re.compile(r"https?://[^\s/@'\"]+:[^\s/@'\"]+@")


def tracked_files() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_tracked_files_have_no_registry_or_machine_names() -> None:
    actual = []
    for path in tracked_files():
        if path == Path(__file__):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for pattern in (ADDRESSES, MACHINE_PATHS, LINKS_WITH_CREDENTIALS):
                if match := pattern.search(line):
                    actual.append(f"{path.relative_to(ROOT)}:{number}: {match.group()}")
    assert actual == []


@pytest.mark.parametrize(
    "name",
    [
        "constraints.txt",
        "constraints-petastorm.txt",
        "constraints-spark-newest.txt",
        "constraints-torch.txt",
    ],
)
def test_constraints_are_names_and_versions_only(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert [
        line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+", line)
    ] == []


def test_core_dependencies_are_limited_to_embedded_default() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^a-z0-9-]", dependency)[0] for dependency in project["dependencies"]}
    # Two of them are installed on Windows only.
    assert names - {"filelock", "tzdata"} <= {
        "alembic",
        "arro3-core",
        "crc32c",
        "deltalake",
        "duckdb",
        "numpy",
        "pyarrow",
        "pytz",
        "rich",
        "sqlalchemy",
        "sqlglot",
        "typer",
    }


def test_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "The featurestore authors" in text


def test_make_lists_every_target() -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    words = subprocess.run(
        ["make"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    for word in ("setup", "demo", "test", "lint", "docs", "bench", "test-wheel", "soak", "clean"):
        assert f"make {word} " in words


def test_wheel_contains_three_packages_types_and_schemas(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == set(PACKAGES)
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
    assert "featurestore/__init__.pyi" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    for source in sorted((ROOT / "schemas" / "featurestore_schemas").glob("*.json")):
        assert f"featurestore_schemas/{source.name}" in names
    assert any(
        name.startswith("featurestore_schemas/") and name.endswith(".json") for name in names
    )
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_tracked_files_are_small() -> None:
    """Databases and outputs of a run do not belong to the repository; pictures are compressed."""
    limit = 1 << 20
    assert [path.name for path in tracked_files() if path.stat().st_size > limit] == []
