"""The page of whoever is signed in: tokens and password."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from featurestore.errors import NotAllowed
from featurestore.registry import access
from featurestore.server.access import changes
from featurestore.server.access.roles import SCOPES
from featurestore.server.access.secrets import is_password
from featurestore.server.access.visitors import Visitor
from featurestore.server.context import Whole
from featurestore.server.guard import COOKIE, Asking, Form
from featurestore.server.pages.rendering import page
from featurestore.store import FeatureStore

router = APIRouter(prefix="/account")


@router.get("")
def account_page(request: Request, store: Whole, visitor: Asking) -> HTMLResponse:
    """Show who is signed in, roles, and tokens without what they are."""
    return _account(request, store, _signed_in(visitor), made=None)


@router.post("/tokens")
def make_token(request: Request, store: Whole, visitor: Asking, form: Form) -> HTMLResponse:
    """Make a token and show it, this once."""
    person = _signed_in(visitor)
    made, _ = changes.make_token(
        store.session,
        person.actor,
        person.name,
        scope=form.get("scope", "read"),
        label=form.get("label", ""),
        expires=form.get("expires", "90d"),
    )
    answer = _account(request, store, person, made=made)
    answer.headers["cache-control"] = "no-store"
    return answer


@router.post("/tokens/{identifier}/revoke")
def revoke_token(store: Whole, visitor: Asking, identifier: str) -> Response:
    """Make a token worthless."""
    person = _signed_in(visitor)
    changes.revoke_token(store.session, person.actor, identifier, of=person.name)
    return RedirectResponse("/account", status_code=303)


@router.post("/password")
def set_password(store: Whole, visitor: Asking, form: Form) -> Response:
    """Change the password of who knows the one before; every browser is signed out."""
    person = _signed_in(visitor)
    with store.session.registry.reading() as connection:
        user = changes.get_user(connection, person.name)
    if not is_password(user.password, form.get("before", "")):
        raise NotAllowed("The password that was given is not that of this user.")
    changes.set_password(store.session, person.actor, person.name, form.get("password", ""))
    answer = RedirectResponse("/sign-in", status_code=303)
    answer.delete_cookie(COOKIE)
    return answer


def _account(
    request: Request, store: FeatureStore, person: Visitor, *, made: str | None
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
        made=made,
    )


def _signed_in(visitor: Visitor | None) -> Visitor:
    """Return who is signed in; a token makes no tokens.

    Raises:
        NotAllowed: Nobody is, or a program shows a token.
    """
    if visitor is None:
        raise NotAllowed("Nobody signs in to this server.", hint="featurestore serve --auth")
    if visitor.cookie is None:
        raise NotAllowed("A token is not enough for this.", hint="sign in with a browser")
    return visitor
