"""What stands before every page and call: who asks, what that needs, and forms of our own pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from fastapi import Depends, Request

from featurestore.errors import InvalidArgument, NotAllowed, NotSignedIn
from featurestore.plugins.remote import RETRIEVAL
from featurestore.registry import audit_log
from featurestore.registry.audit_log import Actor
from featurestore.server.access import visitors
from featurestore.server.access.secrets import is_form_token
from featurestore.server.access.visitors import Visitor
from featurestore.server.settings import ServerSettings
from featurestore.store import FeatureStore

COOKIE = "featurestore"
FORM_FIELD = "form_token"
FORM_HEADER = "x-form-token"
_SAFE = ("GET", "HEAD", "OPTIONS")
_BEARER = "bearer "
_LONGEST_FORM = 64 * 1024


def find_visitor(request: Request) -> Visitor | None:
    """Return who asks; None where everybody may do everything, as without ``--auth``.

    Raises:
        NotSignedIn: Nobody is signed in, or a token is not known.
    """
    settings: ServerSettings = request.app.state.settings
    request.state.visitor = None
    if not settings.auth:
        return None
    store: FeatureStore = request.app.state.store
    shown = request.headers.get("authorization", "")
    if shown:
        if not shown.lower().startswith(_BEARER):
            raise NotSignedIn(
                "The server takes tokens: Authorization: Bearer fs_...",
                hint="featurestore user token NAME makes one",
            )
        found = visitors.by_token(store.session, shown[len(_BEARER) :].strip())
    else:
        cookie = request.cookies.get(COOKIE, "")
        signed_in = visitors.by_cookie(store.session, cookie) if cookie else None
        if signed_in is None:
            raise NotSignedIn(
                "Nobody is signed in.",
                hint="sign in, or send a token: Authorization: Bearer fs_...",
            )
        found = signed_in
    request.state.visitor = found
    return found


Asking = Annotated[Visitor | None, Depends(find_visitor)]


_ANYBODY = Actor("anybody", "without sign-in")


def actor_of(visitor: Visitor | None) -> Actor:
    """Return who asks as the audit log names one."""
    return _ANYBODY if visitor is None else visitor.actor


def log_change(
    whole: FeatureStore, visitor: Visitor | None, action: str, subject: str, told: dict[str, Any]
) -> None:
    """Write what somebody changed into the audit log."""
    with whole.session.registry.transaction() as connection:
        audit_log.add(connection, actor_of(visitor), action, subject, told)


def needs(role: str) -> Callable[[Visitor | None], None]:
    """Return what refuses visitors without a role on the store."""

    def check(visitor: Asking) -> None:
        if visitor is not None:
            visitor.check(role)

    return check


async def check_form(request: Request, visitor: Asking) -> None:
    """Refuse what a cookie alone asks to change: only a page of ours knows the form's token.

    Raises:
        NotAllowed: The token is missing or wrong.
    """
    if visitor is None or visitor.cookie is None or request.method in _SAFE:
        return
    await check_token(request, visitor.cookie)


async def check_token(request: Request, cookie: str) -> None:
    """Refuse a form without the token of a cookie.

    Raises:
        NotAllowed: The token is missing or wrong.
    """
    given = request.headers.get(FORM_HEADER, "")
    if not given and request.headers.get("content-type") != RETRIEVAL:  # which may be of any length
        given = (await form_of(request)).get(FORM_FIELD, "")
    if not is_form_token(cookie, given):
        raise NotAllowed("This form is of no page of this browser.", hint="open the page again")


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form, the last one of each name.

    Raises:
        InvalidArgument: It is longer than a form of these pages, or no text.
    """
    body = await request.body()
    if len(body) > _LONGEST_FORM:
        raise InvalidArgument(f"A form has at most {_LONGEST_FORM} bytes.")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100))
    except (UnicodeDecodeError, ValueError):
        raise InvalidArgument("This is no form.") from None


Form = Annotated[dict[str, str], Depends(form_of)]


def sign_in_address(request: Request) -> str:
    """Return the address of the page that signs in and leads back."""
    path = request.url.path
    if request.url.query:
        path = f"{path}?{request.url.query}"
    return f"/sign-in?next={quote(path, safe='')}"
