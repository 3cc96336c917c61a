"""Signals during library imports are handled after the import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Send SIGINT to this process at the end of a module import, then retry.
PROGRAM = """
import importlib.abc, importlib.util, signal, sys
target, location = sys.argv[1:]

class Loader(importlib.abc.Loader):
    def __init__(self, inner):
        self.inner = inner
    def create_module(self, spec):
        return self.inner.create_module(spec)
    def exec_module(self, module):
        self.inner.exec_module(module)
        signal.raise_signal(signal.SIGINT)

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target_module=None):
        if name != target:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        spec.loader = Loader(spec.loader)
        return spec

sys.meta_path.insert(0, Finder())
for _ in range(2):
    try:
        import featurestore
        store = featurestore.connect(location)
        store.session.engine.close()  # imports the engine
        print(len(store.get_featuregroups()))
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize("module", ["sqlalchemy", "sqlalchemy.engine", "_duckdb"])
def test_sigint_during_import_keeps_process_usable(tmp_path: Path, module: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["interrupted", "0"]
