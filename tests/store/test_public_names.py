"""The names of the public interface.

On FeatureStore, in the module, and in the stub that editors read.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import featurestore
from featurestore.model.requests import (
    RetrievalRequest,
    RowsRequest,
    TrainingRequest,
    ViewRequest,
)
from featurestore.store import FeatureStore, connect
from featurestore.views import FeatureView

PARAMETERS = {
    "add_online_store": "name uri * secret",
    "get_online_stores": "",
    "remove_online_store": "name",
    "purge_online_store": "name * dry_run",
    "publish": "view * to version full",
    "create_featuregroup": (
        "df name * primary_key event_time created_time partition_by version ttl description "
        "tags expectations validation statistics"
    ),
    "get_or_create_featuregroup": (
        "df name * primary_key event_time created_time partition_by version ttl description "
        "tags expectations validation statistics"
    ),
    "insert_into_featuregroup": (
        "df name * version mode schema_change on_duplicates transaction validation"
    ),
    "delete_from_featuregroup": "name where * version",
    "featuregroup": "name * version",
    "get_featuregroup": "name * version as_of dataframe_type verify",
    "get_featuregroups": "",
    "get_latest_featuregroup_version": "name",
    "get_featuregroup_history": "name * version",
    "get_featuregroup_quarantine": "name * version dataframe_type",
    "get_featuregroup_partitions": "name * version",
    "get_features_list": "",
    "search": "text",
    "add_featuregroup_tag": "name key value * version",
    "get_featuregroup_tags": "name * version",
    "remove_featuregroup_tag": "name key * version",
    "update_featuregroup": (
        "name * version description descriptions expectations validation ttl event_time_tolerance "
        "statistics compact"
    ),
    "rename_feature": "name old new",
    "compact_featuregroup": "name * version",
    "vacuum_featuregroup": "name * version retain",
    "verify_featuregroup": "name * version sample",
    "delete_featuregroup": "name * version force",
    "get_feature": "feature * dataframe_type",
    "get_features": (
        "features * labels label_time versions join_key join as_of include_keys "
        "created_time_filter dataframe_type verify"
    ),
    "sql": "query * as_of dataframe_type",
    "explain_features": "features * labels",
    "check_leakage": "frame * sample seed",
    "create_feature_view": "name * features labels label label_time version description tags",
    "get_feature_view": "name * version",
    "get_feature_views": "",
    "delete_feature_view": "name * version",
    "create_training_dataset": (
        "data name * label data_format splits split_by stratify seed key shards "
        "rows_per_shard version compression description tags expectations validation "
        "statistics progress"
    ),
    "get_training_dataset": "name * version",
    "get_training_datasets": "",
    "get_latest_training_dataset_version": "name",
    "get_training_dataset_tf_record_schema": "name * version",
    "get_dataframe_tf_record_schema": "df",
    "add_training_dataset_tag": "name key value * version",
    "get_training_dataset_tags": "name * version",
    "remove_training_dataset_tag": "name key * version",
    "update_training_dataset": "name * version description",
    "delete_training_dataset": "name * version",
    "validate_featuregroup": "name * version expectations",
    "get_validation_history": "name * version",
    "get_featuregroup_statistics": "name * version delta_version",
    "update_featuregroup_statistics": "name * version",
    "visualize_featuregroup_correlations": "name * version plot figsize cmap annot method",
    "visualize_featuregroup_distributions": "name * version plot figsize",
    "visualize_featuregroup_clusters": "name * version plot figsize",
    "visualize_featuregroup_descriptive_stats": "name * version",
    "visualize_training_dataset_correlations": (
        "name * version split plot figsize cmap annot method"
    ),
    "visualize_training_dataset_distributions": "name * version split plot figsize",
    "visualize_training_dataset_clusters": "name * version split plot figsize",
    "visualize_training_dataset_descriptive_stats": "name * version split",
    "register_jobs": "",
    "get_jobs": "",
    "plan_job": "name * window",
    "run_job": "name * window due stale",
    "backfill_job": "name start end * resume",
    "get_runs": "name",
    "pause_job": "name",
    "remove_job": "name",
    "replay_quarantine": "name",
    "unpause_job": "name",
    "get_monitors": "",
    "accept_monitor": "name * window until note",
    "check_monitor": "name * window",
    "get_monitor_history": "name * limit offset",
    "visualize_monitor": "name * windows",
    "get_metrics": "",
    "plan": "folder * project",
    "apply": "folder * project remove",
    "erase": "subject * columns datasets dry_run",
    "verify_erasure": "certificate",
    "add_alert_channel": "name uri * secret",
    "get_alert_channels": "",
    "remove_alert_channel": "name",
    "get_alerts": "* limit",
    "send_alerts": "",
    "register_in": "source * featuregroups schema",
    "add_dbt_project": "manifest * source select remove",
    "plan_dbt_project": "manifest * source select",
    "write_dbt_exposures": "path * owner",
    "add_source": "name uri * secret options description",
    "get_sources": "",
    "check_source": "name",
    "score": "model * labels label_time as_of featuregroup key trust",
    "remove_source": "name",
    "read_source": "name * table sql path at columns",
    "create_external_featuregroup": "name * source table sql path columns primary_key event_time "
    "created_time version ttl description descriptions tags expectations snapshots",
}
ELSEWHERE = [
    "FeatureStore",
    "TimeSplit",
    "TrainingDataset",
    "FeatureGroup",
    "FeatureFrame",
    "FeatureView",
    "FeatureStoreError",
    "compare_statistics",
    "connect",
    "job",
    "source",
    "sql_job",
    "publish_job",
    "catalog_job",
    "training_job",
    "model_monitor_job",
    "monitor_job",
    "baseline",
    "window",
    "windows",
    "window_job",
]


def test_store_methods_and_module_functions_share_arguments(subtests: pytest.Subtests) -> None:
    for name, arguments in PARAMETERS.items():
        with subtests.test(name):
            method = inspect.signature(getattr(FeatureStore, name))
            function = inspect.signature(getattr(featurestore, name))
            assert list(method.parameters)[1:] == list(function.parameters)
            positional, _, keywords = arguments.partition("*")
            actual = function.parameters
            for argument in [*positional.split(), *keywords.split()]:
                assert argument in actual, argument
            for argument in keywords.split():
                assert actual[argument].kind is inspect.Parameter.KEYWORD_ONLY, argument
            assert list(actual)[: len(positional.split())] == positional.split()
            assert getattr(featurestore, name).__doc__


def test_module_dir_lists_public_names() -> None:
    assert set(PARAMETERS) == set(featurestore._FUNCTIONS)
    assert {*PARAMETERS, *ELSEWHERE} <= set(dir(featurestore))
    for name in ELSEWHERE:
        assert getattr(featurestore, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        featurestore.nothing  # noqa: B018


def test_stub_matches_store_signatures() -> None:
    """``python scripts/write_stub.py`` rewrites the stub."""
    path = Path(__file__).parents[2] / "scripts" / "write_stub.py"
    spec = importlib.util.spec_from_file_location("featurestore_stub", path)
    assert spec is not None
    assert spec.loader is not None
    stub: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stub)

    def shape(text: str) -> list[str]:
        return sorted(ast.dump(statement) for statement in names_one_by_one(ast.parse(text)))

    assert shape(stub.STUB.read_text()) == shape(stub.stub_text())


def names_one_by_one(tree: ast.Module) -> list[ast.stmt]:
    """Return the statements with one name for each import."""
    result: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            result += [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]
        else:
            result.append(node)
    return result


def test_connect_resolves_location_and_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEATURESTORE_LOCATION", raising=False)
    assert connect().location == str(tmp_path / "featurestore-data")
    (tmp_path / "featurestore.toml").write_text('location = "from-file"\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert connect().location == str(tmp_path / "from-file")
    monkeypatch.setenv("FEATURESTORE_LOCATION", str(tmp_path / "from-environment"))
    assert connect().location == str(tmp_path / "from-environment")
    with connect(tmp_path / "argument") as store:
        assert (store.location, store.engine) == (str(tmp_path / "argument"), "duckdb")
        assert repr(store) == f"FeatureStore(location='{tmp_path}/argument', engine='duckdb')"


def test_connect_unsupported_file_system_raises(subtests: pytest.Subtests) -> None:
    for location in ("viewfs://x/y", "dbfs:/x", "ftp://x/y"):
        with (
            subtests.test(location),
            pytest.raises(featurestore.errors.UnsupportedLocation, match="mount point"),
        ):
            connect(location)


def test_connect_unknown_engine_lists_available(tmp_path: Path) -> None:
    with pytest.raises(featurestore.FeatureStoreError, match="'duckdb', 'spark'"):
        connect(tmp_path, engine="flink")


def test_three_line_example_runs_in_empty_directory(tmp_path: Path) -> None:
    program = """
