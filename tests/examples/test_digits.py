"""The digits example: labelled images to TFRecord, several workers, checkpoints, search and scores."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_digits_example_classifies_most_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for library in ("optuna", "PIL", "tensorboard", "tensorflow"):
        pytest.importorskip(library)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    program = runpy.run_path(str(EXAMPLE / "main.py"))
    for name, value in program["ENVIRONMENT"].items():
        monkeypatch.setenv(name, value)  # or it would stay after the program
    words = ["main.py", "--trials", "1", "--epochs", "2", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    assert program["main"]() == 0
    printed = capsys.readouterr().out
    assert "train 1,258, validation 270, test 269" in printed
    accuracy = re.search(r"^test accuracy: (\d\.\d+)$", printed, re.M)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.5
    (run,) = (tmp_path / "store" / "experiments" / "digits").iterdir()
    assert list(run.glob("checkpoints/step-000002-*"))
    assert list(run.glob("tensorboard/events.out.tfevents.*"))
    assert len(list((tmp_path / "store" / "experiments" / "digits_search").iterdir())) == 2
