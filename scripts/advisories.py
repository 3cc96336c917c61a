"""Compare all pinned versions with known advisories: scripts/advisories.py PIP_AUDIT [CONSTRAINTS ...]

pip-audit runs once for each file, without installing anything. Advisories in advisories.toml are
accepted until their date. Packages for which the index has no answer are counted and do not fail:
a machine without access to advisories can check none.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ACCEPTED = Path(__file__).with_suffix(".toml")
SECONDS = 600


@dataclass(frozen=True, order=True)
class Advisory:
    """An advisory about a pinned version; ``names`` are its id and the ids of other databases."""

    package: str
    version: str
    names: tuple[str, ...]
    fixed_in: str

    def __str__(self) -> str:
        fix = f"fixed in {self.fixed_in}" if self.fixed_in else "no release fixes it"
        return f"{self.package} {self.version}: {', '.join(self.names)}; {fix}"


@dataclass(frozen=True)
class AcceptedAdvisory:
    """An advisory that is accepted until a date."""

    id: str
    package: str
    reason: str
    until: date


@dataclass(frozen=True)
class Audit:
    """The result for some pinned versions: ``name==version`` of the checked and unchecked."""

    checked: frozenset[str]
    unchecked: frozenset[str]
    advisories: frozenset[Advisory]


def normalize_pin(text: str) -> str:
    """Return a pin with the name that the index uses: ``Zope.Event==5`` is ``zope-event==5``."""
    name, _, version = text.strip().partition("==")
    return f"{re.sub(r'[-_.]+', '-', name.strip()).lower()}=={version.strip()}"


def parse_report(report: Mapping[str, Any], pins: frozenset[str]) -> Audit:
    """Convert the JSON report of pip-audit about pinned versions."""
    checked, advisories = set(), set()
    for package in report["dependencies"]:
        if "skip_reason" in package:
            continue
        checked.add(normalize_pin(f"{package['name']}=={package['version']}"))
        for entry in package["vulns"]:
            names = (entry["id"], *entry.get("aliases", ()))
            fixed_in = ", ".join(entry.get("fix_versions", ()))
            advisories.add(Advisory(package["name"], package["version"], names, fixed_in))
    return Audit(frozenset(checked), pins - checked, frozenset(advisories))


def audit_file(pip_audit: str, file: Path) -> Audit:
    """Run pip-audit for a file of constraints; without an answer, all versions are unchecked."""
    lines = (line.partition("#")[0] for line in file.read_text().splitlines())
    pins = frozenset(normalize_pin(line.partition(";")[0]) for line in lines if "==" in line)
    command = [pip_audit, "--disable-pip", "--no-deps", "--progress-spinner", "off"]
    command += ["--format", "json", "--requirement", str(file)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    try:
        report = json.loads(process.stdout)
    except ValueError:
        # The last line names the reason, for example a connection that was refused.
        reason = (process.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"{file.name}: pip-audit has no result: {reason[:200]}")
        return Audit(frozenset(), pins, frozenset())
    return parse_report(report, pins)


def read_accepted(text: str) -> list[AcceptedAdvisory]:
    """Parse accepted advisories; each needs an id, a package, a reason and a date."""
    accepted = [AcceptedAdvisory(**entry) for entry in tomllib.loads(text).get("accepted", [])]
    for entry in accepted:
        if not entry.reason or not isinstance(entry.until, date):
            raise ValueError(f"{entry.id} needs a reason, and a date in until=")
    return accepted


def find_problems(
    advisories: Iterable[Advisory], accepted: Iterable[AcceptedAdvisory], *, today: date
) -> list[str]:
    """Return a line for each advisory that is not accepted today."""
    until = {(entry.package, entry.id): entry.until for entry in accepted}
    problems = []
    for advisory in sorted(advisories):
        dates = [
            until[key] for name in advisory.names if (key := (advisory.package, name)) in until
        ]
        if not dates:
            problems.append(str(advisory))
        elif max(dates) < today:
            problems.append(f"{advisory}; it was accepted until {max(dates)}")
    return problems


def main(arguments: list[str]) -> None:
    """Audit all constraints files; exit with 1 and a line for each problem."""
    files = list(map(Path, arguments[1:])) or sorted(ROOT.glob("constraints*.txt"))
    audits = [audit_file(arguments[0], file) for file in files]
    checked = frozenset().union(*(audit.checked for audit in audits))
    unchecked = frozenset().union(*(audit.unchecked for audit in audits)) - checked
    advisories = frozenset().union(*(audit.advisories for audit in audits))
    print(f"advisories: {len(checked)} of {len(checked | unchecked)} pinned versions were checked")
    accepted = read_accepted(ACCEPTED.read_text())
    problems = find_problems(advisories, accepted, today=datetime.now(UTC).date())
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main(sys.argv[1:])
