"""The REST interface: parameters, JSON values, and errors as problem details (RFC 9457)."""

from __future__ import annotations

import base64
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, TypeAlias, TypeVar

from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as RoutingError

from featurestore import errors
from featurestore.errors import FeatureStoreError, NotSignedIn
from featurestore.model.arguments import MAX_VERSION
from featurestore.model.display import escape_line
from featurestore.model.json_object import float_value
from featurestore.model.threads import translate_thread_errors
from featurestore.model.times import format_duration
from featurestore.registry.stored_errors import text_for_readers
from featurestore.server.guard import sign_in_address, visitor_of
from featurestore.server.rendering import ReadsPage, error_page
from featurestore.server.settings import API, HEADERS

MEDIA_TYPE = "application/problem+json"
_CONFLICTS = (
    errors.FeatureGroupExists,
    errors.TrainingDatasetExists,
    errors.FeatureViewExists,
    errors.PinnedByTrainingDataset,
    errors.UsedByFeatureView,
    errors.JobLeased,
    errors.UserExists,
    errors.WriteConflict,
)
# The request is valid, but the store is damaged or misconfigured, which the operator must fix.
_SERVER_FAULTS = (
    errors.EngineError,
    errors.OnlineStoreError,
    errors.StorageError,
    errors.RegistryError,
    errors.DatasetDamaged,
    errors.FeatureViewDamaged,
    errors.MissingExtra,
    errors.MissingJava,
)
_TEMPORARY = (errors.QueryEnded, errors.OnlineStoreUnavailable, errors.ThreadsUnavailable)
_log = logging.getLogger("featurestore.server")
# Invalid arguments that a response names; a body may have many thousands.
_MAX_MESSAGES = 20
T = TypeVar("T")
# A JSON object of a response.
Record: TypeAlias = dict[str, Any]
Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items.")]
Offset = Annotated[int, Query(ge=0, le=10_000_000, description="Number of items to skip.")]
Name = Annotated[str, Path(pattern="^[a-z][a-z0-9_]{0,62}$", description="A name.")]
Version = Annotated[int, Path(ge=1, le=MAX_VERSION, description="A version.")]


