"""``featurestore token``: tokens for programs; ``featurestore user token`` creates them, too."""

from __future__ import annotations

from typing import Annotated

import typer

from featurestore.cli.output import show_rows, show_text
from featurestore.cli.state import store
from featurestore.cli.users import command_line, make_token

app = typer.Typer(help="Tokens of programs.", no_args_is_help=True)

app.command("add", epilog="Example: featurestore token add ann --scope read --expires 30d")(
    make_token
)


@app.command("list", epilog="Example: featurestore token list --user ann")
def list_tokens(
    context: typer.Context,
    user: Annotated[str | None, typer.Option(help="Only of one user.", show_default=False)] = None,
) -> None:
    """List tokens without their text, which is shown only once."""
    from featurestore.registry import access

    with store(context).session.registry.reading() as connection:
        rows = [
            {**vars(token), "expired": token.expired}
            for token in access.list_tokens(connection, user)
        ]
    columns = ["id", "user", "label", "scope", "expires"]
    show_rows(context, rows, columns=columns, wide=["created", "expired"], empty="no tokens")


@app.command(epilog="Example: featurestore token revoke 4f2a9c01b7de")
def revoke(
    context: typer.Context,
    identifier: Annotated[str, typer.Argument(help="Id of the token.", show_default=False)],
) -> None:
    """Revoke a token."""
    from featurestore.server.access import changes

    changes.revoke_token(store(context).session, command_line(), identifier)
    show_text(context, f"token {identifier} is revoked", data={"id": identifier})
