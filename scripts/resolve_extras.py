"""Resolve the core and each extra for several versions of Python, and print the table of docs/platforms.md.

Usage: scripts/resolve_extras.py [--platform SYSTEM] [EXTRA ...]. uv (`pip install uv`) reads the
metadata of wheels by range requests, a few megabytes for all extras, and downloads no wheel. Only
wheels count, for Linux x86-64 unless --platform selects another system of uv.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
LINUX = "x86_64-manylinux_2_28"
# Published without a wheel: a source distribution without compiled code. Its only dependency is py4j.
SOURCE_ONLY, SOURCE_ONLY_DEPENDENCY = "pyspark", "py4j"
# A dependency that has no release with a wheel for this Python. Beta releases ("b") of OpenTelemetry are required.
UNRELEASED = re.compile(r"^\S+==\S*(?:a|rc|\.dev)\d+$", re.MULTILINE)


def read_requirements() -> dict[str, list[str]]:
    """Return the requirements of the core ("core") and of each extra with the core."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core, extras = project["dependencies"], project["optional-dependencies"]
    requirements = {"core": core}
    for name, packages in extras.items():
        if name not in ("all", "dev"):
            requirements[name] = [*core, *packages]
    names = extras["all"][0].partition("[")[2].rstrip("]").split(",")
    requirements["all"] = [*core, *(package for name in names for package in extras[name])]
    return requirements


def resolve(requirements: list[str], *, python: str, platform: str, cache: str) -> str:
    """Return "" if releases of all packages but pyspark have wheels, otherwise the reason."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        sys.exit("uv is not installed: pip install uv")
    command = [uv, "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate"]
    command += ["--only-binary", ":all:", "--no-python-downloads", "--cache-dir", cache]
    command += ["--python-version", python, "--python-platform", platform]
    excluded = Path(cache, "excluded.txt")
    excluded.write_text(SOURCE_ONLY)
    command += ["--excludes", str(excluded)]
    text = "\n".join([*requirements, SOURCE_ONLY_DEPENDENCY])
    finished = subprocess.run(command, input=text, capture_output=True, text=True, timeout=600)
    if finished.returncode:
        return " ".join(finished.stderr.split())
    return ", ".join(UNRELEASED.findall(finished.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--platform", default=LINUX)
    arguments = parser.parse_args()
    requirements = read_requirements()
    names = arguments.extras or list(requirements)
    cases = [(name, python) for name in names for python in PYTHONS]
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(4) as pool:

        def resolve_case(case: tuple[str, str]) -> str:
            name, python = case
            return resolve(
                requirements[name], python=python, platform=arguments.platform, cache=cache
            )

        errors = dict(zip(cases, pool.map(resolve_case, cases), strict=True))
    print(f"| extra | {' | '.join(PYTHONS)} |")
    print(f"| --- |{' --- |' * len(PYTHONS)}")
    for name in names:
        marks = ["no" if errors[name, python] else "yes" for python in PYTHONS]
        print(f"| `{name}` | {' | '.join(marks)} |")
    for (name, python), error in errors.items():
        if error:
            print(f"{name}, Python {python}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
