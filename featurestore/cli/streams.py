"""``featurestore stream``: records of topics."""

from __future__ import annotations

from typing import Annotated

import typer

from featurestore.cli.output import show_text
from featurestore.cli.state import store

app = typer.Typer(help="Records of topics.", no_args_is_help=True)


@app.callback()
def streams() -> None:
    """Work with records of topics."""


@app.command(epilog="Example: featurestore stream replay clicks")
def replay(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the stream job.", show_default=False)],
) -> None:
    """Read the records of a job's quarantine again, and write those that are readable now."""
    replayed = store(context).replay_stream(name)
    reasons = sorted(replayed.reasons.items(), key=lambda each: -each[1])
    lines = [
        f"{replayed.rows} records written, {replayed.left} stay in the quarantine",
        *[f"  {count}: {reason}" for reason, count in reasons],
    ]
    data = {
        "name": name,
        "rows": replayed.rows,
        "left": replayed.left,
        "reasons": dict(replayed.reasons),
    }
    show_text(context, "\n".join(lines), data=data)
