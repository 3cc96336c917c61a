"""The image exercise: labelled images to TFRecord, several workers, checkpoints, search, scores."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"


@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_image_exercise_names_most_digits(tmp_path: Path) -> None:
    for library in ("optuna", "PIL", "tensorboard", "tensorflow"):
        pytest.importorskip(library)
    command = [sys.executable, "main.py", "--trials", "1", "--epochs", "2", "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=EXAMPLE, capture_output=True, text=True, timeout=540, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "train 1,258, validation 270, test 269" in done.stdout
    accuracy = re.search(r"^test accuracy: (\d\.\d+)$", done.stdout, re.M)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.5
    (run,) = (tmp_path / "store" / "experiments" / "digits").iterdir()
    assert list(run.glob("checkpoints/step-000002-*"))
    assert list(run.glob("tensorboard/events.out.tfevents.*"))
    assert len(list((tmp_path / "store" / "experiments" / "digits_search").iterdir())) == 2
