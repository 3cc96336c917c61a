"""``featurestore user``, ``token`` and ``access``: users of a server, tokens, roles on groups."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from featurestore.cli import output
from featurestore.cli.output import Limit, PageNumber
from featurestore.cli.state import store
from featurestore.registry.audit_log import Actor, AuditEntry

app = typer.Typer(no_args_is_help=True)
token_app = typer.Typer(no_args_is_help=True)
access_app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, output.argument(help="Name of the user.")]
RoleArgument = Annotated[str, output.argument(help="Role: none, reader, writer or admin.")]
# A password option would be visible to other users in the list of processes.
FromInput = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input.")
]
Group = Annotated[str, output.argument(help="Name of the feature group.")]
User = Annotated[str, output.argument(help="Name of the user.")]


def command_line() -> Actor:
    """Return the account that runs the command, as the actor of changes."""
    from featurestore.registry.audit_log import process_actor
    from featurestore.server.access.changes import COMMAND_LINE

    return process_actor(COMMAND_LINE)


@app.command(epilog="Example: featurestore user add ann --role admin")
def add(
    context: typer.Context,
    name: Name,
    role: Annotated[str, typer.Option(help="Role: none, reader, writer or admin.")] = "reader",
    password_stdin: FromInput = False,
    no_password: Annotated[
        bool,
        typer.Option("--no-password", help="Set no password: the user has a token or a provider."),
    ] = False,
    issuer: Annotated[
        str | None, output.option(help="Issuer URL of the identity provider.")
    ] = None,
    subject: Annotated[
        str | None, output.option(help="Subject of the user at the provider.")
    ] = None,
) -> None:
    """Add a user and prompt for a password."""
    from featurestore.server.access import changes

    if (issuer is None) != (subject is None):
        raise typer.BadParameter("--issuer and --subject must be used together")
    connected = store(context)
    password = None
    # A user of an identity provider signs in there.
    if not no_password and issuer is None:
        password = _password(password_stdin)
    changes.add_user(
        connected.session,
        command_line(),
        name,
        role=role,
        password=password,
        issuer=issuer,
        subject=subject,
    )
    output.show_text(context, f"added user {name}: {role}", data={"name": name, "role": role})


@app.command("list", epilog="Example: featurestore user list")
def list_users(context: typer.Context) -> None:
    """List users with their roles on the store and on groups."""
    from featurestore.registry import access

    with store(context).session.registry.reading() as connection:
        rows = []
        for user in access.list_users(connection):
            row = {"name": user.name, "role": user.role, "created": user.created}
            row["groups"] = access.roles_of(connection, user.name)
            row["password"] = user.password is not None
            rows.append({**row, "issuer": user.issuer, "subject": user.subject})
    columns, wide = ["name", "role", "groups"], ["password", "issuer", "subject", "created"]
    output.show_rows(context, rows, columns=columns, wide=wide, empty="no users yet")


@app.command(epilog="Example: featurestore user remove ann")
def remove(context: typer.Context, name: Name) -> None:
    """Remove a user with their tokens and roles, and end their browser sessions."""
    from featurestore.server.access import changes

    changes.remove_user(store(context).session, command_line(), name)
    output.show_text(context, f"removed user {name}", data={"name": name})


@app.command("role", epilog="Example: featurestore user role ann writer")
def set_role(context: typer.Context, name: Name, role: RoleArgument) -> None:
    """Change the role of a user on the store."""
    from featurestore.server.access import changes

    changes.set_role(store(context).session, command_line(), name, role)
    output.show_text(context, f"user {name}: {role}", data={"name": name, "role": role})


@app.command("password", epilog="Example: featurestore user password ann")
def set_password(context: typer.Context, name: Name, password_stdin: FromInput = False) -> None:
    """Change the password of a user, and end all browser sessions."""
    from featurestore.server.access import changes

    connected = store(context)
    changes.set_password(connected.session, command_line(), name, _password(password_stdin))
    output.show_text(context, f"changed the password of user {name}", data={"name": name})


def _password(from_input: bool) -> str:
    if from_input:
        # Spaces belong to the password; only the line break is removed.
        return sys.stdin.readline().rstrip("\r\n")
    password: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    return password


@token_app.command("add", epilog="Example: featurestore token add ann --scope read --expires 30d")
def make_token(
    context: typer.Context,
    name: Name,
    scope: Annotated[str, typer.Option(help="Maximum role: read, write or admin.")] = "read",
    label: Annotated[str, typer.Option(help="Purpose of the token.")] = "",
    expires: Annotated[str, typer.Option(help="Lifetime, or never.")] = "90d",
) -> None:
    """Create a token for programs and show it once."""
    from featurestore.server.access import changes

    connected = store(context)
    lifetime = None if expires == "never" else expires
    secret, token = changes.make_token(
        connected.session, command_line(), name, scope=scope, label=label, expires=lifetime
    )
    record = {
        "token": secret,
        "id": token.id,
        "user": name,
        "scope": scope,
        "expires": token.expires,
    }
    output.show_record(context, record)


@token_app.command("list", epilog="Example: featurestore token list --user ann")
def list_tokens(
    context: typer.Context,
    user: Annotated[str | None, output.option(help="Only tokens of this user.")] = None,
) -> None:
    """List tokens without their secrets, which are shown only at creation."""
    from featurestore.registry import access

    with store(context).session.registry.reading() as connection:
        rows = [
            {**vars(token), "expired": token.expired}
            for token in access.list_tokens(connection, user)
        ]
    columns = ["id", "user", "label", "scope", "expires"]
    output.show_rows(
        context, rows, columns=columns, wide=["created", "expired"], empty="no tokens yet"
    )


@token_app.command("revoke", epilog="Example: featurestore token revoke 4f2a9c01b7de")
def revoke_token(
    context: typer.Context, identifier: Annotated[str, output.argument(help="Id of the token.")]
) -> None:
    """Revoke a token."""
    from featurestore.server.access import changes

    changes.revoke_token(store(context).session, command_line(), identifier)
    output.show_text(context, f"revoked token {identifier}", data={"id": identifier})


@access_app.command("private", epilog="Example: featurestore access private salaries")
def make_private(context: typer.Context, group: Group) -> None:
    """Restrict reading of a group, all its versions, to users with a role on it."""
    from featurestore.server.access import changes

    changes.set_private(store(context).session, command_line(), group, True)
    output.show_text(context, f"{group} is private", data={"featuregroup": group, "private": True})


@access_app.command("public", epilog="Example: featurestore access public salaries")
def make_public(
    context: typer.Context,
    group: Group,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what the command would open.")
    ] = False,
) -> None:
    """Allow every reader of the store to read a group, and list what this opens."""
    from featurestore.server.access import changes

    session = store(context).session
    if dry_run:
        readable_objects = changes.list_opened_objects(session, group)
    else:
        readable_objects = changes.set_private(session, command_line(), group, False)
    lines = [f"{group} would be public" if dry_run else f"{group} is public"]
    lines += [f"opens {name}" for name in readable_objects]
    data = {"featuregroup": group, "private": dry_run, "opens": readable_objects}
    output.show_text(context, "\n".join(lines), data=data)


@access_app.command(epilog="Example: featurestore access grant salaries ann reader")
def grant(
    context: typer.Context,
    group: Group,
    user: User,
    role: Annotated[str, output.argument(help="Role: reader, writer or admin (the owner).")],
) -> None:
    """Give a user a role on a group."""
    from featurestore.server.access import changes

    changes.set_group_role(store(context).session, command_line(), group, user, role)
    data = {"featuregroup": group, "user": user, "role": role}
    output.show_text(context, f"{user} has the role {role} on {group}", data=data)


@access_app.command(epilog="Example: featurestore access withdraw salaries ann")
def withdraw(context: typer.Context, group: Group, user: User) -> None:
    """Remove the role of a user on a group."""
    from featurestore.server.access import changes

    changes.set_group_role(store(context).session, command_line(), group, user, None)
    data = {"featuregroup": group, "user": user, "role": None}
    output.show_text(context, f"{user} has no role on {group}", data=data)


@access_app.command("list", epilog="Example: featurestore access list")
def list_groups(context: typer.Context) -> None:
    """List private groups with the roles on them."""
    from featurestore.registry import access

    with store(context).session.registry.reading() as connection:
        rows = [
            {"featuregroup": group, "roles": access.roles_on(connection, group)}
            for group in access.private_groups_of_store(connection)
        ]
    output.show_rows(context, rows, columns=["featuregroup", "roles"], empty="no private groups")


@access_app.command("log", epilog="Example: featurestore access log --user ann")
def show_log(
    context: typer.Context,
    user: Annotated[str, typer.Option(help="Only changes by this user.")] = "",
    limit: Limit = None,
    page: PageNumber = 1,
) -> None:
    """Show who changed what, newest first."""
    from featurestore.registry import audit_log

    connected = store(context)

    def get(*, limit: int | None, offset: int) -> list[AuditEntry]:
        with connected.session.registry.reading() as connection:
            return audit_log.entries(connection, who=user, limit=limit, offset=offset)

    output.show_page(
        context,
        get,
        vars,
        limit=limit,
        page=page,
        columns=["at", "who", "action", "subject"],
        wide=["how", "detail"],
        empty="no changes yet",
    )
