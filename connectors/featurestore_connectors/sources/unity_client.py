"""Requests to the REST interface of Unity Catalog.

Redirects are refused, since they would send the token to another address.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from featurestore.errors import SourceUnavailable
from featurestore.plugins.source import SourceConfig
from featurestore_connectors.sources.drivers import to_single_line

_TIMEOUT_SECONDS = 30.0
_MAX_BYTES = 64 << 20
_PAGE_ROWS = 100


class _RefusedRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that the token is sent to the registered address only."""

    def redirect_request(self, *_: object) -> None:
        return None


class UnityClient:
    """Requests to the REST interface of a catalog."""

    def __init__(self, config: SourceConfig, address: str, token: str | None) -> None:
        self._config = config
        self.address = address
        self.token = token
        self._opener = urllib.request.build_opener(_RefusedRedirects)

    def get(self, path: str, **query: str) -> dict[str, Any] | None:
        """Return the object at a path, or None if it does not exist."""
        return self._send(f"{path}?{urlencode(query)}" if query else path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send an object to a path, and return the response."""
        return self._send(path, json.dumps(body).encode()) or {}

    def delete(self, path: str) -> None:
        """Delete the object at a path, if it exists."""
        self._send(path, None, method="DELETE")

    def list_all(self, response_key: str, **query: str) -> Iterator[Mapping[str, Any]]:
        """Yield the objects of all pages of a list."""
        page: str | None = None
        while True:
            page_parameter = {} if page is None else {"page_token": page}
            body = (
                self.get(response_key, **query, max_results=str(_PAGE_ROWS), **page_parameter) or {}
            )
            yield from body.get(response_key) or ()
            # A catalog that repeats a token would cause an endless list.
            if not body.get("next_page_token") or body["next_page_token"] == page:
                return
            page = str(body["next_page_token"])

    def _send(
        self, path: str, body: bytes | None, *, method: str | None = None
    ) -> dict[str, Any] | None:
        """Send a request; return None for an object that does not exist."""
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(
            f"{self.address}/{path}", data=body, headers=headers, method=method
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
                content = response.read(_MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
                reason = to_single_line(error.read(500).decode(errors="replace"), self.token)
            raise self._unavailable(f"status {error.code} {reason}") from None
        except (OSError, ValueError) as error:
            raise self._unavailable(to_single_line(str(error), self.token)) from None
        try:
            # Some servers respond to a deletion with an empty body.
            fields = json.loads(content or b"{}") if len(content) <= _MAX_BYTES else None
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise self._unavailable("its response is not a JSON object")
        return fields

    def _unavailable(self, reason: str) -> SourceUnavailable:
        return SourceUnavailable(
            f"Source {self._config.name!r} cannot be reached, or rejects the user: {reason}",
            hint="check the URI, and the token that secret= refers to",
        )
