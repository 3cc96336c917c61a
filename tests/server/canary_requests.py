"""Requests for all routes of the server, generated from its routes, and sent in process."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from urllib.parse import unquote

from fastapi.routing import iter_route_contexts

from featurestore.plugins.remote import RETRIEVAL
from tests.server.canaries import PRIVATE

_RUN = "20240301-120000-canary-model"
# Objects added between the two passes, by the noun of their routes.
HIDDEN = {
    "featuregroups": [
        PRIVATE, "canary_twice", "canary_third", "canary_compared", "canary_copy", "canary_split", "canary_refused",
        "canary_scores", "canary_windows", "canary_never", "canary_served",
    ],
    "training-datasets": ["canary_set", "canary_likeness", "canary_by_view", "canary_trained", "unnamed_set"],
    "views": ["canary_view"],
    "jobs": [
        "canary_sql", "canary_python", "canary_failing", "canary_training", "canary_window",
        "canary_watch", "canary_baseline", "canary_publish", "unnamed",
    ],
    "monitors": ["canary_watch", "canary_baseline"],
    "models": ["canary_model"],
    "experiments": [
        _RUN, "20240302-120000-canary-model", "20240303-120000-canary-model",
        "20240303-120000-canary-model-0", "20240304-120000-names",
    ],
}  # fmt: skip
PUBLIC = {
    "featuregroups": ["visits", "doubled"], "training-datasets": ["of_visits"],
    "views": ["view_visits"], "jobs": ["doubled"], "monitors": ["watch"],
    "models": ["model_visits"], "experiments": ["20240301-120000-model-visits"],
}  # fmt: skip
_SYNONYMS = {"groups": "featuregroups", "datasets": "training-datasets", "featureviews": "views"}
_TYPO = "canary_pai"
# Values of path parameters that are not names, and of names without a collection.
_FIXED = {
    "version": ["1"], "split": ["train"], "path:path": ["train/tfrecord-00000-of-00001"],
    "run_id": [_RUN], "path": ["train/tfrecord-00000-of-00001"],
}  # fmt: skip
# Values of query parameters.
QUERIES = {
    "q": ["canary", "pay"],
    "node": [
        f"featuregroup:{PRIVATE}@1", f"feature:{PRIVATE}.canary_amount@1", "job:canary_sql",
        "training_dataset:canary_set@1", "model:canary_model@1", "featuregroup:visits@1",
        "experiment:canary_model", "feature:visits.pay@1",
    ],
    "feature": [f"{PRIVATE}.canary_amount", "canary_amount"],
    "run": [_RUN], "name": ["canary_model", "names"], "dataset": ["canary_set"],
    "tag": ["canary=canary"], "owner": ["canary"], "format": ["csv"],
    "kind": ["job", "featuregroup"], "who": ["canary"], "changed_within": ["1d"], "before": ["1"],
    "after": ["0"], "against": ["1"], "version": ["1"], "delta_version": ["0"], "as_of": ["0"],
    "at": ["2024-03-01T13:00Z"], "start": ["2024-03-01T12:00Z"], "end": ["2024-03-01T13:00Z"],
    "online": ["embedded"], "split": ["train"], "page": ["2"],
}  # fmt: skip
_UNTOUCHED = {"limit", "offset", "number", "up", "down", "sort", "fresh", "partial"}
READS: list[dict[str, Any]] = [
    {"kind": "featuregroup", "name": PRIVATE},
    {"kind": "featuregroup", "name": "canary_copy"},
    {"kind": "features", "features": [f"{PRIVATE}.canary_amount"]},
    {"kind": "features", "features": ["canary_amount"]},
    {"kind": "features", "features": ["visits.pay"], "labels": PRIVATE},
    {"kind": "split", "name": "canary_set", "version": 1, "split": "train"},
]
# Elapsed times and form tokens, which differ between two responses.
_PASSING = re.compile(
    r"(\d+ (second|minute|hour|day)s? ago|just now"
    r"|featurestore_job_watermark_lag_seconds\{.*|_created\{.*"
    r'|"at": "[^"]*"|name="form_token" value="\w+")'
)
# These routes would end the session of the test.
_OF_THE_ACCOUNT = ("/sign-out", "/sign-in", "/account")
CREATE = ("POST", "/api/v1/featuregroups/{name}")
# Bodies of changes; each request is refused before its body is read.
_CHANGE = b'{"where": "true", "key": "a"}'


@dataclass(frozen=True)
class Request:
    """One request; ``role`` is in ``canaries.ROLES``."""

    role: str
    method: str
    route: str
    address: str
    content: bytes = b""

    @property
    def number(self) -> int:
        """A number that mixes the requests of a route."""
        return zlib.crc32(f"{self.role} {self.address}".encode() + self.content)


@dataclass(frozen=True)
class Response:
    """The response to a request."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def lasting(self) -> tuple[int, dict[str, str], str]:
        """The response without elapsed times."""
        text = _PASSING.sub("", self.text)
        changing = {"date"} if text == self.text else {"date", "etag", "content-length"}
        headers = {name: value for name, value in self.headers.items() if name not in changing}
        return self.status, headers, text


