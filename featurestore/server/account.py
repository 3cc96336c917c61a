"""Pages for sign-in, for the user account (tokens, password) and for the audit log."""

from __future__ import annotations

import json
from urllib.parse import quote, unquote, urlsplit

import anyio
from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from featurestore.errors import NotAllowed, NotSignedIn, TooManyAttempts
from featurestore.registry import access, audit_log
from featurestore.registry.audit_log import AuditEntry
from featurestore.server.access import changes
from featurestore.server.access import sign_in as browser_sessions
from featurestore.server.access.provider import Attempt, ProviderClient
from featurestore.server.access.sign_in import PasswordThreads
from featurestore.server.access.visitors import (
    ADMIN,
    SCOPES,
    Visitor,
    compute_form_token,
    new_secret,
)
from featurestore.server.guard import (
    COOKIE,
    CurrentVisitor,
    Form,
    FullStore,
    Settings,
    browser_user,
    check_form,
    check_token,
    require_role,
)
from featurestore.server.rendering import PageNumber, csv_file, load_page, page
from featurestore.server.rest import http_status_of, retry_header
from featurestore.server.routes import PublicRoute, Router, UnqueuedRoute, address_of
from featurestore.store import FeatureStore

sign_in_pages = Router(route_class=PublicRoute)
# Their work has its own threads: the server stays observable, and passwords do not delay pages.
unqueued_pages = Router(route_class=UnqueuedRoute)
# The cookie that protects the sign-in form against CSRF before there is a session.
FORM_COOKIE = "featurestore_form"
PROVIDER_COOKIE = "featurestore_provider"
TOKEN_LIFETIMES = ("1d", "30d", "90d", "365d")
audit_pages = Router(prefix="/audit", dependencies=[Depends(require_role(ADMIN))])
_COLUMNS = ["at", "who", "how", "action", "subject", "detail"]
pages = Router(prefix="/account")


@unqueued_pages.get("/healthz")
async def health(request: Request) -> PlainTextResponse:
    """Return 200 if the registry is readable."""
    store: FeatureStore = request.app.state.store

    def read() -> None:
        with store.session.registry.reading() as connection:
            connection.exec_driver_sql("SELECT 1")

    await anyio.to_thread.run_sync(read, limiter=request.app.state.health_thread)
    return PlainTextResponse("ok\n")


@sign_in_pages.get("/sign-in")
def sign_in_page(request: Request, next: str = "/") -> Response:
    """Display the sign-in form."""
    if not request.app.state.settings.auth:
        return RedirectResponse("/", status_code=303)
    return _sign_in_form(request, next, None)


async def check_sign_in(request: Request) -> None:
    """Check the CSRF token of the sign-in form, which prevents login CSRF."""
    await check_token(request, request.cookies.get(FORM_COOKIE, ""))


@unqueued_pages.post("/sign-in", dependencies=[Depends(check_sign_in)])
async def sign_in(request: Request, form: Form) -> Response:
    """Sign in and redirect to the requested page."""
    next_address = form.get("next", "/")
    store: FeatureStore = request.app.state.store
    passwords: PasswordThreads = request.app.state.passwords
    name, password, address = form.get("name", ""), form.get("password", ""), address_of(request)
    try:
        cookie = await passwords.run(
            address,
            lambda: browser_sessions.sign_in(store.session, name, password, address=address),
        )
    except NotSignedIn as error:
        return _sign_in_form(request, next_address, error)
    return signed_in_response(request, cookie, next_address)


@sign_in_pages.post("/sign-out", dependencies=[Depends(check_form)])
def sign_out(request: Request, visitor: CurrentVisitor) -> Response:
    """Sign out."""
    store: FeatureStore = request.app.state.store
    if visitor is not None and visitor.cookie is not None:
        browser_sessions.sign_out(store.session, visitor.cookie)
    response = RedirectResponse("/sign-in", status_code=303)
    response.delete_cookie(COOKIE)
    return response


@sign_in_pages.get("/sign-in/provider")
def redirect_to_provider(request: Request, next: str = "/") -> Response:
    """Redirect to the sign-in page of the provider."""
    client = _provider_of(request)
    address, attempt = client.begin(_redirect_uri(request), local_address(next))
    response = RedirectResponse(address, status_code=303)
    _set_cookie(request, response, PROVIDER_COOKIE, quote(attempt.to_text()))
    return response


@sign_in_pages.get("/sign-in/back")
def finish_provider_sign_in(request: Request) -> Response:
    """Sign in the user in the provider response and redirect to the requested page."""
    client = _provider_of(request)
    store: FeatureStore = request.app.state.store
    try:
        attempt = Attempt.from_text(unquote(request.cookies.get(PROVIDER_COOKIE, "")))
        name = client.finish(_redirect_uri(request), attempt, str(request.url))
    except NotSignedIn as error:
        return _sign_in_form(request, "/", error)
    cookie = browser_sessions.start_browser_session(store.session, name, "provider")
    response = signed_in_response(request, cookie, attempt.following)
    response.delete_cookie(PROVIDER_COOKIE)
    return response


def _provider_of(request: Request) -> ProviderClient:
    client: ProviderClient | None = request.app.state.provider
    if client is None:
        raise NotAllowed(
            "This server has no sign-in provider.", hint="featurestore serve --oidc-issuer"
        )
    return client


def _redirect_uri(request: Request) -> str:
    return str(request.url_for("finish_provider_sign_in"))


