"""Signing in and out; the only pages that nobody needs to be signed in for."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from featurestore.errors import NotAllowed, NotSignedIn
from featurestore.server.access import sign_in as access
from featurestore.server.access.provider import Attempt, ProviderClient
from featurestore.server.access.secrets import form_token, new_secret
from featurestore.server.guard import COOKIE, Asking, Form, check_form, check_token
from featurestore.server.pages.rendering import page
from featurestore.server.problems import status_of
from featurestore.store import FeatureStore

router = APIRouter()
# Of a browser in which nobody is signed in yet, for the form that does it.
BEFORE = "featurestore_form"
ATTEMPT = "featurestore_provider"


@router.get("/healthz")
def health(request: Request) -> PlainTextResponse:
    """Answer where the registry can be read."""
    store: FeatureStore = request.app.state.store
    with store.session.registry.reading() as connection:
        connection.exec_driver_sql("SELECT 1")
    return PlainTextResponse("ok\n")


@router.get("/sign-in")
def sign_in_page(request: Request, next: str = "/") -> Response:
    """Show the form that asks for name and password."""
    if not request.app.state.settings.auth:
        return RedirectResponse("/", status_code=303)
    return _form(request, next, None)


async def check_sign_in(request: Request) -> None:
    """Refuse a form that this browser was not given: it would sign somebody in as another one."""
    await check_token(request, request.cookies.get(BEFORE, ""))


@router.post("/sign-in", dependencies=[Depends(check_sign_in)])
def sign_in(request: Request, form: Form) -> Response:
    """Sign a browser in and lead back to the page that was asked for."""
    following = form.get("next", "/")
    store: FeatureStore = request.app.state.store
    address = "" if request.client is None else request.client.host
    try:
        cookie = access.sign_in(
            store.session, form.get("name", ""), form.get("password", ""), address=address
        )
    except NotSignedIn as error:
        return _form(request, following, error)
    return let_in(request, cookie, following)


@router.post("/sign-out", dependencies=[Depends(check_form)])
def sign_out(request: Request, visitor: Asking) -> Response:
    """Sign the browser out."""
    store: FeatureStore = request.app.state.store
    if visitor is not None and visitor.cookie is not None:
        access.sign_out(store.session, visitor.cookie)
    answer = RedirectResponse("/sign-in", status_code=303)
    answer.delete_cookie(COOKIE)
    return answer


@router.get("/sign-in/provider")
def leave_for_provider(request: Request, next: str = "/") -> Response:
    """Lead to the page of the provider that asks who it is."""
    client = _provider_of(request)
    address, attempt = client.begin(_back(request), own_address(next))
    answer = RedirectResponse(address, status_code=303)
    _set(request, answer, ATTEMPT, quote(attempt.to_text()))
    return answer


@router.get("/sign-in/back")
def come_from_provider(request: Request) -> Response:
    """Sign in whom the provider names, and lead to the page that was asked for."""
    client = _provider_of(request)
    store: FeatureStore = request.app.state.store
    try:
        attempt = Attempt.from_text(unquote(request.cookies.get(ATTEMPT, "")))
        name = client.finish(_back(request), attempt, str(request.url))
    except NotSignedIn as error:
        return _form(request, "/", error)
    cookie = access.open_browser(store.session, name, "provider")
    answer = let_in(request, cookie, attempt.following)
    answer.delete_cookie(ATTEMPT)
    return answer


def _provider_of(request: Request) -> ProviderClient:
    found: ProviderClient | None = request.app.state.provider
    if found is None:
        raise NotAllowed("This server knows no provider.", hint="featurestore serve --oidc-issuer")
    return found


def _back(request: Request) -> str:
    return str(request.url_for("come_from_provider"))


def let_in(request: Request, cookie: str, following: str) -> Response:
    """Return the answer that signs a browser in."""
    answer = RedirectResponse(own_address(following), status_code=303)
    _set(request, answer, COOKIE, cookie)
    answer.delete_cookie(BEFORE)
    return answer


def own_address(text: str) -> str:
    r"""Return an address if it is one of this server, else that of the first page.

    >>> own_address("/groups?q=a"), own_address("//evil.example"), own_address("/\\evil.example")
    ('/groups?q=a', '/', '/')
    """
    parts = urlsplit(text)
    is_path = text.startswith("/") and not text.startswith("//")
    odd = "\\" in text or any(ord(letter) < 32 for letter in text)
    if not is_path or odd or parts.scheme or parts.netloc:
        return "/"
    return text


def _form(request: Request, following: str, error: NotSignedIn | None) -> HTMLResponse:
    before = request.cookies.get(BEFORE, "") or new_secret()
    answer = page(
        request,
        "sign_in.html",
        title="Sign in",
        following=own_address(following),
        sign_in_token=form_token(before),
        refused=error,
        provider=request.app.state.settings.provider,
    )
    answer.status_code = 200 if error is None else status_of(error)
    answer.headers["cache-control"] = "no-store"
    _set(request, answer, BEFORE, before)
    return answer


def _set(request: Request, answer: Response, name: str, value: str) -> None:
    """Set a cookie that no script reads and no other site sends with a form."""
    secure = request.url.scheme == "https"
    answer.set_cookie(name, value, httponly=True, samesite="lax", secure=secure, path="/")
