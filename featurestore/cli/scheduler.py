"""``featurestore scheduler``: a process that runs due jobs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from featurestore.cli.logs import LogFormat, log_to_stderr
from featurestore.cli.state import settings, store

app = typer.Typer(help="Run due jobs.", no_args_is_help=True)


@app.callback()
def _noun() -> None:
    """Run due jobs."""


@app.command(epilog="Example: featurestore scheduler start --every 30s")
def start(
    context: typer.Context,
    every: Annotated[str, typer.Option(help="Time between two polls.")] = "10s",
    workers: Annotated[int, typer.Option(min=1, help="Maximum number of jobs at once.")] = 4,
    stale: Annotated[
        bool, typer.Option("--stale", help="Also compute windows again whose inputs changed.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve /metrics for Prometheus at this port."),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address of the metrics server.")] = "127.0.0.1",
) -> None:
    """Run due jobs until SIGTERM; runs in progress are finished first."""
    from featurestore.jobs.metrics import serving_metrics
    from featurestore.jobs.scheduler import Options
    from featurestore.model.times import parse_duration

    if settings(context).log_format is None:
        log_to_stderr(LogFormat.TEXT)
    seconds = parse_duration(every, argument="--every").total_seconds()
    options = Options(every=max(seconds, 0.1), workers=workers, stale=stale)
    connected = store(context)
    with ExitStack() as stack:
        if metrics_port is not None:
            stack.enter_context(
                serving_metrics(connected.session, host=metrics_host, port=metrics_port)
            )
        connected.scheduler(options).run()
