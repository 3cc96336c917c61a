"""``featurestore scheduler``: a process that runs jobs when they are due."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from featurestore.cli.logs import LogFormat, log_to_stderr
from featurestore.cli.state import settings, store

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
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve /metrics for Prometheus at this port."),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="The address at which metrics are served.")
    ] = "127.0.0.1",
) -> None:
    """Run due jobs until SIGTERM; runs that have begun are finished first."""
    from featurestore.jobs.metrics import serving_metrics
    from featurestore.jobs.scheduler import Options
    from featurestore.model.durations import parse_duration

    if settings(context).log_format is None:
        log_to_stderr(LogFormat.TEXT)
    seconds = parse_duration(every, argument="--every").total_seconds()
    options = Options(every=max(seconds, 0.1), workers=workers, stale=stale)
    opened = store(context)
    with ExitStack() as served:
        if metrics_port is not None:
            served.enter_context(
                serving_metrics(opened.session, host=metrics_host, port=metrics_port)
            )
        opened.scheduler(options).run()
