"""Load and predict changed files of boosters; a crash or a hang of a library ends this process.

Usage: python -m tests.attacks.booster_program LIBRARY CASES
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import random
import re
import sys
from collections.abc import Iterator

import numpy as np

from featurestore.errors import ModelDamaged
from featurestore.experiments.models import boosters

# Small indexes, leaves of LightGBM, and numbers beyond all arrays.
NUMBERS = ("0", "1", "2", "5", "-1", "-2", "-9", "255", "1000000", "-1000000", "2147483647", "1e30")
ERRORS = {"xgboost": "xgboost.core.XGBoostError", "lightgbm": "lightgbm.basic.LightGBMError"}
SECONDS = 20
ROWS = np.random.default_rng(0).integers(0, 4, (300, 3)).astype(np.float32)


def written_boosters(library: str) -> Iterator[bytes]:
    """Yield files with trees of numbers, of categories and of several classes."""
    module = importlib.import_module(library)
    sums = ROWS @ np.array([1, 10, 100], np.float32)
    for classes, has_categories in ((0, False), (0, True), (3, False)):
        labels = ROWS[:, 0] % 3 if classes else sums
        if library == "xgboost":
            options = {"max_depth": 3, "nthread": 1, "tree_method": "approx", "gamma": 10}
            if classes:
                options |= {"objective": "multi:softprob", "num_class": classes, "gamma": 0}
            types = ["q", "q", "c"] if has_categories else None
            data = module.DMatrix(ROWS, labels, feature_types=types, enable_categorical=True)
            booster = module.train(options, data, 2)
            yield from (bytes(booster.save_raw(form)) for form in ("json", "ubj"))
            continue
        options = {"verbose": -1, "num_threads": 1, "max_depth": 3, "min_data_in_leaf": 1}
        options |= {"min_data_per_group": 1, "max_cat_to_onehot": 1}
        if classes:
            options |= {"objective": "multiclass", "num_class": classes}
        data = module.Dataset(ROWS, labels, categorical_feature=[2] if has_categories else [])
        yield module.train(options, data, 2).model_to_string().encode()


def change(content: bytes, source: random.Random) -> bytes:
    """Return a file with another number or byte, or without a part."""
    numbers = list(re.finditer(rb"-?\d[\d.e+-]*", content))
    if source.random() < 0.6:
        number = source.choice(numbers)
        text = source.choice(NUMBERS).encode()
        return content[: number.start()] + text + content[number.end() :]
    start = source.randrange(len(content))
    if source.random() < 0.5:
        return content[:start] + content[start + source.choice((1, 8, 100)) :]
    return content[:start] + bytes([source.choice((0, 1, 48, 127, 255))]) + content[start + 1 :]


def main(library: str, cases: int) -> None:
    """Print the number of files that were refused, and of those that predict."""
    faulthandler.enable()
    source = random.Random(1)
    contents = list(written_boosters(library))
    module, _, error_name = ERRORS[library].rpartition(".")
    error_class = getattr(importlib.import_module(module), error_name)
    predicting = 0
    for _ in range(cases):
        changed = change(source.choice(contents), source)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        # The libraries raise errors of their own for other parameters.
        with contextlib.suppress(ModelDamaged, error_class):
            unchecked, checked = boosters.find_unchecked_parts(changed, library, title="it")
            if not unchecked:
                booster = boosters.load_booster(checked, library)
                boosters.make_predictor(booster, library)(ROWS)
                predicting += 1
    print(cases - predicting, predicting)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
