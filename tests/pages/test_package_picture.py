"""The package picture shows the layers that import-linter checks."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_package_picture_matches_import_layers() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "package_picture.py"))
    drawn = (ROOT / "docs" / "assets" / "packages.svg").read_text(encoding="utf-8")
    assert drawn == script["drawing"](), "run: python scripts/package_picture.py"
    packages = set()
    for init in (ROOT / "featurestore").glob("*/__init__.py"):
        packages.add(init.parent.name)
    assert packages - {name for layer in script["layers"]() for name in layer} == set()