def requests_by_route(app: Any, roles: Sequence[str]) -> dict[tuple[str, str, str], list[Request]]:
    """Return the requests for an application by role, method and route, mixed."""
    requests: dict[tuple[str, str, str], list[Request]] = {}
    for method, route, address, content in _requests_of(app):
        for role in roles:
            request = Request(role, method, route, address, content)
            requests.setdefault((role, method, route), []).append(request)
    return {key: sorted(values, key=lambda each: each.number) for key, values in requests.items()}


def _requests_of(app: Any) -> Iterator[tuple[str, str, str, bytes]]:
    """Yield (method, route, address, content) of the requests for an application."""
    for route in iter_route_contexts(app.routes):
        path = str(route.path)
        for method in sorted(set(route.methods or ["GET"]) - {"HEAD"}):
            if path.startswith(_OF_THE_ACCOUNT) or path == "/static":
                continue
            for address in _addresses_of(path, method):
                if path == "/api/v1/rows":
                    for read in READS:
                        yield method, path, address, json.dumps({"read": read}).encode() + b"\n"
                    continue
                yield method, path, address, b"" if method == "GET" else _CHANGE
                for name in _query_names(route) if method == "GET" else ():
                    for value in QUERIES[name]:
                        yield method, path, f"{address}?{name}={value}", b""


def _query_names(route: Any) -> list[str]:
    dependant = getattr(route, "dependant", None)
    names = [] if dependant is None else [parameter.alias for parameter in dependant.query_params]
    return [name for name in names if name not in _UNTOUCHED]


def _addresses_of(path: str, method: str) -> Iterator[str]:
    """Yield addresses of a route with hidden, mistyped and public names of its noun.

    A new noun or parameter raises a KeyError: it needs hidden objects in ``HIDDEN``.
    """
    noun = re.sub("^/(api/v1|admin)/", "/", path).split("/")[1]
    collection = _SYNONYMS.get(noun, noun)
    parameters = re.findall(r"{([^}]+)}", path)
    choices = []
    for parameter in parameters:
        if parameter in _FIXED:
            choices.append(_FIXED[parameter])
            continue
        # Repeating a change of a public object has another result.
        public = PUBLIC[collection] if method == "GET" else []
        choices.append([*HIDDEN[collection], _TYPO, *public])
    for values in product(*choices):
        address = path
        for parameter, value in zip(parameters, values, strict=True):
            address = address.replace(f"{{{parameter}}}", value)
        yield address


async def send_all(
    app: Any, headers: Mapping[str, Mapping[str, str]], requests: Sequence[Request]
) -> dict[Request, Response]:
    """Send requests one after the other; ``headers`` are by role."""
    return {request: await _send(app, headers[request.role], request) for request in requests}


async def _send(app: Any, headers: Mapping[str, str], request: Request) -> Response:
    path, _, query = request.address.partition("?")
    fields = {"host": "localhost", **{name.lower(): value for name, value in headers.items()}}
    if request.content:
        is_retrieval = request.route == "/api/v1/rows"
        fields["content-type"] = RETRIEVAL if is_retrieval else "application/json"
        fields["content-length"] = str(len(request.content))
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
        "method": request.method, "path": unquote(path), "raw_path": path.encode(),
        "query_string": query.encode(), "root_path": "", "state": {},
        "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
        "client": ("127.0.0.1", 50000), "server": ("localhost", 80),
    }  # fmt: skip
    body = [{"type": "http.request", "body": request.content, "more_body": False}]
    is_complete = asyncio.Event()
    messages: list[Any] = []

    async def receive() -> Any:
        if body:
            return body.pop()
        await is_complete.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        messages.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            is_complete.set()

    try:
        await app(scope, receive, send)
    except Exception:
        # Starlette raises an unexpected error again after its response.
        if not messages:
            raise
    content = b"".join(message.get("body", b"") for message in messages[1:])
    response_headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
    return Response(messages[0]["status"], response_headers, content.decode(errors="replace"))
