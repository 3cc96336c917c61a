"""Every notebook runs in an empty directory, shows its pictures, and is stored without outputs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
# Warnings that its libraries raise on import.
SAID_BY_TENSORFLOW = re.compile(r"^(WARNING: All log messages before absl|[IWE]0000 ).*$", re.M)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def marks(path: Path) -> list[pytest.MarkDecorator]:
    """Mark notebooks that train a dozen networks as soak; their examples run in other tests."""
    return [pytest.mark.soak, pytest.mark.tensorflow] if path.stem == "experiments" else []


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_notebooks_folder_has_expected_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} >= {
        "eit_school",
        "experiments",
        "flights",
        "validation_and_drift",
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    for cell in code_cells(read(path)):
        assert cell.outputs == []
        assert cell.execution_count is None


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=marks(path)) for path in NOTEBOOKS]
)
def test_notebook_runs_and_shows_pictures(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_client.kernelspec import KernelSpecManager
    from nbclient import NotebookClient

    if "python3" not in KernelSpecManager().find_kernel_specs():
        pytest.skip("no Jupyter kernel is installed")
    # A reader has only the installed package and the notebook, not the source tree.
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    if path.stem == "experiments":
        for library in ("optuna", "tensorboard", "tf_keras"):
            pytest.importorskip(library)
    notebook = read(path)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(empty)}},
    )
    client.km = client.create_kernel_manager()
    client.km.kernel_spec.argv[0] = sys.executable  # the interpreter that runs the tests
    client.execute()
    assert list(empty.iterdir()) == []
    for cell in code_cells(notebook):
        drawn = any("image/png" in output.get("data", {}) for output in cell.outputs)
        assert drawn == (
            ("visualize_" in cell.source and "descriptive" not in cell.source)
            or "plots.drift" in cell.source
            or ".plot()" in cell.source
        )
        for output in cell.outputs:
            if output.get("name") == "stderr":
                assert not SAID_BY_TENSORFLOW.sub("", output["text"]).strip(), cell.source
