"""Account page of the signed-in user: tokens and password."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from featurestore.errors import NotAllowed
from featurestore.registry import access
from featurestore.server.access import changes
from featurestore.server.access.roles import SCOPES
from featurestore.server.access.secrets import is_password
from featurestore.server.access.visitors import Visitor
from featurestore.server.context import FullStore
from featurestore.server.guard import COOKIE, CurrentVisitor, Form
from featurestore.server.pages.rendering import page
from featurestore.store import FeatureStore

router = APIRouter(prefix="/account")


@router.get("")
def account_page(request: Request, store: FullStore, visitor: CurrentVisitor) -> HTMLResponse:
    """Show the user, roles, and tokens without their secrets."""
    return _account_response(request, store, _browser_user(visitor), new_token=None)


@router.post("/tokens")
def make_token(
    request: Request, store: FullStore, visitor: CurrentVisitor, form: Form
) -> HTMLResponse:
    """Create a token and show its secret once."""
    user = _browser_user(visitor)
    new_token, _ = changes.make_token(
        store.session,
        user.actor,
        user.name,
        scope=form.get("scope", "read"),
        label=form.get("label", ""),
        expires=form.get("expires", "90d"),
    )
    response = _account_response(request, store, user, new_token=new_token)
    response.headers["cache-control"] = "no-store"
    return response


@router.post("/tokens/{identifier}/revoke")
def revoke_token(store: FullStore, visitor: CurrentVisitor, identifier: str) -> Response:
    """Revoke a token."""
    user = _browser_user(visitor)
    changes.revoke_token(store.session, user.actor, identifier, owner=user.name)
    return RedirectResponse("/account", status_code=303)


@router.post("/password")
def set_password(store: FullStore, visitor: CurrentVisitor, form: Form) -> Response:
    """Change the password after checking the current one, and sign out all browsers."""
    person = _browser_user(visitor)
    with store.session.registry.reading() as connection:
        user = changes.get_user(connection, person.name)
    if not is_password(user.password, form.get("before", "")):
        raise NotAllowed("The current password is wrong.")
    changes.set_password(store.session, person.actor, person.name, form.get("password", ""))
    response = RedirectResponse("/sign-in", status_code=303)
    response.delete_cookie(COOKIE)
    return response


def _account_response(
    request: Request, store: FeatureStore, person: Visitor, *, new_token: str | None
) -> HTMLResponse:
    with store.session.registry.reading() as connection:
        tokens = access.every_token(connection, person.name)
        user = changes.get_user(connection, person.name)
    return page(
        request,
        "account.html",
        title=person.name,
        person=person,
        user=user,
        tokens=tokens,
        scopes=list(SCOPES),
        new_token=new_token,
    )


def _browser_user(visitor: Visitor | None) -> Visitor:
    """Return the visitor of a browser session; tokens are not allowed to manage tokens.

    Raises:
        NotAllowed: The server has no sign-in, or the request uses a token.
    """
    if visitor is None:
        raise NotAllowed("This server has no sign-in.", hint="featurestore serve --auth")
    if visitor.cookie is None:
        raise NotAllowed("This is not allowed with a token.", hint="sign in with a browser")
    return visitor
