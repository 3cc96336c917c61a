"""Lists of records print as tables, and records in lines of at most 100 columns."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest

import featurestore
from featurestore import experiments, transform
from featurestore.model import display
from featurestore.store import FeatureStore

WIDTH = 100


def is_generated(record_type: type) -> bool:
    """Return True if a dataclass has the representation that dataclasses generate."""
    return record_type.__repr__.__qualname__.endswith("__create_fn__.<locals>.__repr__") or (
        getattr(record_type.__repr__, "__wrapped__", None) is not None
    )


def public_records() -> list[type]:
    """Return the dataclasses that public calls return, alone or in lists."""
    classes: dict[str, list[type]] = {}
    for info in pkgutil.walk_packages(featurestore.__path__, "featurestore."):
        if "migrations" not in info.name and info.name.split(".")[1] in (
            "store",
            "model",
            "jobs",
            "training",
            "featuregroups",
            "registry",
            "retrieval",
            "experiments",
            "streams",
            "views",
        ):
            module = importlib.import_module(info.name)
            for name, cls in inspect.getmembers(module, inspect.isclass):
                if cls.__module__ == info.name:
                    classes.setdefault(name, []).append(cls)
    calls: list[Any] = [getattr(FeatureStore, name) for name in featurestore._FUNCTIONS]
    calls += [getattr(experiments, name) for name in experiments.__all__]
    owners = (featurestore.TrainingDataset, featurestore.FeatureGroup, featurestore.FeatureFrame)
    for owner in owners:
        calls += [member for name, member in vars(owner).items() if not name.startswith("_")]
    records: dict[type, None] = {}
    for call in calls:
        function = getattr(call, "fget", None) or getattr(call, "__func__", call)
        result = str(getattr(function, "__annotations__", {}).get("return", ""))
        for name in re.findall(r"[A-Z]\w+", result):
            records.update(dict.fromkeys(filter(dataclasses.is_dataclass, classes.get(name, []))))
    return list(records)


def test_public_records_print_within_100_columns(subtests: pytest.Subtests) -> None:
    record_types = public_records()
    for record_type in record_types:
        with subtests.test(record_type.__name__):
            assert not is_generated(record_type)
            if record_type.__repr__ is not display.record_repr:
                continue  # tests/store/test_notebook_html.py prints these records
            for value in ("x" * 500, "line\n" * 50, ["name"] * 200, {"key": "\x1b[31m" * 60}):
                record = object.__new__(record_type)
                for field in dataclasses.fields(record_type):
                    object.__setattr__(record, field.name, value)
                lines = repr(record).splitlines()
                assert max(map(len, lines)) <= WIDTH
                assert "\x1b" not in repr(record)
    names = {record_type.__name__ for record_type in record_types}
    assert names >= {"Commit", "Run", "JobStatus", "SourceSpec", "ValidationReport", "Match"}


def test_lists_print_as_tables(empty_store: FeatureStore) -> None:
    rows = [{"key": 1, "x": 0.5}]
    for number in range(3):
        empty_store.create_featuregroup(rows, f"group{number}", description="long " * 50)
    empty_store.add_source("shop", "sqlite:///shop.db")
    empty_store.add_alert_channel("ops", "log")
    for records in (
        empty_store.get_featuregroups(),
        empty_store.get_featuregroup_history("group0"),
        empty_store.get_sources(),
        empty_store.get_alert_channels(),
        empty_store.search("group"),
    ):
        lines = repr(records).splitlines()
        assert len(lines) == len(records) + 2
        assert set(lines[1]) == {"-", " "}
        assert max(map(len, lines)) <= WIDTH
    assert repr(empty_store.get_alerts()) == "[]"


def test_module_lists_public_names_only(subtests: pytest.Subtests) -> None:
    for module in (transform, experiments, featurestore):
        with subtests.test(module.__name__):
            assert dir(module) == sorted(module.__all__)
            assert all(getattr(module, name) is not None for name in module.__all__)
