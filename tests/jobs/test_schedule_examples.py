"""The schedules in examples/schedules.

Every command that they run is one of ours, and Airflow takes the DAG.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from featurestore.cli import app

SCHEDULES = Path(__file__).parents[2] / "examples" / "schedules"


def crontab() -> Iterator[list[str]]:
    for line in (SCHEDULES / "crontab").read_text().splitlines():
        if line[:1] in "*0123456789":
            yield line.split()[5:]


def service() -> Iterator[list[str]]:
    for result in re.findall(
        r"^ExecStart=(.*)$", (SCHEDULES / "featurestore.service").read_text(), re.MULTILINE
    ):
        words = result.split()
        yield [Path(words[0]).name, *words[1:]]


def kubernetes() -> Iterator[list[str]]:
    yaml = pytest.importorskip("yaml")
    result = yaml.safe_load((SCHEDULES / "kubernetes.yaml").read_text())
    assert (result["kind"], result["spec"]["concurrencyPolicy"]) == ("CronJob", "Forbid")
    pod = result["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    for container in [*pod["initContainers"], *pod["containers"]]:
        yield container["args"]


def airflow() -> Iterator[list[str]]:
    for node in ast.walk(ast.parse((SCHEDULES / "airflow_dag.py").read_text())):
        if isinstance(node, ast.keyword) and node.arg == "bash_command":
            assert isinstance(node.value, ast.JoinedStr)
            texts = [
                str(value.value) if isinstance(value, ast.Constant) else "x"
                for value in node.value.values
            ]
            yield "".join(texts).split()


@pytest.mark.parametrize("example", [crontab, service, kubernetes, airflow])
def test_example_commands_exist(example: object) -> None:
    actual = list(example())  # type: ignore[operator]
    assert actual
    for program, *words in actual:
        assert program == "featurestore"
        # Unknown options and commands are refused before help is shown.
        shown = CliRunner().invoke(app, [*words, "--help"])
        assert shown.exit_code == 0, shown.output


def test_example_command_check_rejects_unknown_commands() -> None:
    for wrong in (
        ["job", "run", "x", "--dew"],
        ["job", "rum", "x"],
        ["scheduler", "start", "--each", "10s"],
    ):
        assert CliRunner().invoke(app, [*wrong, "--help"]).exit_code == 2


def test_airflow_example_runs_hours_before_days() -> None:
    tree = ast.parse((SCHEDULES / "airflow_dag.py").read_text())
    chained = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.RShift)
    ]
    assert [ast.unparse(node) for node in chained] == ["hours >> days"]
    (names,) = [
        generator
        for node in ast.walk(tree)
        if isinstance(node, ast.GeneratorExp)
        for generator in node.generators
    ]
    assert ast.literal_eval(names.iter) == ("origin_traffic", "origin_days")


@pytest.mark.skipif(importlib.util.find_spec("airflow") is None, reason="Airflow is not installed")
def test_airflow_loads_example_dag() -> None:
    spec = importlib.util.spec_from_file_location("airflow_dag", SCHEDULES / "airflow_dag.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert set(module.dag.task_ids) == {"origin_traffic", "origin_days"}
    assert module.dag.get_task("origin_days").upstream_task_ids == {"origin_traffic"}
