"""``featurestore alert``: alert channels and their messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from featurestore.cli.output import show_rows, show_text
from featurestore.cli.state import store

app = typer.Typer(help="Alert channels and their messages.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the channel.")]


@app.command(epilog="Example: featurestore alert add ops log")
def add(
    context: typer.Context,
    name: Name,
    uri: Annotated[str, typer.Argument(help="webhook+https://..., smtp://..., command:/..., log")],
    secret: Annotated[str | None, typer.Option(help="env:NAME or file:path of the secret.")] = None,
) -> None:
    """Add a channel or change it; this machine may use it from now on."""
    channel = store(context).add_alert_channel(name, uri, secret=secret)
    data = {"name": channel.name, "scheme": channel.scheme, "secret": channel.secret}
    show_text(context, f"{name} is added", data=data)


@app.command("list", epilog="Example: featurestore alert list")
def list_channels(context: typer.Context) -> None:
    """List channels; their addresses may contain tokens and are not shown."""
    rows = [
        {"name": each.name, "scheme": each.scheme, "secret": each.secret}
        for each in store(context).get_alert_channels()
    ]
    show_rows(context, rows, columns=["name", "scheme", "secret"], empty="no channels")


@app.command(epilog="Example: featurestore alert remove ops")
def remove(context: typer.Context, name: Name) -> None:
    """Remove a channel; its waiting messages are not sent."""
    store(context).remove_alert_channel(name)
    show_text(context, f"{name} is removed", data={"name": name})


@app.command(epilog="Example: featurestore alert history --output json")
def history(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of messages.")] = 50,
) -> None:
    """List messages, newest first, with the error of those that were not delivered."""
    alerts = store(context).get_alerts(limit=limit)
    show_rows(
        context,
        map(_row, alerts),
        columns=["at", "channel", "title", "state"],
        optional=["error"],
        wide=["attempts"],
        empty="no messages",
    )


@app.command(epilog="Example: featurestore alert send")
def send(context: typer.Context) -> None:
    """Send waiting messages; the scheduler does so automatically."""
    arrived = store(context).send_alerts()
    show_text(context, f"{arrived} delivered", data={"delivered": arrived})


def _row(message: Any) -> Mapping[str, Any]:
    alert = message.alert
    state = "waiting" if message.delivered is None else "delivered"
    return {
        "id": message.id,
        "at": alert.at,
        "channel": message.channel,
        "event": alert.event,
        "title": alert.title,
        "state": state,
        "delivered": message.delivered,
        "attempts": message.attempts,
        "error": message.error,
    }
