"""``featurestore stream``: records of topics."""

from __future__ import annotations

from typing import Annotated

import typer

from featurestore.cli.output import show_text
from featurestore.cli.state import store

app = typer.Typer(help="Records of topics.", no_args_is_help=True)


@app.callback()
def streams() -> None:
    """Keep the command a word of its own."""


@app.command(epilog="Example: featurestore stream replay clicks")
def replay(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the stream job.", show_default=False)],
) -> None:
    """Read the records of a job's quarantine again; those that can be read now land."""
    found = store(context).replay_stream(name)
    lines = [f"{found.rows} records landed, {found.left} stay in the quarantine"]
    for reason, count in sorted(found.reasons.items(), key=lambda each: -each[1]):
        lines.append(f"  {count}: {reason}")
    data = {"name": name, "rows": found.rows, "left": found.left, "reasons": dict(found.reasons)}
    show_text(context, "\n".join(lines), data=data)
