"""Calls in the style of other feature stores raise errors that name our call."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import featurestore
from featurestore import experiments
from featurestore.errors import (
    FeatureGroupNotFound,
    InvalidArgument,
    InvalidSql,
    TrainingDatasetNotFound,
    UnknownArgument,
)
from featurestore.model.arguments import with_suggestions
from featurestore.model.suggestions import ALIASES, EQUAL_VALUES, REPLACEMENTS, SIMILAR_VALUES
from featurestore.model.times import NaiveTimeWarning
from featurestore.retrieval import FeatureFrame
from featurestore.retrieval.conversions import PANDAS, SPARK, suggest_replacement

if TYPE_CHECKING:
    from featurestore.store import FeatureStore
    from featurestore.training import TrainingDataset

NOW = datetime(2024, 1, 1, tzinfo=UTC)
# (call, the name in other stores, expected text of the error)
WORDS = [
    ("get_featuregroup", "featuregroup_version", "version="),
    ("get_training_dataset", "training_dataset_version", "version="),
    ("get_features", "featuregroups_version_dict", "versions="),
    ("get_featuregroup", "featuregroup", "name="),
    ("insert_into_featuregroup", "featuregroup_name", "name="),
    ("get_training_dataset", "training_dataset", "name="),
    ("create_featuregroup", "descriptive_statistics", "statistics="),
    ("create_featuregroup", "feature_correlation", "statistics="),
    ("create_training_dataset", "feature_histograms", "statistics="),
    ("create_featuregroup", "cluster_analysis", "statistics="),
    ("create_featuregroup", "stat_columns", "statistics="),
    ("visualize_featuregroup_correlations", "corr_method", "method="),
    ("get_features", "entity_df", "labels="),
    ("create_featuregroup", "primary_keys", "primary_key="),
    ("create_featuregroup", "join_keys", "primary_key="),
    ("get_features", "join_keys", "join_key="),
    ("get_features", "timestamp_lookup_key", "label_time="),
    ("create_featuregroup", "timeseries_columns", "event_time="),
    ("create_featuregroup", "created_timestamp_column", "created_time="),
    ("create_featuregroup", "online", "label_time=datetime.now"),
    ("get_features", "featurestore", "featurestore.connect(location)"),
    ("create_training_dataset", "petastorm_args", "dataset.petastorm_reader"),
    ("create_featuregroup", "primarykey", "did you mean primary_key=?"),
    ("get_featuregroups", "nothing", "available arguments: 'limit', 'offset'"),
]


def test_foreign_argument_names_raise_with_replacement(empty_store: FeatureStore) -> None:
    for owner in (featurestore, empty_store):
        for call, word, says in WORDS:
            with pytest.raises(UnknownArgument) as refused:
                getattr(owner, call)(**{word: 1})
            assert says in str(refused.value), (call, word)
            assert f"{call}() has no argument {word!r}" in str(refused.value)
            assert "Calls" not in str(refused.value)
            assert isinstance(refused.value, TypeError)


@pytest.fixture
def dataset(empty_store: FeatureStore) -> TrainingDataset:
    rows = [{"id": n, "x": float(n)} for n in range(8)]
    return empty_store.create_training_dataset(rows, "d", progress=False)


def test_handles_foreign_argument_names_raise_with_replacement(
    empty_store: FeatureStore, dataset: TrainingDataset
) -> None:
    reader = dataset.reader("train", global_batch_size=2)
    group = empty_store.create_featuregroup([{"id": 1}], "g", primary_key="id")
    view = empty_store.create_feature_view("v", features="g.id")
    cases = [
        (dataset.reader, {"batch_size": 8}, "use global_batch_size= instead of batch_size="),
        (
            reader.batches,
            {"cur_shard": 0, "shard_count": 2},
            "use worker= instead of cur_shard=; use workers= instead of shard_count=",
        ),
        (reader.tf_dataset, {"num_epochs": 2}, "use epochs= instead of num_epochs="),
        (dataset.open, {"pth": "x"}, "did you mean path=?"),
        (group.insert, {"write_mode": "append"}, "use mode= instead of write_mode="),
        (group.read().sample, {"frac": 0.1}, "frac"),
        (
            view.get_features,
            {"entity_df": [], "timestamp_lookup_key": "t"},
            "use labels= instead of entity_df=",
        ),
        (featurestore.window_job, {"name": "spend", "feature_group": "g"}, "feature_group"),
        (featurestore.connect, {"engin": "spark"}, "did you mean engine=?"),
        (featurestore.sql_job, {"featuregroup_name": "g"}, "featuregroup_name"),
        (featurestore.compare_statistics, {"left": 1}, "compare_statistics() has no argument 'left'"),
    ]  # fmt: skip
    for call, arguments, says in cases:
        with pytest.raises(UnknownArgument) as refused:
            call(**arguments)  # type: ignore[operator]
        assert says in str(refused.value)


def test_positional_and_missing_arguments_raise_unknown_argument(
    empty_store: FeatureStore,
) -> None:
    with pytest.raises(
        UnknownArgument,
        match=r"got 3 positional arguments. Allowed: 'df', 'name'.*\n.*primary_key=..",
    ):
        empty_store.create_featuregroup([{"id": 1}], "g", ["id"])  # type: ignore[misc]
    with pytest.raises(UnknownArgument, match=r"get_featuregroup\(\) needs 'name'"):
        empty_store.get_featuregroup()  # type: ignore[call-arg]
    with pytest.raises(UnknownArgument, match=r"delete_featuregroup\(name, version=\.\.\.\)"):
        empty_store.delete_featuregroup("g")  # type: ignore[call-arg]
    with pytest.raises(UnknownArgument, match="got an argument twice"):
        empty_store.get_featuregroup("g", name="g")  # type: ignore[misc]


def test_caller_type_error_is_not_replaced(empty_store: FeatureStore) -> None:
    def rows() -> Any:
        raise TypeError("of the caller's own code")
        yield

    with pytest.raises(TypeError, match="of the caller's own code"):
        empty_store.create_featuregroup(rows(), "g")


def test_argument_aliases_name_existing_arguments() -> None:
    calls: list[Any] = [getattr(featurestore, name) for name in featurestore._FUNCTIONS]
    for owner in (featurestore.TrainingDataset, featurestore.FeatureGroup, FeatureFrame):
        calls += [member for _, member in inspect.getmembers(owner, inspect.isfunction)]
    from featurestore.readers.reader import Reader

    calls += [member for _, member in inspect.getmembers(Reader, inspect.isfunction)]
    names = set()
    for call in calls:
        names |= set(inspect.signature(call).parameters)
    planned = {"exclude", "rank", "world_size"}
    for word, targets in ALIASES.items():
        assert set(targets) & (names | planned), word
        assert word not in REPLACEMENTS


def test_values_of_other_libraries_are_accepted_or_suggested(empty_store: FeatureStore) -> None:
    values = {**EQUAL_VALUES, **SIMILAR_VALUES}
    for words in values.values():
        # A word of this library keeps its meaning.
        assert not set(words) & set(words.values())
    for word, function in EQUAL_VALUES["function"].items():
        for spelling in (word, word.upper()):
            aggregate = featurestore.window("sales.amount", spelling, over="7d")  # type: ignore[arg-type]
            assert aggregate.function == function
            assert aggregate.name == f"amount_{function}_7d"
    both = featurestore.windows("sales.amount", ["avg", "max"], over="1d")  # type: ignore[list-item]
    assert [window.function for window in both] == ["mean", "max"]
    assert featurestore.window("sales.amount", "stddev", over=None).function == "std"  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="'stddev_pop' is not one of"):
        featurestore.window("sales.amount", "stddev_pop", over="1d")  # type: ignore[arg-type]
    assert experiments.search.__wrapped__ is not None  # type: ignore[attr-defined]
    for word, direction in EQUAL_VALUES["direction"].items():
        assert with_suggestions(lambda *, direction: direction)(direction=word) == direction
    empty_store.create_featuregroup([{"id": 1}], "g", validation="raise")
    assert empty_store.get_featuregroup("g", dataframe_type="pyarrow").num_rows == 1  # type: ignore[arg-type]


def test_naive_time_warns_once_per_position(flights_store: FeatureStore) -> None:
    def warned(years: Iterable[int]) -> int:
        with warnings.catch_warnings(record=True) as output:
            warnings.simplefilter("always")
            for year in years:
                flights_store.get_featuregroup("planes", as_of=f"{year}-01-01")
        return sum(warning.category is NaiveTimeWarning for warning in output)

    assert [warned(range(2100, 2105)), warned([2100])] == [1, 0]
    with pytest.warns(NaiveTimeWarning):
        flights_store.get_featuregroup("planes", as_of="2100-01-01")


def test_versioned_group_name_raises_with_reference(empty_store: FeatureStore) -> None:
    rows = [{"team_id": 1, "team_budget": 2.0}]
    empty_store.create_featuregroup(rows, "teams_features", primary_key="team_id")
    with pytest.raises(FeatureGroupNotFound, match=r"'teams_features@v1\.team_budget'"):
        empty_store.get_features(["teams_features_1.team_budget"])
    with pytest.raises(FeatureGroupNotFound, match=r"'teams_features@v1'"):
        empty_store.get_featuregroup("teams_features_1")
    for call in (empty_store.get_featuregroup, empty_store.get_featuregroup_statistics):
        with pytest.raises(FeatureGroupNotFound, match="did you mean 'teams_features'"):
            call("team_features")
    with pytest.raises(FeatureGroupNotFound, match=r"'teams_features\.team_budget'"):
        empty_store.get_features("team_features.team_budget")


def test_versioned_training_dataset_name_raises_with_call(
    empty_store: FeatureStore, dataset: TrainingDataset
) -> None:
    assert empty_store.get_latest_training_dataset_version("d") == 1
    assert empty_store.get_latest_training_dataset_version("new") == 0
    assert empty_store.get_latest_featuregroup_version("new") == 0
    with pytest.raises(TrainingDatasetNotFound, match=r"get_training_dataset\('d', version=1\)"):
        empty_store.get_training_dataset("d_1")


def test_foreign_dataframe_methods_raise_with_replacement(frame: FeatureFrame) -> None:
    for name in sorted(SPARK | PANDAS):
        with pytest.raises(AttributeError) as refused:
            getattr(frame, name)
        hint = str(refused.value).partition("Hint: ")[2]
        assert hint == suggest_replacement(name)
        assert f"frame.to_spark().{name}" in hint or f"frame.to_pandas().{name}" in hint
        assert not hasattr(frame, name)


def test_frame_names_members_of_its_group(frame: FeatureFrame) -> None:
    public_names = [name for name in dir(FeatureFrame) if not name.startswith("_")]
    assert set(dir(frame)) < set(public_names)
    assert all(getattr(FeatureFrame, name).__doc__ for name in dir(frame))
    for name in dir(featurestore.FeatureGroup):
        if name in (*public_names, "find") or name[0] == "_" or suggest_replacement(name):
            continue
        with pytest.raises(AttributeError, match=rf"\.featuregroup\(name\)\.{name}"):
            getattr(frame, name)
    with pytest.raises(AttributeError, match=r"available: columns, count, .*to_spark$"):
        _ = frame.nothing


@pytest.mark.parametrize("value", [3, None, b"x > 1", ["x > 1"], len], ids=repr)
def test_text_arguments_of_other_types_are_named(
    empty_store: FeatureStore, frame: FeatureFrame, value: Any
) -> None:
    calls: list[tuple[Any, str]] = [
        (lambda: frame.filter(value), "sql"),
        (lambda: featurestore.sql_job("j", sql=value, primary_key="id", schedule="@daily"), "sql"),
        (lambda: empty_store.delete_from_featuregroup("g", where=value), "where"),
        (lambda: empty_store.sql(value), "query"),
        (lambda: featurestore.feature("z", value).sql or featurestore.feature("z", 3), "'z'"),
    ]
    if value is not None:
        calls.append((lambda: featurestore.window("g.id", "sum", over=None, where=value), "where"))
    for call, name in calls:
        with pytest.raises((InvalidArgument, InvalidSql), match=name):
            call()


@pytest.mark.parametrize("value", [3, b"x=1", "x=1", ["x"], ("x", 1)], ids=repr)
def test_dict_arguments_of_other_types_are_named(
    empty_store: FeatureStore, dataset: TrainingDataset, value: Any
) -> None:
    job: dict[str, Any] = {"schedule": "@daily", "primary_key": "id", "event_time": "t"}
    for name in ("metrics", "limits", "drift", "tags"):
        with pytest.raises(InvalidArgument, match=f"{name} is a dict, not"):
            featurestore.monitor_job("m", featuregroup="g", schedule="@daily", **{name: value})
    for name in ("inputs", "input_times", "tags"):
        with pytest.raises(InvalidArgument, match=f"{name} is a dict, not"):
            featurestore.sql_job("j", sql="select 1 as id", **job, **{name: value})
    calls: list[tuple[Any, str]] = [
        (lambda: empty_store.get_features(["g.id"], versions=value), "versions"),
        (lambda: featurestore.TrainingDataset.open(dataset.path, storage_options=value), "storage"),
        (lambda: experiments.launch(print, dataset=dataset, name="e", environment=value), "env"),
        (lambda: experiments.launch(print, dataset=dataset, name="e", params=value), "params"),
        (lambda: dataset.reader("train", global_batch_size=1, nulls=value), "nulls"),
    ]
    for call, name in calls:
        with pytest.raises(InvalidArgument, match=name):
            call()


def test_groups_and_datasets_name_the_call_that_reads_rows(
    frame: FeatureFrame, dataset: TrainingDataset
) -> None:
    group = featurestore.FeatureGroup.find(frame.session, "g")
    for owner, call in ((group, r"group\.read\(\)"), (dataset, r"dataset\.read\(split\)")):
        for name in set(dir(frame)) - set(dir(owner)):
            with pytest.raises(AttributeError, match=rf"{call}\.{name}$"):
                getattr(owner, name)
        assert not hasattr(owner, "nothing")
        assert copy.copy(owner).name == owner.name


@pytest.fixture
def frame(empty_store: FeatureStore) -> FeatureFrame:
    rows = [{"id": 1, "word": "a long word of more than twenty letters"}]
    empty_store.create_featuregroup(rows, "g", primary_key="id")
    result: FeatureFrame = empty_store.get_featuregroup("g")
    return result


def test_frame_brackets_select_columns_and_show_prints(
    frame: FeatureFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame["word"].columns == ["word"]
    assert frame[["word", "id"]].columns == ["word", "id"]
    with pytest.raises(InvalidArgument, match=r"frame.filter"):
        frame[0]  # type: ignore[index]
    with pytest.raises(TypeError, match="not iterable"):
        list(frame)  # type: ignore[call-overload]
    frame.show(5, False)
    assert "more than twenty letters" in capsys.readouterr().out
    frame.show(5, 6)
    assert "a l..." in capsys.readouterr().out
    frame.show()
    assert "a long word of mo..." in capsys.readouterr().out
    with pytest.raises(AttributeError, match=r"frame\['word'\] selects the column"):
        frame.word  # noqa: B018
