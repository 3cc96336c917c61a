"""``featurestore scheduler``: a process that runs jobs when they are due."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from featurestore.cli.state import store

app = typer.Typer(help="Run jobs when they are due.", no_args_is_help=True)


@app.callback()
def _noun() -> None:
    """Run jobs when they are due."""


@app.command(epilog="Example: featurestore scheduler start --every 30s")
def start(
    context: typer.Context,
    every: Annotated[str, typer.Option(help="Time between two looks at what is due.")] = "10s",
    workers: Annotated[int, typer.Option(min=1, help="How many jobs may run at once.")] = 4,
    stale: Annotated[
        bool, typer.Option("--stale", help="Also compute windows anew whose inputs changed.")
    ] = False,
) -> None:
    """Run due jobs until SIGTERM; runs that have begun are finished first."""
    from featurestore.jobs.scheduler import Options
    from featurestore.model.durations import parse_duration

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    seconds = parse_duration(every, argument="--every").total_seconds()
    options = Options(every=max(seconds, 0.1), workers=workers, stale=stale)
    store(context).scheduler(options).run()