def to_json_value(value: Any) -> Any:
    """Convert a value to JSON types.

    >>> to_json_value({"at": datetime(2013, 1, 1), "x": float("nan"), "b": b"ab"})
    {'at': '2013-01-01T00:00:00', 'x': 'NaN', 'b': 'YWI='}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float_value(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return format_duration(value)
    # A JSON number is usually parsed as a float, which would lose digits.
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(name): to_json_value(item) for name, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return list(map(to_json_value, value))
    return str(value)


class Problem(BaseModel):
    """An error (RFC 9457); ``hint`` suggests a solution."""

    type: str
    title: str
    status: int
    detail: str
    hint: str | None = None


_PROBLEM = {"model": Problem, "content": {MEDIA_TYPE: {}}}


REFUSALS: dict[int | str, Record] = {
    400: {**_PROBLEM, "description": "Invalid request."},
    404: {**_PROBLEM, "description": "Not found."},
    413: {**_PROBLEM, "description": "The request or the response exceeds a limit."},
    422: {**_PROBLEM, "description": "An argument has an invalid type or is out of range."},
}


class Items(BaseModel):
    """One page of a list; ``next`` is the offset of the next page."""

    items: list[Record]
    next: int | None = Field(description="Offset of the next page; null: this is the last page.")


def record(values: Mapping[str, Any]) -> Record:
    """Convert a record to JSON types."""
    json_values: Record = to_json_value(values)
    return json_values


def items(
    read: ReadsPage[T], to_record: Callable[[T], Mapping[str, Any]], *, limit: int, offset: int
) -> Items:
    """Return one page of a list."""
    # One more entry shows whether there is another page.
    entries = read(limit=limit + 1, offset=offset)
    next_offset = offset + limit if len(entries) > limit else None
    return Items(items=[record(to_record(entry)) for entry in entries[:limit]], next=next_offset)


def http_status_of(error: FeatureStoreError) -> int:
    """Return the HTTP status for an error.

    >>> http_status_of(errors.FeatureGroupNotFound("no such group")), http_status_of(errors.InvalidSql("?"))
    (404, 400)
    """
    access_status = _status_of_access(error)
    if access_status is not None:
        return access_status
    if isinstance(error, _TEMPORARY):
        return 503
    if isinstance(error, errors.LimitExceeded):
        return 413
    if isinstance(error, _CONFLICTS):
        return 409
    if isinstance(error, _SERVER_FAULTS):
        return 500
    if isinstance(error, LookupError):
        return 404
    return 422 if isinstance(error, errors.OutOfRange) else 400


def _status_of_access(error: FeatureStoreError) -> int | None:
    if isinstance(error, errors.TooManyRequests):
        return 429
    if isinstance(error, errors.NotSignedIn):
        return 401
    return 403 if isinstance(error, errors.NotAllowed) else None


def retry_header(error: Exception) -> dict[str, str]:
    """Return the header that states when a refused request can be repeated.

    >>> retry_header(errors.TooManyRequests("?", seconds=0.2))
    {'Retry-After': '1'}
    """
    if not isinstance(error, errors.TooManyRequests):
        return {}
    return {"Retry-After": str(math.ceil(error.seconds))}


def problem_details(error: FeatureStoreError) -> Record:
    """Convert an error to a problem object with type, status, detail and hint.

    >>> problem_details(errors.InvalidName("'9a' is not a name.", hint="a9"))["hint"]
    'a9'
    """
    details: Record = {
        "type": f"urn:featurestore:{type(error).__name__}",
        "title": type(error).__name__,
        "status": http_status_of(error),
        "detail": error.message,
    }
    if error.hint is not None:
        details["hint"] = error.hint
    return details


def add_error_handlers(app: FastAPI) -> None:
    """Register handlers for all errors in an application."""
    # Starlette calls the handler of the most specific class, so NotSignedIn has its own.
    app.add_exception_handler(FeatureStoreError, _handle_store_error)
    app.add_exception_handler(NotSignedIn, _handle_not_signed_in)
    app.add_exception_handler(RoutingError, _handle_routing_error)
    app.add_exception_handler(RequestValidationError, _handle_invalid_arguments)
    app.add_exception_handler(RuntimeError, _handle_refused_thread)
    app.add_exception_handler(Exception, _handle_unexpected)


def _error_response(request: Request, status: int, details: dict[str, object]) -> Response:
    """Return an error as JSON for the REST interface, otherwise as a page."""
    if request.url.path.startswith(API):
        response: Response = JSONResponse(details, status_code=status, media_type=MEDIA_TYPE)
    else:
        response = _error_page(request, status, details)
    # Unexpected errors are handled outside the middleware that adds these headers.
    response.headers.update(HEADERS)
    return response


def _error_page(request: Request, status: int, details: Mapping[str, object]) -> Response:
    """Return the page of an error; visitors without a role see the same page for all addresses."""
    visitor = visitor_of(request)
    if visitor is not None and not visitor.has_role:
        return error_page(request, "no_role.html", 403, title="You have no role yet")
    title = error_heading(str(details["title"]))
    return error_page(request, "error.html", status, title=title, problem=details)


def error_heading(title: str) -> str:
    """Return the heading of an error page for the title of a problem, which may be a class name.

    >>> error_heading("FeatureGroupNotFound"), error_heading("Not Found")
    ('Feature group not found', 'Page not found')
    """
    if title == "Not Found":
        return "Page not found"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", title).capitalize()


def _handle_store_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, FeatureStoreError)
    details = _visible_details(request, error)
    if request.app.state.settings.auth and details["status"] == 404:
        # Missing and hidden objects must be indistinguishable.
        details["detail"] = f"{details['detail']} (not found or not allowed)"
    response = _error_response(request, http_status_of(error), details)
    response.headers.update(retry_header(error))
    return response


async def _handle_refused_thread(request: Request, error: Exception) -> Response:
    """Return 503 if a request has no thread; Starlette would need one to call a plain function."""
    try:
        with translate_thread_errors():
            raise error
    except errors.ThreadsUnavailable as refusal:
        return _error_response(request, http_status_of(refusal), problem_details(refusal))


def _visible_details(request: Request, error: FeatureStoreError) -> Record:
    """Return the problem details without paths, addresses and secrets; log the full text."""
    text = text_for_readers(request.app.state.store.session.registry, error)
    details = problem_details(error) | {"detail": text.message}
    details.pop("hint", None)
    if text.hint is not None:
        details["hint"] = text.hint
    # Operators need the address of a database that does not respond; readers must not see it.
    if details["status"] >= 500 and text.message != error.message:
        _log.warning("%s %s: %s", request.method, escape_line(request.url.path), error.message)
    return details


def _handle_not_signed_in(request: Request, error: Exception) -> Response:
    """Redirect browsers to the sign-in page; return 401 to programs."""
    assert isinstance(error, FeatureStoreError)
    is_page = not request.url.path.startswith(API) and "authorization" not in request.headers
    # After the sign-in a browser can repeat only a GET request.
    if is_page and request.method == "GET":
        return RedirectResponse(sign_in_address(request), status_code=303)
    details = _visible_details(request, error)
    response = _error_response(request, http_status_of(error), details)
    # RFC 9110 requires this header in a 401 response.
    response.headers["www-authenticate"] = "Bearer"
    response.headers.update(retry_header(error))
    return response


def _handle_routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException | RoutingError)
    details: dict[str, object] = {
        "type": "about:blank",
        "title": str(error.detail),
        "status": error.status_code,
        "detail": f"{request.method} {request.url.path}: {error.detail}",
    }
    return _error_response(request, error.status_code, details)


def _handle_invalid_arguments(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    messages = [
        f"{'.'.join(map(str, argument_error['loc']))}: {argument_error['msg']}"
        for argument_error in error.errors()[:_MAX_MESSAGES]
    ]
    details: dict[str, object] = {
        "type": "about:blank",
        "title": "Invalid argument",
        "status": 422,
        "detail": "; ".join(messages),
    }
    return _error_response(request, 422, details)


def _handle_unexpected(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, escape_line(request.url.path), exc_info=error)
    details: dict[str, object] = {
        "type": "about:blank",
        "title": "Internal error",
        "status": 500,
        # The message of the error may contain paths and private names.
        "detail": "Unexpected error; see the server log for the traceback.",
    }
    return _error_response(request, 500, details)
