"""Hints name existing commands, functions and arguments, and work when pasted.

The source is scanned, so that a new hint is checked by being written. Hints of casts, renames and
times are pasted in ``tests/ingest``, those of arguments here.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featurestore.errors import FeatureStoreError
from featurestore.store import FeatureStore
from tests.hint_checks import (
    ROOT,
    code_of,
    code_problems,
    command_problems,
    find_recorded_problems,
    source_trees,
)
from tests.store_copies import copy_of


def text_of(node: ast.expr) -> str | None:
    """Return the text of a hint with ``hole`` for placeholders, or None if it is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        texts = [
            str(value.value) if isinstance(value, ast.Constant) else "hole" for value in node.values
        ]
        return "".join(texts)
    return None


def hints() -> Iterator[tuple[str, str]]:
    """Yield the position and text of each literal hint."""
    for path, tree in source_trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            for keyword in node.keywords:
                text = text_of(keyword.value) if keyword.arg == "hint" else None
                if text is not None:
                    yield f"{path.relative_to(ROOT)}:{keyword.value.lineno}", text


def test_hints_use_existing_functions_arguments_and_commands() -> None:
    all_hints = list(hints())
    code = [hint for hint in all_hints if code_of(hint[1]) is not None]
    commands = [hint for hint in all_hints if re.match("featurestore [a-z]", hint[1])]
    assert len(all_hints) > 700
    assert len(code) > 180
    assert len(commands) > 20
    problems = [(position, *code_problems(text)) for position, text in code]
    problems += [(position, *command_problems(text)) for position, text in commands]
    assert [problem for problem in problems if len(problem) > 1] == []


def test_recorded_hints_name_existing_functions(tmp_path: Path, subtests: pytest.Subtests) -> None:
    hint_problems = {
        "primary_key=['id']": None,
        "df['c'] = df['c'].astype('float64'); primary_key=['id']": None,
        "store.compact_featuregroup('g')": None,
        "featurestore fg list": None,
        "nulls={'k': 0}, or another value of type decimal128(5, 2)": None,
        "key={'k': <string>}": "is not valid Python",
        "primary_keys=['id']": "unknown argument primary_keys=",
        "store.compact_group('g')": "unknown function compact_group()",
        "compact_featuregroup('g', all=True)": "unknown arguments",
        "featurestore fg compact --all": "unknown options",
        "featurestore group list": "unknown command group",
    }
    for hint, problem in hint_problems.items():
        with subtests.test(hint):
            line = json.dumps(["featurestore.module:1", hint, None])
            (tmp_path / "1.jsonl").write_text(line + "\n")
            problems = find_recorded_problems(tmp_path)
            expected = [] if problem is None else [True]
            assert [problem in message for message in problems] == expected


def test_recorded_hint_of_failed_job_is_checked_like_the_passed_on_hint(tmp_path: Path) -> None:
    def problems(*lines: tuple[str, str]) -> list[str]:
        content = [
            json.dumps([f"featurestore.{position}:1", hint, None]) for position, hint in lines
        ]
        (tmp_path / "1.jsonl").write_text("\n".join(content))
        return find_recorded_problems(tmp_path)

    sql = ("usersql.spark_types", "max(length(steps))")
    assert problems(sql, ("jobs.service", f"{sql[1]}; log: /logs/1.log")) == []
    assert len(problems(("jobs.service", f"{sql[1]}; log: /logs/1.log"))) == 1
    assert len(problems(("usersql.spark_types", "max(steps from)"))) == 1


NOON = datetime(2024, 1, 31, 12, tzinfo=UTC)


def table() -> pa.Table:
    times = [NOON + timedelta(hours=number) for number in range(20)]
    return pa.table(
        {
            "k": list(range(20)),
            "t": times,
            "x": [float(number) for number in range(20)],
            "y": [0, 1] * 10,
        }
    )


def create(store: FeatureStore, **arguments: Any) -> Any:
    return store.create_featuregroup(table(), "made", **{"primary_key": "k", **arguments})


def insert(store: FeatureStore, **arguments: Any) -> Any:
    return store.insert_into_featuregroup(table(), "g", **arguments)


def export(store: FeatureStore, **arguments: Any) -> Any:
    return store.create_training_dataset(table(), "made", **{"label": "y", **arguments})


def features(store: FeatureStore, **arguments: Any) -> Any:
    return store.get_features(["g.x"], labels=table().select(["k", "t"]), **arguments).to_arrow()


def reader(store: FeatureStore, **arguments: Any) -> Any:
    dataset = store.create_training_dataset(table(), "read", label="y")
    return dataset.reader("train", **{"global_batch_size": 4, "columns": ["x", "y"], **arguments})


def read(store: FeatureStore, **arguments: Any) -> Any:
    return store.get_featuregroup("g", **arguments)


Call = Callable[..., Any]
# A call and its refused argument; the call with the suggested argument succeeds.
MISTAKES: list[tuple[Call, dict[str, Any]]] = [
    (create, {"primary_key": "kk"}),
    (create, {"event_time": "tt"}),
    (create, {"partition_by": "yy"}),
    (create, {"validation": "strickt"}),
    (create, {"description": 5}),
    (create, {"tags": "traffic"}),
    (create, {"version": 0}),
    (insert, {"mode": "uppsert"}),
    (insert, {"mode": "replace"}),
    (insert, {"schema_change": "new"}),
    (insert, {"transaction": "nightly"}),
    (insert, {"mode": "append", "version": 0}),
    (export, {"data_format": "parket"}),
    (export, {"splits": {"train": 80, "test": 20}}),
    (export, {"splits": [0.8, 0.2]}),
    (export, {"label": "yy"}),
    (export, {"splits": {"a": 0.5, "b": 0.5}, "split_by": "kk"}),
    (export, {"splits": {"a": 0.5, "b": 0.5}, "stratify": "yy"}),
    (features, {"label_time": "t", "join": "outer"}),
    (reader, {"remainder": "none"}),
    (reader, {"columns": "x"}),
    (read, {"dataframe_type": "panda"}),
    (read, {"version": 0}),
    (read, {"as_of": 99}),
]


@pytest.mark.filterwarnings("ignore:inputs with a distinct value in every row")
def test_argument_hints_work_when_pasted(
    empty_store: FeatureStore, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    empty_store.create_featuregroup(table(), "g", primary_key="k", event_time="t")
    for number, (call, wrong) in enumerate(MISTAKES):
        copy = copy_of(Path(empty_store.location), tmp_path / str(number))
        with subtests.test(f"{call.__name__} {wrong}"), copy as store:
            with pytest.raises(FeatureStoreError) as refused:
                call(store, **wrong)
            hint = str(refused.value.hint)
            pasted = re.search(r"\w+=(?:\{.*?\}|\[.*?\]|\(.*?\)|'[^']*'|\"[^\"]*\"|\w+)", hint)
            assert pasted is not None, hint
            arguments = eval(f"dict({pasted[0]})")
            assert set(arguments) <= set(wrong), hint
            call(store, **{**wrong, **arguments})


def test_number_as_column_names_raises(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    for argument in ("primary_key", "partition_by"):
        with subtests.test(argument):
            with pytest.raises(FeatureStoreError, match="is not a list of names") as refused:
                create(empty_store, **{argument: 5})
            assert refused.value.hint == f"{argument}=['id']"
