"""The checks of a release: the files of its archives, and advisories about pinned versions."""

from __future__ import annotations

import importlib.util
import io
import json
import stat
import subprocess
import sys
import tarfile
import zipfile
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
TRACKED_FILE = "featurestore/errors.py"


def load_script(name: str) -> ModuleType:
    """Import a program of the folder scripts."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def release_files() -> ModuleType:
    return load_script("release_files")


@pytest.fixture(scope="module")
def advisories() -> ModuleType:
    return load_script("advisories")


def tracked_content() -> bytes:
    return (ROOT / TRACKED_FILE).read_bytes()


def write_wheel(path: Path, name: str, content: bytes, *, mode: int = stat.S_IFREG | 0o644) -> None:
    """Write a wheel with a file of the repository and another file."""
    with zipfile.ZipFile(path, "w") as archive:
        for file, data, permissions in (
            (TRACKED_FILE, tracked_content(), 0o100644),
            (name, content, mode),
        ):
            entry = zipfile.ZipInfo(file)
            entry.external_attr = permissions << 16
            archive.writestr(entry, data)


def write_sdist(path: Path, name: str, content: bytes, *, link: str = "") -> None:
    """Write a source distribution with a file of the repository and another file or a link."""
    with tarfile.open(path, "w:gz") as archive:
        for file, data in ((f"featurestore-0/{TRACKED_FILE}", tracked_content()), (name, content)):
            entry = tarfile.TarInfo(file)
            entry.size = len(data)
            if link and file == name:
                entry.type, entry.linkname, entry.size = tarfile.SYMTYPE, link, 0
            archive.addfile(entry, io.BytesIO(data))


def test_archives_contain_only_tracked_files(release_files: ModuleType, tmp_path: Path) -> None:
    wheel, sdist = tmp_path / "f.whl", tmp_path / "f.tar.gz"
    tracked = release_files.tracked_files()

    def problems_of_wheel(name: str, content: bytes = b"", **mode: int) -> list[str]:
        write_wheel(wheel, name, content, **mode)
        archived = list(release_files.read_wheel(wheel))
        return list(release_files.find_problems(archived, tracked, ROOT))

    def problems_of_sdist(name: str, content: bytes = b"", **link: str) -> list[str]:
        write_sdist(sdist, f"featurestore-0/{name}", content, **link)
        archived = list(release_files.read_sdist(sdist))
        return list(release_files.find_problems(archived, tracked, ROOT))

    license_text = (ROOT / "LICENSE").read_bytes()
    assert problems_of_wheel("featurestore-0.1.0.dist-info/METADATA", b"x") == []
    assert problems_of_sdist("LICENSE", license_text) == []
    writable = stat.S_IFREG | 0o666
    for problem, problems in {
        "is not tracked": problems_of_wheel("featurestore/.env", b"KEY=1"),
        "not tracked": problems_of_wheel("featurestore/registry.db", b"SQLite"),
        "is not tracked by": problems_of_wheel("tests/conftest.py", b""),
        "leads out": problems_of_wheel("featurestore/../../evil.py"),
        "out of the archive": problems_of_wheel("/etc/cron.d/evil"),
        "differs": problems_of_wheel("featurestore/session.py", b"import os"),
        "has the mode": problems_of_wheel(
            "featurestore/session.py",
            (ROOT / "featurestore/session.py").read_bytes(),
            mode=writable,
        ),
        "is not a plain file": problems_of_wheel("featurestore/link", mode=stat.S_IFLNK | 0o777),
        "is not a plain": problems_of_sdist("LICENSE", link="/etc/passwd"),
        "2,000,001 bytes": problems_of_sdist("tests/big", b"0" * 2_000_001),
        "twice": problems_of_sdist(TRACKED_FILE, tracked_content()),
    }.items():
        assert len(problems) == 1, problem
        assert problem in problems[0]


def test_advisories_fail_until_accepted_and_after_their_date(
    advisories: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = {
        "dependencies": [
            {"name": "zope-event", "version": "5.0", "vulns": [
                {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["5.1"]}]},
            {"name": "b", "version": "2", "vulns": []},
            {"name": "c", "skip_reason": "Dependency not found"},
        ]
    }  # fmt: skip
    pip_audit = tmp_path / "pip-audit"
    pip_audit.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(report)}\nEND\nexit 1\n")
    pip_audit.chmod(0o755)
    pins = tmp_path / "constraints.txt"
    pins.write_text("# versions\nZope.Event==5.0\nb==2 ; python_version < '3.13'\nc==3\n")
    audit = advisories.audit_file(str(pip_audit), pins)
    assert (len(audit.checked), audit.unchecked) == (2, {"c==3"})
    accepted = advisories.read_accepted(
        '[[accepted]]\nid = "CVE-1"\npackage = "zope-event"\nreason = "unused"\nuntil = 2026-03-01'
    )

    def problems(day: date, *entries: object) -> list[str]:
        return list(advisories.find_problems(audit.advisories, entries, today=day))

    assert problems(date(2026, 3, 1), *accepted) == []
    assert "until 2026-03-01" in problems(date(2026, 3, 2), *accepted)[0]
    assert "fixed in 5.1" in problems(date(2026, 3, 1))[0]
    # Without an answer nothing fails, and the step says how much was not checked.
    pip_audit.write_text("#!/bin/sh\necho 'connection refused' >&2\nexit 1\n")
    advisories.main([str(pip_audit), str(pins)])
    assert "0 of 3 pinned versions" in capsys.readouterr().out


def test_ci_runs_both_checks() -> None:
    assert "scripts/advisories.py" in (ROOT / ".ci" / "run").read_text()
    assert "scripts/release_files.py" in (ROOT / "scripts" / "test-wheel").read_text()
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True)
