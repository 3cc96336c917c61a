"""``featurestore run`` and ``model``: runs of experiments, and registered models."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from featurestore.cli import output
from featurestore.cli.output import Limit, PageNumber
from featurestore.cli.state import OutputFormat, require_version, settings, split_version, store

if TYPE_CHECKING:
    from featurestore.experiments.run import Run

app = typer.Typer(no_args_is_help=True)
model_app = typer.Typer(no_args_is_help=True)

ModelName = Annotated[
    str, output.argument(help="Name of the model: the latest version, or name@v2.")
]
RunId = Annotated[str, output.argument(help="Id of the run.")]


@app.command("list", epilog="Example: featurestore run list --name late_flights")
def list_runs(
    context: typer.Context,
    name: Annotated[str | None, output.option(help="Only runs of this experiment.")] = None,
    trials: Annotated[bool, typer.Option("--trials", help="Include trials of studies.")] = False,
    limit: Limit = None,
    page: PageNumber = 1,
) -> None:
    """List runs, newest first."""
    from featurestore import experiments

    output.show_page(
        context,
        partial(experiments.get_runs, name, trials=trials, store=store(context)),
        _run_row,
        limit=limit,
        page=page,
        columns=["id", "name", "state", "metrics"],
        wide=["kind", "dataset", "parent", "created"],
        empty="no runs yet",
    )


def _run_row(run: Run) -> Mapping[str, object]:
    read = run.record.dataset
    return {
        "id": run.id,
        "name": run.name,
        "kind": run.kind,
        "state": run.state,
        "metrics": run.metrics,
        "dataset": None if read is None else f"{read.name}@v{read.version}",
        "parent": run.record.parent,
        "created": run.record.created,
    }


@app.command(epilog="Example: featurestore run show 20130101-063000-1f2e3d")
def show(context: typer.Context, run_id: RunId) -> None:
    """Show a run: parameters, metrics, dataset, code, final state."""
    from featurestore import experiments

    run = experiments.get_run(run_id, store=store(context))
    details = run.to_json()
    if settings(context).output is OutputFormat.JSON:
        output.show_json(details)
        return
    # A record lists all installed packages and the source code, which would hide the other values.
    packages = details["environment"].pop("packages", {})
    details["environment"]["packages"] = len(packages)
    details["code"].pop("source", None)
    output.show_record(context, details)


@app.command(epilog="Example: featurestore run compare 20130101-063000-1f2e3d 20130102-01...")
def compare(
    context: typer.Context,
    a: Annotated[str, output.argument(help="Id of a run.")],
    b: Annotated[str, output.argument(help="Id of another run.")],
) -> None:
    """Show the differences between two runs."""
    from featurestore import experiments

    comparison = experiments.compare(a, b, store=store(context))
    output.show_text(context, str(comparison), data=comparison.to_json())


@app.command(epilog="Example: featurestore run logs 20130101-063000-1f2e3d --worker 1")
def logs(
    context: typer.Context,
    run_id: RunId,
    worker: Annotated[int, typer.Option(min=0, help="Number of the worker.")] = 0,
    lines: Annotated[int, typer.Option(min=1, help="Number of lines from the end.")] = 100,
) -> None:
    """Print the last lines of output of a run's worker."""
    from featurestore import experiments

    text = experiments.get_run(run_id, store=store(context)).logs(worker, lines=lines)
    output.show_text(context, text, data={"worker": worker, "lines": text.split("\n")})


@app.command(epilog="Example: featurestore run tensorboard late_flights")
def tensorboard(
    context: typer.Context,
    name: Annotated[str | None, output.argument(help="Experiment; default: all.")] = None,
    port: Annotated[int, typer.Option(min=0, help="Port to listen on; 0: any free port.")] = 6006,
) -> None:
    """Show the runs of an experiment in TensorBoard; with --output json print only its directory."""
    from featurestore.experiments.run_files import check_tensorboard

    paths = store(context).session.paths
    directory = paths.experiments if name is None else paths.experiment(name)
    if settings(context).output is OutputFormat.JSON:
        output.show_json({"log_dir": directory})
        return
    # A configuration file in a run could make TensorBoard serve other files of this machine.
    check_tensorboard(directory)
    # A tensorboard command on the PATH may belong to another environment.
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", directory, "--port", str(port)]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


@model_app.command("list", epilog="Example: featurestore model list --name late_flights")
def list_models(
    context: typer.Context,
    name: Annotated[str | None, output.option(help="Only versions of this model.")] = None,
    limit: Limit = None,
    page: PageNumber = 1,
) -> None:
    """List every version of every model."""
    from featurestore import experiments

    output.show_page(
        context,
        partial(experiments.get_models, name, store=store(context)),
        lambda model: model.to_json(),
        limit=limit,
        page=page,
        columns=["name", "version", "stage", "flavor", "dataset", "run"],
        wide=["outputs", "description", "tags", "created"],
        empty="no models yet",
    )


@model_app.command("show", epilog="Example: featurestore model show late_flights@v1")
def show_model(context: typer.Context, name: ModelName) -> None:
    """Show a model: its features, inputs, predictions, run and dataset."""
    from featurestore import experiments

    model_name, version = split_version(name)
    model = experiments.get_model(model_name, version, store=store(context))
    output.show_record(context, model.to_json())


@model_app.command("stage", epilog="Example: featurestore model stage late_flights@v1 production")
def set_stage(
    context: typer.Context,
    name: Annotated[str, output.argument(help="Name and version: name@v2.")],
    stage: Annotated[str, output.argument(help="development, staging, production or archived.")],
) -> None:
    """Set the stage of a model version."""
    from featurestore import experiments
    from featurestore.experiments.models.catalog import check_stage

    model_name, version = require_version(context, name)
    model = experiments.get_model(model_name, version, store=store(context))
    model.update(stage=check_stage(stage))
    data = {"name": model_name, "version": version, "stage": stage}
    output.show_text(context, f"{name}: {stage}", data=data)
