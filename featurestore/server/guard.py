"""FastAPI dependencies of the routes: visitor, roles, CSRF tokens, store and settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from fastapi import Depends, Request, Response

from featurestore.errors import InvalidArgument, NotAllowed, NotSignedIn
from featurestore.plugins.remote import NOTICE
from featurestore.registry import audit_log
from featurestore.registry.audit_log import Actor
from featurestore.server.access import visitors
from featurestore.server.access.visitors import Visitor, verify_form_token, visible_to
from featurestore.server.bodies import body_of
from featurestore.server.settings import ServerSettings
from featurestore.server.snippets import Snippets
from featurestore.store import FeatureStore

COOKIE = "featurestore"
FORM_FIELD = "form_token"
FORM_HEADER = "x-form-token"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_BEARER = "bearer "
MAX_FORM_BYTES = 64 * 1024
_ANONYMOUS = Actor("anybody", "without sign-in")


def find_visitor(request: Request) -> Visitor | None:
    """Return the authenticated visitor; None without ``--auth``, where all requests are allowed.

    Raises:
        NotSignedIn: The request has no valid token or cookie.
    """
    if not hasattr(request.state, "visitor"):
        request.state.visitor = _authenticate(request)
    visitor: Visitor | None = request.state.visitor
    return visitor


def _authenticate(request: Request) -> Visitor | None:
    settings: ServerSettings = request.app.state.settings
    if not settings.auth:
        return None
    store: FeatureStore = request.app.state.store
    authorization = request.headers.get("authorization", "")
    if authorization:
        # The name of the scheme is case-insensitive (RFC 9110).
        if not authorization.lower().startswith(_BEARER):
            raise NotSignedIn(
                "Unsupported Authorization header. Expected: Authorization: Bearer fs_...",
                hint="featurestore token add NAME creates a token",
            )
        return visitors.visitor_from_token(store.session, authorization[len(_BEARER) :].strip())
    cookie = request.cookies.get(COOKIE, "")
    visitor = visitors.visitor_from_cookie(store.session, cookie) if cookie else None
    if visitor is None:
        raise NotSignedIn(
            "Not signed in.", hint="sign in, or send a token: Authorization: Bearer fs_..."
        )
    return visitor


CurrentVisitor = Annotated[Visitor | None, Depends(find_visitor)]


def actor_of(visitor: Visitor | None) -> Actor:
    """Return the audit log actor for a visitor."""
    return _ANONYMOUS if visitor is None else visitor.actor


def log_change(
    full_store: FeatureStore,
    visitor: Visitor | None,
    action: str,
    subject: str,
    detail: dict[str, Any],
) -> None:
    """Record a change in the audit log."""
    with full_store.session.registry.transaction() as connection:
        audit_log.add(connection, actor_of(visitor), action, subject, detail)


def require_role(role: str) -> Callable[[Visitor | None], None]:
    """Return a dependency that rejects visitors without a role on the store."""

    def check(visitor: CurrentVisitor) -> None:
        if visitor is not None:
            visitor.check(role)

    return check


def require_any_role(visitor: CurrentVisitor) -> None:
    """Reject visitors who have no role on the store and on no group.

    Raises:
        NotAllowed: The visitor has no role.
    """
    if visitor is not None and not visitor.has_role:
        raise NotAllowed(
            "You have no role yet.", hint="an admin can add one: featurestore user role"
        )


def browser_user(visitor: Visitor | None) -> Visitor:
    """Return the visitor if there is a browser session; tokens must not be used to manage tokens.

    Raises:
        NotAllowed: The server has no sign-in, or the request uses a token.
    """
    if visitor is None:
        raise NotAllowed("This server has no sign-in.", hint="featurestore serve --auth")
    if visitor.cookie is None:
        raise NotAllowed(
            "This page requires a browser session, not a token.", hint="sign in with a browser"
        )
    return visitor


def visitor_of(request: Request) -> Visitor | None:
    """Return the visitor of any request, also of one that reached no route; None if unknown."""
    try:
        return find_visitor(request)
    except NotSignedIn:
        return None


async def check_form(request: Request, visitor: CurrentVisitor) -> None:
    """Check the CSRF token of changes that are authenticated by a cookie.

    Raises:
        NotAllowed: The token is missing or invalid.
    """
    # Browsers attach cookies to requests of other sites, but no Authorization header, so requests
    # with a token need no form token.
    if visitor is None or visitor.cookie is None or request.method in _SAFE_METHODS:
        return
    await check_token(request, visitor.cookie)


async def check_token(request: Request, cookie: str) -> None:
    """Check the CSRF token for a cookie.

    Raises:
        NotAllowed: The token is missing or invalid.
    """
    token = request.headers.get(FORM_HEADER, "")
    # The route decides what its body is, not the content type of the client.
    if not token and body_of(request).body_type == "form":
        token = (await read_form(request)).get(FORM_FIELD, "")
    if not verify_form_token(cookie, token):
        raise NotAllowed("The form token is missing or invalid.", hint="reload the page")


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; the last value of a repeated field is used.

    Raises:
        LimitExceeded: The body is too long.
        InvalidArgument: The body is not a URL-encoded form.
    """
    body = await request.body()
    try:
        # The number of fields is limited, since each one takes more memory than its bytes.
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100))
    except (UnicodeDecodeError, ValueError):
        raise InvalidArgument("The body is not a URL-encoded form.") from None


Form = Annotated[dict[str, str], Depends(read_form)]


def sign_in_address(request: Request) -> str:
    """Return the URL of the sign-in page, which then redirects back to this request."""
    path = request.url.path
    if request.url.query:
        path = f"{path}?{request.url.query}"
    return f"/sign-in?next={quote(path, safe='')}"


def visible_store(request: Request, response: Response, visitor: CurrentVisitor) -> FeatureStore:
    """Return the store filtered by the visitor's permissions.

    A header of the response names the objects that the registry lacks.
    """
    store: FeatureStore = request.app.state.store
    loss = request.app.state.losses.notice(visitor)
    if loss is not None:
        # Headers contain ASCII characters only; names do, but a location may not.
        response.headers[NOTICE] = quote(loss.text, safe=" '@,.():/=-")
    if visitor is not None and not visitor.sees_all:
        store = visible_to(visitor, store, request.app.state.views)
    has_sign_in = request.app.state.settings.auth
    address = str(request.base_url).rstrip("/") if has_sign_in else None
    # The code on a page may name only objects that the visitor sees.
    request.state.snippets = Snippets(store, address)
    return store


def server_settings(request: Request) -> ServerSettings:
    """Return the server settings."""
    settings: ServerSettings = request.app.state.settings
    return settings


def unfiltered_store(request: Request) -> FeatureStore:
    """Return the unfiltered store, for routes that check roles themselves."""
    store: FeatureStore = request.app.state.store
    return store


Store = Annotated[FeatureStore, Depends(visible_store)]
FullStore = Annotated[FeatureStore, Depends(unfiltered_store)]
Settings = Annotated[ServerSettings, Depends(server_settings)]


def parse_as_of(text: str) -> int | str | None:
    """Parse a form field with a Delta version or a time; return None if it is empty.

    >>> parse_as_of("7"), parse_as_of("2013-01-01T06:00Z"), parse_as_of(" ")
    (7, '2013-01-01T06:00Z', None)
    """
    text = text.strip()
    if not text:
        return None
    # int() is slow for very long strings; any number with 40 digits exceeds all Delta versions.
    return int(text[:40]) if text.isdecimal() else text
