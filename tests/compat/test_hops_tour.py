"""The 2019 Hopsworks feature store tour on our data: the same calls in the same order.

Each entry of ``CELLS`` is what one or more code cells of the tour ask for; ``NOT_HERE`` are the
cells that have no meaning in this store. Lines that copy pictures to HDFS are left out.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import featurestore as store_module
from featurestore.compat import hops
from featurestore.errors import FeatureStoreError, InvalidArgument

FLAGS = (
    "descriptive_statistics=False, feature_correlation=False, feature_histograms=False, "
    "cluster_analysis=False"
)
FEW = '["team_budget", "average_attendance", "average_player_age"]'
VERSIONS = '{"teams_features": 1, "attendances_features": 1, "players_features": 1}'
MANY = (
    '["team_budget", "average_attendance", "average_player_age", "team_position", '
    '"sum_attendance", "sum_player_age"]'
)
ORDER = (
    "data_format={0!r}, training_dataset_version="
    "fs.get_latest_training_dataset_version({1!r}) + 1, " + FLAGS + ", stat_columns=None"
)


def exported(data_format: str) -> str:
    """Return the cell that exports to a format."""
    name = f"position_{data_format}"
    return f"fs.create_training_dataset(frame, {name!r}, {ORDER.format(data_format, name)})"


def pictures(subject: str, name: str) -> dict[int, str]:
    """Return the cells that plot a group (from 16 on) or a training dataset (from 115 on)."""
    first, version = (16, "featuregroup_version=1")
    if subject == "training_dataset":
        first, version = (115, "training_dataset_version=1")
    draw = f"fs.visualize_{subject}_"
    more = f"({name!r}, featurestore=None, {version}, figsize=(3, 2), plot=False"
    drawn = {
        first: f"{draw}distributions({name!r}, plot=False)",
        first + 1: f"{draw}distributions{more}, color='lightblue', log=False, align='center')",
        first + 2: f"{draw}distributions({name!r}, plot=False).savefig(folder / 'a.png')",
        first + 3: f"{draw}correlations({name!r}, plot=False)",
        first
        + 4: f"{draw}correlations{more}, cmap='coolwarm', annot=True, fmt='.2f', linewidths=.05)",
        first + 5: f"{draw}correlations({name!r}, plot=False).savefig(folder / 'b.png')",
        first + 6: f"{draw}clusters({name!r}, plot=False)",
        first + 7: f"{draw}clusters{more})",
        first + 8: f"{draw}clusters({name!r}, plot=False).savefig(folder / 'c.png')",
        first + 9: f"stats = fs.visualize_{subject}_descriptive_stats({name!r}); stats.head()",
        first + 10: f"fs.visualize_{subject}_descriptive_stats({name!r}).head()",
    }
    return drawn


SPANISH = f"'teams_features_spanish', description='a spanish version', {FLAGS}"
LATEST = "fs.get_latest_training_dataset_version('position_csv')"
CELLS: dict[int, str] = {
    1: "from featurestore.compat import hops as fs",
    2: "from featurestore.compat import hops as fs",
    3: "fs.project_featurestore()",
    4: "assert fs.get_project_featurestores() == [fs.project_featurestore()]",
    5: "fs.get_feature('team_budget').show(5)",
    6: "fs.get_feature('team_budget', featurestore=fs.project_featurestore(), "
    "featuregroup='teams_features', featuregroup_version=1, dataframe_type='spark').show(5)",
    7: "fs.get_featuregroup('teams_features').show(5)",
    8: "fs.get_featuregroup('teams_features', featurestore=fs.project_featurestore(), "
    "featuregroup_version=1, dataframe_type='spark').show(5)",
    9: f"fs.get_features({FEW}).show(5)",
    10: "fs.get_features(['teams_features_1.team_budget', "
    "'attendances_features_1.average_attendance']).show(5)",
    11: f"fs.get_features({FEW}, featurestore=fs.project_featurestore(), "
    f"featuregroups_version_dict={VERSIONS}).show(5)",
    12: f"fs.get_features({FEW}, featuregroups_version_dict={VERSIONS}, join_key='team_id', "
    "dataframe_type='spark').show(5)",
    13: f"fs.get_features({MANY}).show(5)",
    14: "fs.sql('SELECT * FROM teams_features_1 WHERE team_position < 5').show(5)",
    15: "fs.sql('SELECT * FROM teams_features_1 WHERE team_position < 5', "
    "featurestore=fs.project_featurestore(), dataframe_type='spark').show(5)",
    **pictures("featuregroup", "players_features"),
    27: "teams = fs.get_featuregroup('teams_features', dataframe_type='pandas')",
    28: "teams = teams.rename(columns={'team_id': 'equipo_id', 'team_budget': "
    "'equipo_presupuesto', 'team_position': 'equipo_posicion'})",
    29: "teams.head(5)",
    30: f"fs.create_featuregroup(teams, {SPANISH})",
    31: f"fs.create_featuregroup(teams, {SPANISH}, featurestore=fs.project_featurestore(), "
    "featuregroup_version=2)",
    32: "assert fs.get_storage_connectors() == []",
    33: "fs.sql('show tables').show(5)",
    34: "fs.sql('describe games_features_1').show(5)",
    35: "fs.create_on_demand_featuregroup('SELECT * FROM games_features_1 WHERE score > 1', "
    "'games_on_demand', 'connector')",
    36: "fs.get_featuregroup('games_on_demand').show(5)",
    37: "fs.create_on_demand_featuregroup('SELECT average_player_age AS age_on_demand, team_id "
    "FROM players_features_1', 'players_on_demand', 'connector')",
    38: "fs.get_features(['age_on_demand', 'average_attendance', 'sum_attendance'], "
    "featuregroups_version_dict={'players_on_demand': 1, 'attendances_features': 1}, "
    "join_key='team_id').show(5)",
    39: "fs.get_feature('age_on_demand', featuregroup='players_on_demand').show(5)",
    40: f"fs.create_featuregroup(teams, {SPANISH}, featuregroup_version=3)",
    41: "assert fs.get_latest_featuregroup_version('teams_features_spanish') == 3",
    42: "fs.get_featurestore_metadata(update_cache=True)",
    43: "games = fs.get_featuregroup('games_features')",
    44: f"fs.create_featuregroup(games, 'games_by_score', {FLAGS}, partition_by=['score'])",
    45: f"fs.create_featuregroup(games, 'games_by_both', {FLAGS}, "
    "partition_by=['score', 'home_team_id'])",
    46: "fs.get_featuregroup_partitions('games_by_score').show(10)",
    47: "fs.get_featuregroup_partitions('games_by_both').show(10)",
    48: "parts = fs.get_featuregroup_partitions('games_by_score', featurestore=None, "
    "featuregroup_version=1, dataframe_type='python')",
    49: "fs.insert_into_featuregroup(games, 'games_by_score', mode='overwrite')",
    50: "fs.get_featuregroup_partitions('games_by_score').show(10)",
    52: "fs.sql('show tables').show(20, False)",
    54: "assert 'teams_features_1' in fs.get_featuregroups()",
    56: "import pandas as pd",
    57: "sample = pd.DataFrame({'equipo_id': [99, 98], 'equipo_presupuesto': [4.5, 1.5], "
    "'equipo_posicion': [1, 8]})",
    58: "sample.head(5)",
    59: "assert len(sample) == 2",
    60: "spanish = fs.get_featuregroup('teams_features_spanish')",
    61: "spanish.show(5)",
    62: "before = spanish.count()",
    63: "fs.insert_into_featuregroup(sample, 'teams_features_spanish')",
    64: "spanish = fs.get_featuregroup('teams_features_spanish')",
    65: "spanish.show(5)",
    66: "assert spanish.count() == before + 2",
    67: "fs.insert_into_featuregroup(sample, 'teams_features_spanish', "
    "featurestore=fs.project_featurestore(), featuregroup_version=1, mode='append')",
    68: "assert fs.get_featuregroup('teams_features_spanish').count() == before + 4",
    69: "fs.insert_into_featuregroup(sample, 'teams_features_spanish', mode='overwrite')",
    70: "fs.get_featuregroup('teams_features_spanish').show(5)",
    71: "assert fs.get_featuregroup('teams_features_spanish').count() == 2",
    72: "import numpy as np",
    73: f"as_pandas = fs.get_features({FEW}, dataframe_type='pandas')",
    74: "as_pandas.head()",
    75: f"as_numpy = fs.get_features({FEW}, dataframe_type='numpy')",
    76: "assert as_numpy.shape == (4, 3)",
    77: f"as_python = fs.get_features({FEW}, dataframe_type='python')",
    78: "assert len(as_python) == 4",
    79: "assert len(as_python[0]) == 3",
    80: "as_pandas.columns",
    81: "as_pandas.columns = ['age_test', 'budget_test', 'attendance_test']",
    82: f"fs.create_featuregroup(as_pandas, 'pandas_test', {FLAGS})",
    83: "fs.insert_into_featuregroup(as_pandas, 'pandas_test', mode='overwrite')",
    84: f"fs.create_featuregroup(as_numpy, 'numpy_test', {FLAGS})",
    85: "fs.get_featuregroup('numpy_test', dataframe_type='spark').show(5)",
    86: "fs.insert_into_featuregroup(as_numpy, 'numpy_test', mode='overwrite')",
    87: f"fs.create_featuregroup(as_python, 'python_test', {FLAGS})",
    88: "fs.insert_into_featuregroup(as_python, 'python_test', mode='overwrite')",
    89: "fs.get_featuregroup('python_test', dataframe_type='spark').show(5)",
    90: "fs.update_featuregroup_stats('teams_features')",
    91: "fs.update_featuregroup_stats('teams_features', featuregroup_version=1, "
    "featurestore=None, descriptive_statistics=True, feature_correlation=True, stat_columns=None)",
    92: "fs.update_featuregroup_stats('teams_features', featuregroup_version=1, "
    "stat_columns=['team_budget', 'team_position'])",
    93: f"frame = fs.get_features({MANY})",
    94: "frame.show(5)",
    95: "latest = fs.get_latest_training_dataset_version('position')",
    96: f"fs.create_training_dataset(frame, 'position', {FLAGS}, "
    "training_dataset_version=latest + 1)",
    97: exported("csv"),
    98: exported("tsv"),
    99: exported("parquet"),
    100: exported("orc"),
    101: exported("avro"),
    102: exported("hdf5"),
    103: exported("npy"),
    104: "frame.schema",
    105: "petastorm_args = {'schema': None}",
    106: exported("petastorm")[:-1] + ", petastorm_args=petastorm_args)",
    107: "fs.create_training_dataset(frame, 'position', training_dataset_version="
    "fs.get_latest_training_dataset_version('position') + 1)",
    110: "assert fs.get_training_dataset_path('position_csv').endswith('train')",
    111: "fs.get_training_dataset_path('position_hdf5')",
    112: "fs.get_training_dataset_path('position_csv', featurestore=fs.project_featurestore(), "
    f"training_dataset_version={LATEST})",
    113: "fs.update_training_dataset_stats('position')",
    114: "fs.update_training_dataset_stats('position', training_dataset_version=1, "
    "featurestore=None, descriptive_statistics=True, stat_columns=None)",
    **pictures("training_dataset", "position"),
    126: "fs.get_training_dataset('position_csv').show(5)",
    127: "fs.get_training_dataset('position_csv', featurestore=None, training_dataset_version=1, "
    "dataframe_type='pandas').head()",
    128: "fs.get_training_dataset('position_petastorm', dataframe_type='spark').show(5)",
    129: "fs.get_featurestore_metadata(update_cache=True)",
    130: "fs.get_project_featurestores()",
    131: "fs.get_featuregroups()",
    132: "fs.get_featuregroups(featurestore=fs.project_featurestore())",
    133: "assert 'team_budget' in fs.get_features_list()",
    134: "fs.get_features_list(featurestore=fs.project_featurestore())",
    135: "assert 'position_1' in fs.get_training_datasets()",
    136: "fs.get_training_datasets(featurestore=fs.project_featurestore())",
    137: "fs.get_storage_connectors()",
    138: "fs.get_storage_connectors(featurestore=fs.project_featurestore())",
    139: "fs.get_featurestore_metadata()",
    140: "fs.get_featurestore_metadata(featurestore=fs.project_featurestore())",
    141: "fs.get_tags()",
    142: "fs.set_featuregroup_tag('teams_features', 'Sport', value='Football')",
    143: "assert fs.get_featuregroup_tags('teams_features') == {'Sport': 'Football'}",
    144: "fs.get_dataframe_tf_record_schema(frame)",
    145: "fs.get_training_dataset_tf_record_schema('position')",
    146: "fs.get_training_dataset_tf_record_schema('position', training_dataset_version=1, "
    "featurestore=fs.project_featurestore())",
    148: "batch_size, shuffle_buffer, inputs = 10, 10000, 5",
    149: "def dataset():\n    return fs.get_training_dataset_path('position')",
    150: "def model(neurons=64):\n    return neurons",
    151: "def train(neurons, rate):\n    return dataset(), model(neurons)",
    157: "pass",
}
NOT_HERE = {
    51: "writes a table of Hive",
    53: "takes a table of Hive over",
    55: "reads that table",
    108: "rows put into a training dataset: it does not change",
    109: "the same",
    147: "imports hops.experiment and tensorflow.python",
    **dict.fromkeys((152, 153, 154, 155, 156), "hops.experiment"),
}


def fill(store: Any) -> None:
    """Create the groups that the tour starts with."""
    teams = [(1, 10.5, 4), (2, 20.5, 3), (3, 5.5, 2), (4, 7.5, 1)]
    store.create_featuregroup(
        [dict(zip(("team_id", "team_budget", "team_position"), row, strict=True)) for row in teams],
        "teams_features",
        primary_key="team_id",
    )
    for name, measure in (
        ("attendances_features", "attendance"),
        ("players_features", "player_age"),
    ):
        rows = [
            {
                "team_id": team,
                f"average_{measure}": team * 1.5 + team % 2,
                f"sum_{measure}": team * 30.5,
            }
            for team, _, _ in teams
        ]
        store.create_featuregroup(rows, name, primary_key="team_id")
    games = [(1, 2, 1), (2, 3, 2), (3, 4, 3), (4, 1, 1)]
    store.create_featuregroup(
        [dict(zip(("home_team_id", "away_team_id", "score"), row, strict=True)) for row in games],
        "games_features",
    )


@pytest.mark.petastorm
def test_hops_tour_2019_runs(empty_store: Any, tmp_path: Path) -> None:
    assert set(CELLS) | set(NOT_HERE) == set(range(1, 158))
    fill(empty_store)
    names: dict[str, Any] = {"folder": tmp_path}
    ran = 0
    for number in sorted(CELLS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                exec(CELLS[number], names)
            except FeatureStoreError as error:
                pytest.fail(f"cell {number}: {CELLS[number]}: {error}")
        ran += 1
    assert names["parts"] == [["score=1"], ["score=2"], ["score=3"]]
    print(f"{ran} of 157 cells run")
    assert ran >= 140


def test_hops_unsupported_calls_raise_or_warn(empty_store: Any) -> None:
    fill(empty_store)
    for name in ("sync_hive_table_with_featurestore", "insert_into_training_dataset", "connect"):
        with pytest.raises(InvalidArgument, match=r"is not supported by this store(.|\n)*Hint"):
            getattr(hops, name)("anything", featurestore=None)
    with pytest.raises(InvalidArgument, match="no online store"):
        hops.get_featuregroup("teams_features", online=True)
    with pytest.raises(InvalidArgument, match="is not the connected store"):
        hops.get_featuregroups(featurestore="other_featurestore")
    with pytest.warns(UserWarning, match="'orc' is not supported: writing 'parquet'"):
        hops.create_training_dataset(
            store_module.get_featuregroup("teams_features"), "t", data_format="orc"
        )
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hops.nothing  # noqa: B018


@pytest.mark.spark
def test_hops_frames_on_spark_are_spark_dataframes(tmp_path: Path, spark: Any) -> None:
    from pyspark.sql import DataFrame

    with store_module.connect(tmp_path / "store", engine="spark") as store:
        fill(store)
        frame = hops.get_features(["team_budget", "average_attendance"])
        assert isinstance(frame, DataFrame)
        assert frame.count() == 4
        renamed = hops.get_featuregroup("teams_features").withColumnRenamed("team_id", "equipo")
        hops.create_featuregroup(renamed, "spanish", descriptive_statistics=False)
        assert hops.sql("select * from spanish_1 where team_position < 3").count() == 2
        assert hops.sql("show tables").count() == 5
