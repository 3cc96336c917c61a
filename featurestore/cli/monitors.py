"""``featurestore monitor`` and ``alert``: monitors of feature groups, and alert channels."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from featurestore.cli.output import Limit, PageNumber, show_page, show_rows, show_text
from featurestore.cli.state import store
from featurestore.model.times import parse_moment

if TYPE_CHECKING:
    from featurestore.model.monitor_report import MonitorReport
    from featurestore.registry.alerts import Outgoing

app = typer.Typer(no_args_is_help=True)
alert_app = typer.Typer(no_args_is_help=True)

ChannelName = Annotated[str, typer.Argument(help="Name of the channel.")]
Name = Annotated[str, typer.Argument(help="Name of the monitor.")]


@app.command("list", epilog="Example: featurestore monitor list")
def list_monitors(context: typer.Context, limit: Limit = None, page: PageNumber = 1) -> None:
    """List monitors with their latest state."""
    show_page(
        context,
        store(context).get_monitors,
        lambda monitor: monitor._summary(),
        limit=limit,
        page=page,
        columns=["name", "state", "alarms", "featuregroup", "window_end"],
        wide=["baseline", "schedule"],
        empty="no monitors yet; define one in a Python file: featurestore job register FILE",
    )


@app.command(epilog="Example: featurestore monitor check weather_watch")
def check(
    context: typer.Context,
    name: Name,
    window: Annotated[
        str | None, typer.Option(help="Start of the window; default: the latest window.")
    ] = None,
) -> None:
    """Check a window now; exit code 1 if a measure is out of bounds."""
    report = store(context).check_monitor(name, window=_parse_time(window, "--window"))
    show_text(context, str(report), data=report.to_json() | {"ok": report.ok})
    if not report.ok:
        raise typer.Exit(1)


@app.command(epilog="Example: featurestore monitor report weather_watch weather.html")
def report(
    context: typer.Context,
    name: Name,
    file: Annotated[str, typer.Argument(help="Path of the .html file to write.")],
) -> None:
    """Write the latest report as an HTML page: distributions and timelines, the worst first."""
    path = store(context).visualize_monitor(name).save(file)
    show_text(context, f"written to {path}", data={"name": name, "file": path})


@app.command(epilog="Example: featurestore monitor history weather_watch --limit 10")
def history(context: typer.Context, name: Name, limit: Limit = None, page: PageNumber = 1) -> None:
    """List the reports of a monitor, newest window first."""
    show_page(
        context,
        partial(store(context).get_monitor_history, name),
        _row,
        limit=limit,
        page=page,
        columns=["start", "end", "state", "rows"],
        optional=["alarms"],
        empty=f"{name} has not run yet",
    )


@app.command(
    epilog="Example: featurestore monitor accept weather_watch --note 'new sensor since March'"
)
def accept(
    context: typer.Context,
    name: Name,
    window: Annotated[
        str | None, typer.Option(help="Start of the window; accept only this window.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Accept every window that ends by this time.")
    ] = None,
    note: Annotated[str, typer.Option(help="Reason.")] = "",
) -> None:
    """Accept windows out of bounds, up to the newest one; a lasting change starts a new baseline."""
    from featurestore.jobs.monitors import service
    from featurestore.registry.audit_log import process_actor

    # The service is called directly, because the audit log needs the account that runs the command.
    accepted = service.accept(
        store(context).session,
        name,
        window=_parse_time(window, "--window"),
        until=_parse_time(until, "--until"),
        note=note,
        actor=process_actor("command line"),
    )
    show_text(context, str(accepted), data=accepted.to_json())


def _parse_time(text: str | None, name: str) -> datetime | None:
    return None if text is None else parse_moment(text, argument=name, warn=False)


def _row(report: MonitorReport) -> Mapping[str, object]:
    return {
        "start": report.window.start,
        "end": report.window.end,
        "state": report.state,
        "rows": report.rows,
        "version": report.delta_version,
        "alarms": "; ".join(map(str, report.alarms)),
        "suspects": "; ".join(map(str, report.suspects)),
    }


@alert_app.command("add", epilog="Example: featurestore alert add ops log")
def add_channel(
    context: typer.Context,
    name: ChannelName,
    uri: Annotated[str, typer.Argument(help="webhook+https://..., smtp://..., command:/..., log")],
    secret: Annotated[str | None, typer.Option(help="env:NAME or file:path of the secret.")] = None,
) -> None:
    """Add or replace a channel, and allow this machine to use it."""
    channel = store(context).add_alert_channel(name, uri, secret=secret)
    data = {"name": channel.name, "scheme": channel.scheme, "secret": channel.secret}
    show_text(context, f"added channel {name}", data=data)


@alert_app.command("list", epilog="Example: featurestore alert list")
def list_channels(context: typer.Context) -> None:
    """List channels; their addresses may contain tokens and are not shown."""
    rows = [
        {"name": channel.name, "scheme": channel.scheme, "secret": channel.secret}
        for channel in store(context).get_alert_channels()
    ]
    show_rows(context, rows, columns=["name", "scheme", "secret"], empty="no channels yet")


@alert_app.command("remove", epilog="Example: featurestore alert remove ops")
def remove_channel(context: typer.Context, name: ChannelName) -> None:
    """Remove a channel; its waiting messages are not sent."""
    store(context).remove_alert_channel(name)
    show_text(context, f"removed channel {name}", data={"name": name})


@alert_app.command("history", epilog="Example: featurestore alert history --output json")
def show_messages(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of messages.")] = 50,
) -> None:
    """List messages, newest first, with the error of those that were not delivered."""
    alerts = store(context).get_alerts(limit=limit)
    show_rows(
        context,
        map(_message_row, alerts),
        columns=["at", "channel", "title", "state"],
        optional=["error"],
        wide=["attempts"],
        empty="no messages yet",
    )


@alert_app.command("send", epilog="Example: featurestore alert send")
def send_messages(context: typer.Context) -> None:
    """Send waiting messages; the scheduler does so automatically."""
    delivered_count = store(context).send_alerts()
    show_text(context, f"{delivered_count} delivered", data={"delivered": delivered_count})


def _message_row(message: Outgoing) -> Mapping[str, object]:
    alert = message.alert
    return {
        "id": message.id,
        "at": alert.timestamp,
        "channel": message.channel,
        "event": alert.event,
        "title": alert.title,
        "state": "waiting" if message.delivered is None else "delivered",
        "delivered": message.delivered,
        "attempts": message.attempts,
        "error": message.error,
    }