import numpy as np, featurestore
featurestore.create_featuregroup(np.random.rand(20, 10), "eit_school")
featurestore.get_featuregroup("eit_school").show(5)
featurestore.visualize_featuregroup_correlations("eit_school")
"""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "", "MPLBACKEND": "agg", "HOME": str(tmp_path)},
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "col_9" in process.stdout


def test_request_fields_match_call_arguments(subtests: pytest.Subtests) -> None:
    requests: list[tuple[Any, type[Any], set[str]]] = [
        (FeatureStore.create_training_dataset, TrainingRequest, {"data", "progress"}),
        (FeatureStore.get_features, RetrievalRequest, {"dataframe_type", "verify"}),
        (FeatureStore.explain_features, RetrievalRequest, set()),
        (FeatureStore.create_feature_view, ViewRequest, {"version"}),
        (FeatureView.get_features, RowsRequest, {"dataframe_type"}),
    ]
    for call, request_type, extra_arguments in requests:
        with subtests.test(call.__name__):
            parameters = inspect.signature(call).parameters
            fields = {field.name: field for field in dataclasses.fields(request_type)}
            assert set(parameters) - {"self", *extra_arguments} == set(fields)
            filled_in = {"name", "featuregroup"}  # by the function's name, or by the job's
            for name in set(fields) - filled_in:
                default = fields[name].default
                if default is dataclasses.MISSING:
                    default = inspect.Parameter.empty
                assert parameters[name].default == default, name
