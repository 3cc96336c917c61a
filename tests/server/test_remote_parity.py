"""Every store method works for a served store, or raises an error with the alternative."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import featurestore
from featurestore import transform as t
from featurestore.errors import UnsupportedLocation, UnsupportedRemotely
from featurestore.server import ServerSettings
from featurestore.store import FeatureStore
from featurestore.store.remote import RemoteFeatureStore
from tests.server.browser import listening

JOBS = """
import featurestore
@featurestore.job(featuregroup="g2", event_time="at", schedule="0 * * * *", window="1h",
                  start="2024-03-01T00:00Z")
def job(window):
    return None
"""
# Calls that validate these arguments first; for all others the name of a group suffices.
POSITIONAL_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "add_alert_channel": ("ops", "log"),
    "add_online_store": ("cache", "redis://localhost:6379/0"),
    "backfill_job": ("job", "2024-03-01T00:00Z", "2024-03-02T00:00Z"),
    "purge_online_store": ("cache",),
    "sql": ("select * from g",),
}
KEYWORD_ARGUMENTS = {
    "delete_featuregroup": {"version": 1},
    "update_featuregroup": {"description": "new"},
    "score": {"labels": [{"k": 1}]},
}
_VALUES: dict[str, Any] = {"key": {"k": 1}, "version": 1}
# Calls that need no server, only inspect frames, or use other calls of the client.
OF_ITSELF = {
    "close",
    "engine",
    "location",
    "session",
    "check_leakage",
    "get_feature",
    "get_features",
    "get_training_dataset_tf_record_schema",
}


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    folder = tmp_path_factory.mktemp("parity")
    with featurestore.connect(folder / "store") as local:
        local.create_featuregroup([{"k": 1, "x": 2.0}], "g", primary_key="k")
        local.create_training_dataset(
            local.get_featuregroup("g"), "wins", transformations={"x": t.min_max()}, progress=False
        )
        (folder / "jobs.py").write_text(JOBS)
        POSITIONAL_ARGUMENTS["register_jobs"] = (str(folder / "jobs.py"),)
        (folder / "dbt_project.yml").write_text("name: shop\nmodel-paths: [models]\n")
        (folder / "models").mkdir()
        POSITIONAL_ARGUMENTS["write_dbt_exposures"] = (str(folder / "models" / "exposures.yml"),)
        with (
            listening(local, ServerSettings()) as address,
            featurestore.connect(address) as store,
        ):
            POSITIONAL_ARGUMENTS["transform"] = (store.get_featuregroup("g"), "wins")
            yield store


def calls() -> list[str]:
    """Return the public methods that the remote client does not implement itself."""
    remote_methods: set[str] = set()
    for base in RemoteFeatureStore.__mro__:
        if base.__module__.startswith("featurestore.store.remote"):
            remote_methods |= set(vars(base)) - {"scheduler", "transform"}
    names = [name for name in dir(FeatureStore) if not name.startswith("_")]
    return [name for name in names if name not in remote_methods | OF_ITSELF]


def test_remote_unsupported_calls_raise_with_hint(remote: FeatureStore) -> None:
    actual = calls()
    assert {"sql", "score", "scheduler", "run_job", "get_monitors", "vacuum"} & set(actual)
    for name in actual:
        call = getattr(remote, name)
        inputs = POSITIONAL_ARGUMENTS.get(name)
        if inputs is None:
            inputs = tuple("g" for _ in positional(call))
        with pytest.raises((UnsupportedRemotely, UnsupportedLocation)) as refused:
            call(
                *inputs,
                **KEYWORD_ARGUMENTS.get(name, {}),
                **needed(call, KEYWORD_ARGUMENTS.get(name, {})),
            )
        assert "http://127.0.0.1" in str(refused.value), name
        assert "Hint: " in str(refused.value), name


def positional(call: Any) -> list[str]:
    """Return the values of positional arguments without defaults."""
    result = inspect.signature(call).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        parameter.name
        for parameter in result
        if parameter.kind in kinds and parameter.default is parameter.empty
    ]


def needed(call: Any, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return a value for each keyword argument without a default."""
    result = {}
    for parameter in inspect.signature(call).parameters.values():
        if (
            parameter.kind is parameter.KEYWORD_ONLY
            and parameter.default is parameter.empty
            and parameter.name not in keywords
        ):
            result[parameter.name] = _VALUES.get(parameter.name, "g")
    return result
