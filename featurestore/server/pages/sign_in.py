"""Pages for sign-in and sign-out, which need no authentication."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from featurestore.errors import NotAllowed, NotSignedIn
from featurestore.server.access import sign_in as access
from featurestore.server.access.provider import Attempt, ProviderClient
from featurestore.server.access.secrets import form_token, new_secret
from featurestore.server.guard import COOKIE, CurrentVisitor, Form, check_form, check_token
from featurestore.server.pages.rendering import page
from featurestore.server.problems import status_of
from featurestore.store import FeatureStore

router = APIRouter()
# Cookie whose form token protects the sign-in form, before there is a session.
FORM_COOKIE = "featurestore_form"
PROVIDER_COOKIE = "featurestore_provider"


@router.get("/healthz")
def health(request: Request) -> PlainTextResponse:
    """Return 200 if the registry is readable."""
    store: FeatureStore = request.app.state.store
    with store.session.registry.reading() as connection:
        connection.exec_driver_sql("SELECT 1")
    return PlainTextResponse("ok\n")


@router.get("/sign-in")
def sign_in_page(request: Request, next: str = "/") -> Response:
    """Show the sign-in form."""
    if not request.app.state.settings.auth:
        return RedirectResponse("/", status_code=303)
    return _sign_in_form(request, next, None)


async def check_sign_in(request: Request) -> None:
    """Require the form token of this browser, which prevents login CSRF."""
    await check_token(request, request.cookies.get(FORM_COOKIE, ""))


@router.post("/sign-in", dependencies=[Depends(check_sign_in)])
def sign_in(request: Request, form: Form) -> Response:
    """Sign in and redirect to the requested page."""
    following = form.get("next", "/")
    store: FeatureStore = request.app.state.store
    address = "" if request.client is None else request.client.host
    try:
        cookie = access.sign_in(
            store.session, form.get("name", ""), form.get("password", ""), address=address
        )
    except NotSignedIn as error:
        return _sign_in_form(request, following, error)
    return signed_in_response(request, cookie, following)


@router.post("/sign-out", dependencies=[Depends(check_form)])
def sign_out(request: Request, visitor: CurrentVisitor) -> Response:
    """Sign out."""
    store: FeatureStore = request.app.state.store
    if visitor is not None and visitor.cookie is not None:
        access.sign_out(store.session, visitor.cookie)
    response = RedirectResponse("/sign-in", status_code=303)
    response.delete_cookie(COOKIE)
    return response


@router.get("/sign-in/provider")
def leave_for_provider(request: Request, next: str = "/") -> Response:
    """Redirect to the sign-in page of the provider."""
    client = _provider_of(request)
    address, attempt = client.begin(_redirect_uri(request), local_address(next))
    response = RedirectResponse(address, status_code=303)
    _set_cookie(request, response, PROVIDER_COOKIE, quote(attempt.to_text()))
    return response


@router.get("/sign-in/back")
def come_from_provider(request: Request) -> Response:
    """Sign in the user of the provider response and redirect to the requested page."""
    client = _provider_of(request)
    store: FeatureStore = request.app.state.store
    try:
        attempt = Attempt.from_text(unquote(request.cookies.get(PROVIDER_COOKIE, "")))
        name = client.finish(_redirect_uri(request), attempt, str(request.url))
    except NotSignedIn as error:
        return _sign_in_form(request, "/", error)
    cookie = access.start_browser_session(store.session, name, "provider")
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
    return str(request.url_for("come_from_provider"))


def signed_in_response(request: Request, cookie: str, following: str) -> Response:
    """Return the redirect that sets the session cookie."""
    response = RedirectResponse(local_address(following), status_code=303)
    _set_cookie(request, response, COOKIE, cookie)
    response.delete_cookie(FORM_COOKIE)
    return response


def local_address(text: str) -> str:
    r"""Return a URL if it is a path of this server, else the home page (no open redirects).

    >>> local_address("/groups?q=a"), local_address("//evil.example"), local_address("/\\evil.example")
    ('/groups?q=a', '/', '/')
    """
    url = urlsplit(text)
    is_path = text.startswith("/") and not text.startswith("//")
    is_unsafe = "\\" in text or any(ord(letter) < 32 for letter in text)
    if not is_path or is_unsafe or url.scheme or url.netloc:
        return "/"
    return text


def _sign_in_form(request: Request, following: str, error: NotSignedIn | None) -> HTMLResponse:
    form_cookie = request.cookies.get(FORM_COOKIE, "") or new_secret()
    response = page(
        request,
        "sign_in.html",
        title="Sign in",
        following=local_address(following),
        sign_in_token=form_token(form_cookie),
        refusal=error,
        provider=request.app.state.settings.provider,
    )
    response.status_code = 200 if error is None else status_of(error)
    response.headers["cache-control"] = "no-store"
    _set_cookie(request, response, FORM_COOKIE, form_cookie)
    return response


def _set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Set a cookie that is invisible to scripts and not sent with cross-site forms."""
    secure = request.url.scheme == "https"
    response.set_cookie(name, value, httponly=True, samesite="lax", secure=secure, path="/")