def signed_in_response(request: Request, cookie: str, next_address: str) -> Response:
    """Return the redirect that sets the session cookie."""
    response = RedirectResponse(local_address(next_address), status_code=303)
    _set_cookie(request, response, COOKIE, cookie)
    response.delete_cookie(FORM_COOKIE)
    return response


def local_address(text: str) -> str:
    r"""Return a URL if it is a path on this server, otherwise the home page (no open redirects).

    >>> local_address("/groups?q=a"), local_address("//evil.example"), local_address("/\\evil.example")
    ('/groups?q=a', '/', '/')
    """
    url = urlsplit(text)
    # Browsers treat a backslash as a slash and remove tabs and line breaks, so "/\evil" and
    # "/<tab>/evil" would lead to another host.
    is_path = text.startswith("/") and not text.startswith("//")
    is_unsafe = "\\" in text or any(ord(letter) < 32 for letter in text)
    if not is_path or is_unsafe or url.scheme or url.netloc:
        return "/"
    return text


def _sign_in_form(request: Request, next_address: str, error: NotSignedIn | None) -> HTMLResponse:
    """Render the sign-in form, with the error of the previous attempt."""
    # An existing cookie is kept, so that sign-in forms in other tabs stay valid.
    form_cookie = request.cookies.get(FORM_COOKIE, "") or new_secret()
    response = page(
        request,
        "sign_in.html",
        title="Sign in",
        following=local_address(next_address),
        sign_in_token=compute_form_token(form_cookie),
        refusal=error,
        provider=request.app.state.settings.provider,
    )
    if error is not None:
        response.status_code = http_status_of(error)
        response.headers.update(retry_header(error))
    response.headers["cache-control"] = "no-store"
    _set_cookie(request, response, FORM_COOKIE, form_cookie)
    return response


def _set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Set a cookie that is invisible to scripts and not sent with cross-site forms."""
    # Browsers reject secure cookies over plain HTTP. The policy is lax, not strict, because the
    # provider's redirect is a cross-site navigation that needs the cookie of the attempt.
    secure = request.url.scheme == "https"
    response.set_cookie(name, value, httponly=True, samesite="lax", secure=secure, path="/")


@audit_pages.get("")
def audit_page(
    request: Request,
    store: FullStore,
    settings: Settings,
    who: str = "",
    q: str = "",
    number: PageNumber = 1,
    format: str = "html",
) -> Response:
    """Display the audit log entries, newest first."""

    def read(*, limit: int, offset: int) -> list[AuditEntry]:
        with store.session.registry.reading() as connection:
            return audit_log.entries(
                connection, who=who.strip(), text=q.strip(), limit=limit, offset=offset
            )

    current_page = load_page(read, number=number, size=settings.page)
    if format == "csv":
        rows = [
            [
                entry.at,
                entry.who,
                entry.how,
                entry.action,
                entry.subject,
                json.dumps(entry.detail, ensure_ascii=False),
            ]
            for entry in current_page.items
        ]
        return csv_file("audit", _COLUMNS, rows)
    return page(
        request,
        "audit.html",
        title="Audit log",
        tab="audit",
        current_page=current_page,
        who=who,
        q=q,
    )


@pages.get("")
def account_page(request: Request, store: FullStore, visitor: CurrentVisitor) -> HTMLResponse:
    """Display the user, roles, and tokens without their secrets."""
    return _account_response(request, store, browser_user(visitor), new_token=None)


@pages.post("/tokens")
def make_token(
    request: Request, store: FullStore, visitor: CurrentVisitor, form: Form
) -> HTMLResponse:
    """Create a token and display its secret once."""
    user = browser_user(visitor)
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


@pages.post("/tokens/{identifier}/revoke")
def revoke_token(store: FullStore, visitor: CurrentVisitor, identifier: str) -> Response:
    """Revoke a token."""
    user = browser_user(visitor)
    changes.revoke_token(store.session, user.actor, identifier, owner=user.name)
    return RedirectResponse("/account", status_code=303)


@pages.post("/password")
async def set_password(
    request: Request, store: FullStore, visitor: CurrentVisitor, form: Form
) -> Response:
    """Change the password after checking the current one, and end all browser sessions."""
    person = browser_user(visitor)
    passwords: PasswordThreads = request.app.state.passwords
    address = address_of(request)

    def check_and_set() -> None:
        try:
            # Guesses count like those of the sign-in: a stolen session must not reveal a password.
            browser_sessions.check_password(
                store.session, person.name, form.get("before", ""), address=address
            )
        except TooManyAttempts:
            raise
        except NotSignedIn:
            raise NotAllowed("The current password is wrong.") from None
        changes.set_password(store.session, person.actor, person.name, form.get("password", ""))

    await passwords.run(address, check_and_set)
    response = RedirectResponse("/sign-in", status_code=303)
    response.delete_cookie(COOKIE)
    return response


def _account_response(
    request: Request, store: FeatureStore, person: Visitor, *, new_token: str | None
) -> HTMLResponse:
    """Render the account page, with the secret of a new token."""
    with store.session.registry.reading() as connection:
        tokens = access.list_tokens(connection, person.name)
        user = changes.get_user(connection, person.name)
    return page(
        request,
        "account.html",
        title=person.name,
        person=person,
        user=user,
        tokens=tokens,
        scopes=list(SCOPES),
        lifetimes=TOKEN_LIFETIMES,
        new_token=new_token,
    )
