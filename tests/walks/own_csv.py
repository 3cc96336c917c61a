"""The first hour of a new user with a CSV file: errors are solved by their hints, as pasted.

Runs in an empty folder, in the environment of its interpreter: ``scripts/test-wheel`` runs it with
the wheel, and ``test_walks.py`` with the source tree.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import featurestore
from featurestore.errors import DataWarning

SALES = """\
Customer ID,Day,Amount,Region
1,2024-01-01,10.5,north
1,2024-01-02,,north
2,2024-01-01,7,south
2,2024-01-03,8.25,
3,2024-01-02,1.5,north
"""


def main() -> None:
    """Walk from the file to batches for a model, and look at the results on the command line."""
    Path("sales.csv").write_text(SALES)
    variables: dict[str, Any] = {"featurestore": featurestore, "df": pd.read_csv("sales.csv")}

    def create() -> Any:
        key = next(name for name in variables["df"].columns if name.startswith("Customer"))
        return featurestore.create_featuregroup(
            variables["df"], "sales", primary_key=key, event_time="Day"
        )

    follow_hint(create, variables, "Customer ID")  # a name with a space
    follow_hint(create, variables, "Day")  # times as strings
    sales = create()
    assert (sales.version, sales.read().count()) == (1, 5)
    assert create().version == 1  # the cell runs again

    labels = pd.DataFrame({"Customer_ID": [1, 2, 3, 4], "churned": [0, 1, 0, 1]})
    frame = featurestore.get_features(
        ["sales.Amount", "sales.Region"], labels=labels, label_time="2024-01-03T00:00Z"
    )
    rows = frame.to_pandas().sort_values("Customer_ID")
    assert rows["Amount"].tolist()[1:3] == [8.25, 1.5]
    assert frame.coverage()["sales"].no_such_key == 1

    dataset = featurestore.create_training_dataset(frame, "churn", label="churned")
    text = message(lambda: dataset.reader("train", global_batch_size=2))
    assert "'Amount'" in text
    assert 'nulls="mask"' in text
    reader = dataset.reader("train", global_batch_size=2, nulls="mask")
    present = np.concatenate([batch["Amount_present"] for batch in reader.batches()])
    assert sorted(present) == [False, False, True, True]
    assert dataset.verify().ok

    assert "sales" in shell("fg", "list")
    assert "churn" in shell("td", "list")
    shell("td", "verify", "churn")
    print("walk: ok")


def follow_hint(call: Callable[[], Any], variables: dict[str, Any], subject: str) -> None:
    """Make a call that fails because of a subject, and run its hint."""
    text, _, hint = message(call).partition("Hint: ")
    assert subject in text, text
    exec(hint, variables)


def message(call: Callable[[], Any]) -> str:
    """Return the message of the error that a call raises."""
    try:
        call()
    except featurestore.FeatureStoreError as error:
        return str(error)
    raise AssertionError("the call did not fail")


def shell(*words: str) -> str:
    """Return the output of a command of the installed program."""
    program = Path(sys.executable).parent / "featurestore"
    return subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a walk along the hints raises no warning
        warnings.simplefilter("ignore", DataWarning)  # the file is small
        main()
