"""Column roles of training datasets follow one rule for every kind of input."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featurestore
from featurestore import FeatureStore
from featurestore import transform as t
from featurestore.errors import InvalidArgument, LabelTimeRequired, UnsupportedType
from featurestore.model.requests import TimeSplit
from featurestore.model.roles import DatasetRoles, RoleRequest, assign_roles
from featurestore.retrieval.frame import FeatureFrame
from featurestore.training import TrainingDataset

START = datetime(2024, 1, 1, tzinfo=UTC)
INPUTS = ["home_goals", "away_goals", "level"]
ROWS = 40


def matches() -> pa.Table:
    """Return labels: a row id, two teams, a division, a stake, two times and the outcome."""
    rng = np.random.default_rng(1)
    times = [START + timedelta(hours=number) for number in range(ROWS)]
    return pa.table(
        {
            "match_id": pa.array(range(ROWS), pa.int64()),
            "home": pa.array(rng.integers(0, 4, ROWS)),
            "away": pa.array(rng.integers(0, 4, ROWS)),
            "division": pa.array(rng.integers(0, 2, ROWS)),
            "amount": pa.array(rng.integers(1, 9, ROWS)),
            "played_at": pa.array(times, pa.timestamp("us", "UTC")),
            "booked_at": pa.array(times, pa.timestamp("us", "UTC")),
            "won": pa.array(rng.integers(0, 2, ROWS)),
        }
    )


@pytest.fixture
def matches_store(empty_store: FeatureStore) -> FeatureStore:
    """A store with matches, teams with times, and divisions without times."""
    empty_store.create_featuregroup(
        matches(), "matches", primary_key="match_id", event_time="played_at"
    )
    teams = {"team": list(range(4)), "at": [START] * 4, "goals": [3, 1, 2, 2]}
    empty_store.create_featuregroup(
        pa.table(teams).cast(
            pa.schema(
                [("team", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("goals", pa.int64())]
            )
        ),
        "teams",
        primary_key="team",
        event_time="at",
    )
    divisions = pa.table({"division": pa.array([0, 1], pa.int64()), "level": [1.0, 2.0]})
    empty_store.create_featuregroup(divisions, "divisions", primary_key="division")
    return empty_store


def by_name(store: FeatureStore) -> FeatureFrame:
    home = store.get_features(
        ["teams.goals as home_goals", "divisions.level"],
        labels="matches",
        join_key={"teams": {"home": "team"}},
    )
    return store.get_features(
        "teams.goals as away_goals", labels=home, join_key={"teams": {"away": "team"}}
    )


def chained(store: FeatureStore) -> FeatureFrame:
    frame: Any = "matches"
    for side in ("home", "away"):
        frame = store.get_features(
            f"teams.goals as {side}_goals", labels=frame, join_key={"teams": {side: "team"}}
        )
    return store.get_features("divisions.level", labels=frame)


def with_dataframe(store: FeatureStore) -> FeatureFrame:
    frame: Any = matches()
    for side in ("home", "away"):
        frame = store.get_features(
            f"teams.goals as {side}_goals",
            labels=frame,
            label_time="played_at",
            join_key={"teams": {side: "team"}},
        )
    return store.get_features("divisions.level", labels=frame)


WAYS = pytest.mark.parametrize("way", [by_name, chained, with_dataframe])


@WAYS
def test_roles_inputs_are_requested_features(matches_store: FeatureStore, way: Any) -> None:
    dataset = matches_store.create_training_dataset(way(matches_store), "won", label="won")
    roles = dataset.roles
    assert sorted(roles.inputs) == sorted(INPUTS)
    assert roles.labels == ("won",)
    assert roles.time == "played_at"
    assert {"home", "away", "division"} <= set(roles.key)
    assert {"amount", "booked_at"} <= set(roles.unused)
    assert roles["match_id"] in ("key", "unused")
    batch = next(dataset.reader("train", global_batch_size=8).batches())
    assert sorted(batch) == sorted([*INPUTS, "won"])


@WAYS
def test_roles_unused_columns_are_stored_and_readable(
    matches_store: FeatureStore, way: Any
) -> None:
    dataset = matches_store.create_training_dataset(way(matches_store), "won", label="won")
    reader = dataset.reader("train", global_batch_size=ROWS, columns=["match_id", "amount"])
    batch = next(reader.batches())
    assert sorted(batch["match_id"].tolist()) == list(range(ROWS))
    assert "amount" in dataset.read("train").columns


@WAYS
def test_roles_features_adds_and_exclude_removes_inputs(
    matches_store: FeatureStore, way: Any
) -> None:
    dataset = matches_store.create_training_dataset(
        way(matches_store),
        "won",
        label="won",
        features=["amount", "division"],
        exclude=["level", "match_id", "booked_at"],
    )
    expected = ["amount", "division", "home_goals", "away_goals"]
    assert sorted(dataset.roles.inputs) == sorted(expected)
    assert "level" in dataset.roles.unused


def test_roles_requested_join_key_is_input(matches_store: FeatureStore) -> None:
    frame = matches_store.get_features(["matches.division", "divisions.level", "matches.won"])
    dataset = matches_store.create_training_dataset(frame, "won", label="won")
    assert dataset.roles.inputs == ("division", "level")


def test_roles_window_aggregates_are_inputs(matches_store: FeatureStore) -> None:
    spending(matches_store)
    labels = matches().rename_columns(["customer", *matches().column_names[1:]])
    frame = matches_store.get_features(
        [featurestore.window("spending.spent", "sum", over="30d"), "divisions.level"],
        labels=labels,
        label_time="played_at",
    )
    roles = matches_store.create_training_dataset(frame, "spent", label="won").roles
    assert set(roles.inputs) == {"spent_sum_30d", "level"}
    assert set(roles.key) == {"customer", "division"}


def test_roles_preserved_by_frame_selection(matches_store: FeatureStore) -> None:
    frame = by_name(matches_store).select("amount", "home_goals", "won").filter("amount > 2")
    roles = matches_store.create_training_dataset(frame, "won", label="won").roles
    assert (roles.inputs, roles.unused) == (("home_goals",), ("amount",))


def test_roles_dataframe_inputs_exclude_key_time_label_and_weight(
    matches_store: FeatureStore,
) -> None:
    table = matches().drop(["booked_at"])
    dataset = matches_store.create_training_dataset(
        table, "won", label="won", key="match_id", weight="amount"
    )
    roles = dataset.roles
    assert roles.inputs == ("home", "away", "division")
    assert (roles.key, roles.time, roles.weight) == (("match_id",), "played_at", "amount")
    second_dataset = matches_store.create_training_dataset(
        table, "won", label="won", features=["home", "away"]
    )
    assert second_dataset.roles.inputs == ("home", "away")
    assert set(second_dataset.roles.unused) == {"match_id", "division", "amount"}


def test_roles_group_inputs_exclude_key_and_times(matches_store: FeatureStore) -> None:
    frame = matches_store.get_featuregroup("matches")
    roles = matches_store.create_training_dataset(frame, "won", label="won").roles
    assert roles.inputs == ("home", "away", "division", "amount")
    assert (roles.key, roles.time, roles.unused) == (("match_id",), "played_at", ("booked_at",))


def test_roles_time_split_column_is_time(matches_store: FeatureStore) -> None:
    middle = START + timedelta(hours=20)
    splits = TimeSplit("booked_at", {"train": (None, middle), "test": (middle, None)})
    dataset = matches_store.create_training_dataset(
        matches(), "won", label="won", key="match_id", splits=splits
    )
    assert (dataset.roles.time, dataset.roles.unused) == ("booked_at", ("played_at",))


def test_roles_are_printed_once_with_features_hint(
    matches_store: FeatureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    frame = matches_store.get_features(
        "teams.goals",
        labels=matches().drop(["booked_at", "away", "division"]),
        join_key={"teams": {"home": "team"}},
    )
    dataset = matches_store.create_training_dataset(frame, "won", label="won")
    printed = capsys.readouterr().out
    assert printed.splitlines()[1:] == [
        "inputs:   goals",
        "label:    won",
        "key:      home",
        "time:     played_at",
        "not used: match_id, amount; list them in features= to use them",
    ]
    again = TrainingDataset.open(dataset.path)
    assert capsys.readouterr().out == ""
    assert repr(again.roles) in printed
    assert "match_id, amount; list them in features= to use them" in again.roles._repr_html_()


def test_roles_input_with_unique_values_warns(matches_store: FeatureStore) -> None:
    with pytest.warns(UserWarning, match="distinct value in every row.*'match_id'") as record:
        matches_store.create_training_dataset(matches(), "won", label="won")
    assert record[0].filename == __file__
    dataset = matches_store.create_training_dataset(
        matches(), "won", label="won", exclude="match_id"
    )
    assert "match_id" in dataset.roles.unused


def customers() -> pa.Table:
    born = [date(1980, 1, 1), date(1990, 1, 1)]
    return pa.table({"customer": pa.array([1, 2], pa.int64()), "born": born, "bought": [0, 1]})


def spending(store: FeatureStore) -> None:
    table = pa.table(
        {
            "customer": pa.array([1, 2], pa.int64()),
            "at": pa.array([START, START], pa.timestamp("us", "UTC")),
            "spent": [5.0, 7.0],
        }
    )
    store.create_featuregroup(table, "spending", primary_key="customer", event_time="at")


def test_label_time_date_column_is_not_inferred(matches_store: FeatureStore) -> None:
    spending(matches_store)
    matches_store.create_featuregroup(customers(), "customers", primary_key="customer")
    for labels in ("customers", customers()):
        with pytest.raises(LabelTimeRequired, match=r"candidates: 'born'"):
            matches_store.get_features("spending.spent", labels=labels)
        frame = matches_store.get_features("spending.spent", labels=labels, label_time=START)
        dataset = matches_store.create_training_dataset(frame, "buyers", label="bought")
        assert dataset.roles.time is None
        assert "born" not in dataset.manifest.key
        assert dataset.roles["born"] == "unused"
        assert sorted(dataset.read("train").to_pandas()["spent"]) == [5.0, 7.0]


def test_label_time_undeclared_group_timestamp_is_not_inferred(matches_store: FeatureStore) -> None:
    spending(matches_store)
    joined = customers().append_column(
        "joined", pa.array([START, START], pa.timestamp("us", "UTC"))
    )
    matches_store.create_featuregroup(joined, "customers", primary_key="customer")
    with pytest.raises(LabelTimeRequired, match="'customers' declares no event time"):
        matches_store.get_features("spending.spent", labels="customers")
    assert matches_store.get_features("spending.spent", labels=joined).plan.time == "joined"


def test_label_time_not_inferred_when_no_group_needs_time(matches_store: FeatureStore) -> None:
    labels = matches().select(["division", "played_at", "won"])
    frame = matches_store.get_features("divisions.level", labels=labels)
    assert frame.plan is not None
    assert frame.plan.time is None
    # A later retrieval that needs a label time uses this column.
    later = matches_store.get_features(
        "teams.goals", labels=frame, join_key={"teams": {"division": "team"}}
    )
    assert later.plan.time == "played_at"


def test_roles_statistics_and_plots_cover_inputs_and_labels_only(
    matches_store: FeatureStore,
) -> None:
    dataset = matches_store.create_training_dataset(
        with_dataframe(matches_store), "won", label="won"
    )
    statistics = dataset.statistics("train")
    assert {column.name: column.role for column in statistics.columns} == dict(dataset.roles)
    assert set(statistics.pearson.columns) == {*INPUTS, "won"}
    figure = matches_store.visualize_training_dataset_distributions("won", plot=False)
    assert sum(bool(axis.get_title()) for axis in figure.axes) == len([*INPUTS, "won"])
    clusters = matches_store.visualize_training_dataset_clusters("won", plot=False)
    assert "match_id" not in str(
        [text.get_text() for text in clusters.findobj() if hasattr(text, "get_text")]
    )


NAMES = ["a", "b", "c", "d"]
SCHEMA = pa.schema([(name, pa.int64()) for name in NAMES])
some = st.lists(st.sampled_from(NAMES), unique=True).map(tuple)


@given(
    requested_features=st.none() | some,
    keys=some,
    time=st.none() | st.sampled_from(NAMES),
    labels=some,
    features=some,
    exclude=some,
)
def test_roles_random_columns_have_one_role(**given_roles: Any) -> None:
    request = RoleRequest(**given_roles)
    try:
        roles = DatasetRoles(assign_roles(SCHEMA, request))
    except InvalidArgument:
        return
    groups = [roles.inputs, roles.labels, roles.key, roles.unused, roles.named("time")]
    assert sorted(itertools.chain(*groups)) == NAMES
    assert set(roles.labels) == set(request.labels)
    assert not set(roles.inputs) & {*request.labels, *request.exclude}
    assert set(roles.inputs) >= set(request.features)
    if request.requested_features is not None:
        assert set(roles.inputs) <= {*request.requested_features, *request.features}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": ["won"]}, "features= contains 'won', which is the label"),
        ({"exclude": "won"}, "exclude= contains 'won', which is the label"),
        ({"weight": "won"}, "'won' is in both label= and weight="),
        (
            {"features": "amonut"},
            "Unknown columns in features: 'amonut'(.|\n)*did you mean features='amount'",
        ),
        ({"exclude": ["id"]}, "Unknown columns in exclude: 'id'"),
        ({"features": "home", "exclude": "home"}, "features= and exclude= both contain 'home'"),
        ({"weight": "played_at"}, "weights must be numbers"),
        ({"weight": ["home", "away"]}, "is not a single column"),
    ],
)
def test_roles_conflicting_arguments_raise_without_writing(
    matches_store: FeatureStore, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        matches_store.create_training_dataset(matches(), "won", label="won", **arguments)
    assert matches_store.get_training_datasets() == []


def test_timestamps_are_refused_as_inputs_with_working_hints(
    empty_store: FeatureStore, subtests: Any
) -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    rows = [
        {"user": n, "at": start, "seen": start - timedelta(hours=n), "amount": n / 2}
        for n in range(20)
    ]
    empty_store.create_featuregroup(rows, "visits", primary_key="user", event_time="at")
    labels = [{"user": n, "asked": start + timedelta(days=n), "y": n % 2} for n in range(20)]

    def frame(*more: Any) -> Any:
        return empty_store.get_features(
            ["visits.amount", "visits.seen", *more], labels=labels, label_time="asked"
        )

    def export(data: Any, **arguments: Any) -> Any:
        return empty_store.create_training_dataset(
            data, "d", label="y", progress=False, **arguments
        )

    for arguments in ({}, {"features": ["seen", "amount"]}):
        with pytest.raises(UnsupportedType, match="model inputs: 'seen'") as refused:
            export(frame(), **arguments)
    computed, encoded, omitted = str(refused.value.hint).split(", or ")
    feature = eval(computed.split(" in get_features")[0], {"featurestore": featurestore})
    dataset = export(frame(feature), exclude="seen")
    seconds = dataset.read("train").to_arrow().to_pylist()
    assert {row["user"]: row["seen_seconds"] for row in seconds} == {
        n: n * 86_400.0 + n * 3_600.0 for n in range(20)
    }
    dataset = export(frame(), **eval(f"dict({encoded.split(' encodes')[0]})", {"t": t}))
    hours = {row["user"]: row["seen"].hour for row in dataset.read("train").to_arrow().to_pylist()}
    (batch,) = dataset.reader("train", global_batch_size=20, columns=["user", "seen"]).batches()
    for user, values in zip(batch["user"].tolist(), batch["seen"].tolist(), strict=True):
        angle = 2 * math.pi * hours[user] / 24
        assert values == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-5)
    dataset = export(frame(), **eval(f"dict({omitted.split(' omits')[0]})"))
    assert dataset.roles.inputs == ("amount",)
    # A dataset of an earlier release, whose input is a timestamp.
    columns = tuple(
        replace(column, role="feature" if column.name == "seen" else column.role)
        for column in dataset.manifest.columns
    )
    earlier = replace(dataset, manifest=replace(dataset.manifest, columns=columns))
    doors = {
        "reader": lambda **more: earlier.reader("train", global_batch_size=20, **more),
        "keras_inputs": earlier.keras_inputs,
        "matrix": lambda **more: earlier.matrix("train", **more),
    }
    for name, door in doors.items():
        with subtests.test(door=name):
            with pytest.raises(UnsupportedType, match="model inputs: 'seen'") as refused:
                door()
            line = str(refused.value.hint).split(", or ")[-1].split(" omits")[0]
            assert eval(f"dict({line})")["columns"] == ["amount"]
            if name != "keras_inputs":
                door(columns=["amount"])
            with pytest.raises(UnsupportedType, match="model inputs: 'seen'"):
                door(columns=["amount", "seen"])
    # Keys and times are read when they are named.
    reader = earlier.reader("train", global_batch_size=20, columns=["asked", "amount"])
    assert set(next(reader.batches())) == {"asked", "amount"}
