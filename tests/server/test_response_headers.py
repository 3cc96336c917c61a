"""Request text cannot inject response headers: each route and parameter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any
from urllib.parse import quote

from fastapi.routing import iter_route_contexts
from starlette.testclient import TestClient

HOSTILE = [
    'a"; filename="evil.exe',
    "a\r\nSet-Cookie: featurestore=x",
    "\u00e9\u4e16",
    "../../x\x00",
]
# Strings that could be filtered, and values that a route accepts.
_VALUES = {
    "name": {
        "groups": "visits", "featuregroups": "visits", "datasets": "sells", "views": "selling",
        "training-datasets": "sells", "jobs": "doubled", "monitors": "watch", "models": "seller",
    },
    "run_id": {"experiments": "20240301-120000-seller"},
}  # fmt: skip


def addresses(app: Any) -> Iterator[str]:
    """Yield addresses of each route with a hostile string in each of its parameters."""
    for route in iter_route_contexts(app.routes):
        if "GET" not in (route.methods or ()) or getattr(route, "dependant", None) is None:
            continue
        path = str(route.path)
        noun = path.removeprefix("/api/v1").split("/")[1]
        names = re.findall(r"{([^}]+)}", path)
        usual = {name: _VALUES.get(name, {}).get(noun, "1") for name in names}
        for name, text in product(names, HOSTILE):
            yield _filled(path, {**usual, name: quote(text, safe="")})
        request = [parameter.alias for parameter in route.dependant.query_params]
        for name, text in product(request, HOSTILE):
            query = f"{quote(name)}={quote(text)}"
            if "format" in request and name != "format":
                query += "&format=csv"
            yield f"{_filled(path, usual)}?{query}"


def _filled(path: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value)
    return path


def test_response_headers_reject_injected_line_breaks(client: TestClient) -> None:
    statuses = set()
    for address in addresses(client.app):
        response = client.get(address, follow_redirects=False)
        statuses.add(response.status_code)
        assert response.status_code < 500, (address, response.text[:500])
        for name, value in response.headers.raw:
            assert not re.search(rb"[\r\n\x00]|evil|featurestore=x", value), (address, name, value)
            value.decode("ascii")
    assert statuses >= {200, 404, 400}
