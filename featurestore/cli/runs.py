"""``featurestore run``: runs of experiments."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated, Any

import typer

from featurestore.cli.output import (
    Limit,
    PageNumber,
    get_page,
    show_json,
    show_record,
    show_rows,
    show_text,
)
from featurestore.cli.state import OutputFormat, settings, store

app = typer.Typer(help="Runs of experiments.", no_args_is_help=True)

RunId = Annotated[str, typer.Argument(help="Id of the run.", show_default=False)]


@app.command("list", epilog="Example: featurestore run list --name late_flights")
def list_runs(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Option(help="Of one experiment only.", show_default=False)
    ] = None,
    trials: Annotated[bool, typer.Option("--trials", help="Also the trials of studies.")] = False,
    limit: Limit = None,
    page: PageNumber = 1,
) -> None:
    """List runs, newest first."""
    from featurestore import experiments

    connected = store(context)

    def get(most: int | None, skip: int) -> list[Any]:
        wanted = None if most is None else skip + most
        found = experiments.get_runs(name, trials=trials, limit=wanted, store=connected)
        return found[skip:]

    shown = get_page(context, get, limit=limit, page=page)
    rows = []
    for run in shown.items:
        row = {"id": run.id, "name": run.name, "kind": run.kind, "state": run.state}
        read = run.record.dataset
        dataset = None if read is None else f"{read.name}@v{read.version}"
        more = {"parent": run.record.parent, "created": run.record.created}
        rows.append({**row, "metrics": run.metrics, "dataset": dataset, **more})
    columns = ["id", "name", "state", "metrics"]
    wide = ["kind", "dataset", "parent", "created"]
    show_rows(context, rows, columns=columns, wide=wide, empty="no runs yet", next_page=shown.next)


@app.command(epilog="Example: featurestore run show 20130101-063000-1f2e3d")
def show(context: typer.Context, run_id: RunId) -> None:
    """Show a run: parameters, metrics, dataset, code, how it ended."""
    from featurestore import experiments

    run = experiments.get_run(run_id, store=store(context))
    told = run.to_json()
    if settings(context).output is OutputFormat.JSON:
        show_json(told)
        return
    packages = told["environment"].pop("packages", {})
    told["environment"]["packages"] = len(packages)
    told["code"].pop("source", None)
    show_record(context, told)


@app.command(epilog="Example: featurestore run compare 20130101-063000-1f2e3d 20130102-01...")
def compare(
    context: typer.Context,
    a: Annotated[str, typer.Argument(help="Id of a run.", show_default=False)],
    b: Annotated[str, typer.Argument(help="Id of another.", show_default=False)],
) -> None:
    """Show what differs between two runs."""
    from featurestore import experiments

    found = experiments.compare(a, b, store=store(context))
    show_text(context, str(found), data=found.to_json())


@app.command(epilog="Example: featurestore run logs 20130101-063000-1f2e3d --worker 1")
def logs(
    context: typer.Context,
    run_id: RunId,
    worker: Annotated[int, typer.Option(min=0, help="Number of the worker.")] = 0,
    lines: Annotated[int, typer.Option(min=1, help="How many of the last lines.")] = 100,
) -> None:
    """Print the last lines that a worker of a run printed."""
    from featurestore import experiments

    text = experiments.get_run(run_id, store=store(context)).logs(worker, lines=lines)
    show_text(context, text, data={"worker": worker, "lines": text.split("\n")})


@app.command(epilog="Example: featurestore run tensorboard late_flights")
def tensorboard(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Experiment; all when left out.", show_default=False)
    ] = None,
    port: Annotated[int, typer.Option(min=0, help="Port to listen on; 0: a free one.")] = 6006,
) -> None:
    """Show the runs of an experiment side by side in TensorBoard; as JSON its directory alone."""
    from featurestore.experiments.run_files import check_tensorboard

    paths = store(context).session.paths
    directory = paths.experiments if name is None else paths.experiment(name)
    if settings(context).output is OutputFormat.JSON:
        show_json({"log_dir": directory})
        return
    check_tensorboard(directory)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", directory, "--port", str(port)]
    raise typer.Exit(subprocess.run(command, check=False).returncode)
