"""Errors as answers: a problem object under the REST interface, a page elsewhere."""

from __future__ import annotations

import logging

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException as RoutingError

from featurestore.errors import FeatureStoreError, NotSignedIn
from featurestore.server.guard import sign_in_address
from featurestore.server.headers import API, HEADERS
from featurestore.server.pages.rendering import error_page
from featurestore.server.problems import MEDIA_TYPE, problem, status_of

_log = logging.getLogger("featurestore.server")


def answer_errors(app: FastAPI) -> None:
    """Let an application answer every error."""
    app.add_exception_handler(FeatureStoreError, _of_the_library)
    app.add_exception_handler(NotSignedIn, _of_strangers)
    app.add_exception_handler(RoutingError, _of_routing)
    app.add_exception_handler(RequestValidationError, _of_arguments)
    app.add_exception_handler(Exception, _unexpected)


def _answer(request: Request, status: int, told: dict[str, object]) -> Response:
    if request.url.path.startswith(API):
        answered: Response = JSONResponse(told, status_code=status, media_type=MEDIA_TYPE)
    else:
        answered = error_page(request, status, told)
    # What nobody foresaw is answered outside of what adds them to all other answers.
    answered.headers.update(HEADERS)
    return answered


def _of_the_library(request: Request, error: Exception) -> Response:
    assert isinstance(error, FeatureStoreError)
    told = _without_location(request, problem(error))
    if request.app.state.settings.auth and told["status"] == 404:
        # One answer for what is not there and for what is hidden.
        told["detail"] = f"{told['detail']} (not found or not allowed)"
    return _answer(request, status_of(error), told)


def _without_location(request: Request, told: dict[str, object]) -> dict[str, object]:
    """Return a problem whose texts name files from the store on: readers need not know the machine.

    The log of the server has the whole paths.
    """
    location = str(request.app.state.store.location).rstrip("/")
    shown: dict[str, object] = {}
    for name, text in told.items():
        if isinstance(text, str):
            text = text.replace(f"{location}/", "").replace(location, "the store")
        shown[name] = text
    return shown


def _of_strangers(request: Request, error: Exception) -> Response:
    """Lead a browser to the page that signs in; tell a program."""
    assert isinstance(error, FeatureStoreError)
    is_page = not request.url.path.startswith(API) and "authorization" not in request.headers
    if is_page and request.method == "GET":
        return RedirectResponse(sign_in_address(request), status_code=303)
    told = _without_location(request, problem(error))
    answered = _answer(request, status_of(error), told)
    answered.headers["www-authenticate"] = "Bearer"
    return answered


def _of_routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException | RoutingError)
    told: dict[str, object] = {
        "type": "about:blank",
        "title": str(error.detail),
        "status": error.status_code,
        "detail": f"{request.method} {request.url.path}: {error.detail}",
    }
    return _answer(request, error.status_code, told)


def _of_arguments(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    wrong = []
    for each in error.errors():
        wrong.append(f"{'.'.join(map(str, each['loc']))}: {each['msg']}")
    told: dict[str, object] = {
        "type": "about:blank",
        "title": "Wrong argument",
        "status": 422,
        "detail": "; ".join(wrong),
    }
    return _answer(request, 422, told)


def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    told: dict[str, object] = {
        "type": "about:blank",
        "title": "Internal error",
        "status": 500,
        "detail": "The server failed at this; its log says where.",
    }
    return _answer(request, 500, told)
