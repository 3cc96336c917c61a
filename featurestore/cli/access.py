"""``featurestore access``: private groups, roles on groups, and the audit log."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from featurestore.cli.output import Limit, PageNumber, get_page, show_rows, show_text
from featurestore.cli.state import store
from featurestore.cli.users import command_line

app = typer.Typer(help="Private groups, roles and the audit log.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(help="A feature group.", show_default=False)]
User = Annotated[str, typer.Argument(help="A user.", show_default=False)]


@app.command("private", epilog="Example: featurestore access private salaries")
def make_private(context: typer.Context, group: Group) -> None:
    """Restrict reading of a group, all its versions, to users with a role on it."""
    from featurestore.server.access import changes

    changes.set_private(store(context).session, command_line(), group, True)
    show_text(context, f"{group} is private", data={"featuregroup": group, "private": True})


@app.command("public", epilog="Example: featurestore access public salaries")
def make_public(context: typer.Context, group: Group) -> None:
    """Allow every reader of the store to read a group."""
    from featurestore.server.access import changes

    changes.set_private(store(context).session, command_line(), group, False)
    show_text(context, f"{group} is public", data={"featuregroup": group, "private": False})


@app.command(epilog="Example: featurestore access grant salaries ann reader")
def grant(
    context: typer.Context,
    group: Group,
    user: User,
    role: Annotated[
        str, typer.Argument(help="reader, writer or admin (the owner).", show_default=False)
    ],
) -> None:
    """Give a user a role on a group."""
    from featurestore.server.access import changes

    changes.set_group_role(store(context).session, command_line(), group, user, role)
    data = {"featuregroup": group, "user": user, "role": role}
    show_text(context, f"{user} is {role} of {group}", data=data)


@app.command(epilog="Example: featurestore access withdraw salaries ann")
def withdraw(context: typer.Context, group: Group, user: User) -> None:
    """Remove the role of a user on a group."""
    from featurestore.server.access import changes

    changes.set_group_role(store(context).session, command_line(), group, user, None)
    data = {"featuregroup": group, "user": user, "role": None}
    show_text(context, f"{user} has no role on {group}", data=data)


@app.command("list", epilog="Example: featurestore access list")
def list_groups(context: typer.Context) -> None:
    """List private groups with the roles on them."""
    from featurestore.registry import access

    with store(context).session.registry.reading() as connection:
        rows = [
            {"featuregroup": group, "roles": access.roles_on(connection, group)}
            for group in access.private_groups_of_store(connection)
        ]
    show_rows(context, rows, columns=["featuregroup", "roles"], empty="no private groups")


@app.command("log", epilog="Example: featurestore access log --user ann")
def show_log(
    context: typer.Context,
    user: Annotated[str, typer.Option(help="Only changes of one user.")] = "",
    limit: Limit = None,
    page: PageNumber = 1,
) -> None:
    """Show who changed what, newest first."""
    from featurestore.registry import audit_log

    connected = store(context)

    def get(most: int | None, skip: int) -> list[Any]:
        with connected.session.registry.reading() as connection:
            return audit_log.entries(connection, who=user, limit=most, offset=skip)

    shown = get_page(context, get, limit=limit, page=page)
    rows = [vars(entry) for entry in shown.items]
    columns = ["at", "who", "action", "subject"]
    wide = ["how", "detail"]
    show_rows(context, rows, columns=columns, wide=wide, empty="nothing yet", next_page=shown.next)
