"""HTTP client based on the standard library; rows and files are streamed in both directions."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from featurestore import errors
from featurestore.errors import ConfigurationError, FeatureStoreError, ServerUnavailable
from featurestore.plugins.remote import RETRIEVAL, Client
from featurestore_connectors.remote.streams import read_stream, request_body, send_until_response

_API = "/api/v1"
# The server sends nothing while it computes, and limits the time of queries itself.
_SECONDS, _LONG_SECONDS = 60.0, 3600.0
_SUCCESS = (http.client.OK, http.client.PARTIAL_CONTENT)
_CHUNK_BYTES = 1 << 20
_RETRY_PAUSES = (0.2, 1.0, 5.0)
_PAGE = 1000


class HttpClient:
    """Client of one server; each call opens its own connection, so threads do not block each other."""

    def __init__(self, address: str, *, token: str | None = None) -> None:
        url = urlsplit(address)
        if not url.hostname or url.query or url.fragment or url.username:
            raise ConfigurationError(
                "Invalid address of a served store. Expected: scheme, host, optional port and path, "
                "no password.",
                hint="featurestore.connect('http://127.0.0.1:8787', token='fs_...')",
            )
        self._url = url
        self._token = token

    @property
    def address(self) -> str:
        return f"{self._url.scheme}://{self._url.netloc}{self._url.path.rstrip('/')}"

    def get(self, path: str, **arguments: str | int | None) -> Any:
        return self._record("GET", path, arguments, seconds=_SECONDS)

    def post(self, path: str, **arguments: str | int | None) -> Any:
        return self._record("POST", path, arguments, seconds=_LONG_SECONDS)

    def content(self, path: str) -> bytes:
        connection, response = self._request("GET", quote(path), None, {}, seconds=_SECONDS)
        with closing(connection):
            return self._read(response)

    def _record(
        self, method: str, path: str, arguments: Mapping[str, str | int | None], *, seconds: float
    ) -> Any:
        query = {name: value for name, value in arguments.items() if value is not None}
        target = quote(path)
        if query:
            target = f"{target}?{urlencode(query)}"
        connection, response = self._request(method, target, None, {}, seconds=seconds)
        with closing(connection):
            return self._json(response)

    def items(self, path: str, **arguments: str | int | None) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        offset: int | None = 0
        while offset is not None:
            page = self.get(path, limit=_PAGE, offset=offset, **arguments)
            entries += page["items"]
            offset = page["next"]
        return entries

    def rows(
        self, retrieval: Mapping[str, Any], labels: pa.RecordBatchReader | None = None
    ) -> pa.RecordBatchReader:
        body = request_body(retrieval, labels)
        headers = {"Content-Type": RETRIEVAL}
        connection, response = self._request("POST", "/rows", body, headers, seconds=_LONG_SECONDS)
        return read_stream(connection, response, unavailable=self._unavailable)

    def send(
        self, path: str, request: Mapping[str, Any], rows: pa.RecordBatchReader | None = None
    ) -> Any:
        body, content_type = request_body(request, rows), RETRIEVAL
        if rows is None:
            content_type = "application/json"
        headers = {"Content-Type": content_type}
        connection, response = self._request(
            "POST", quote(path), body, headers, seconds=_LONG_SECONDS
        )
        with closing(connection):
            return self._json(response)

    def pieces(self, path: str) -> Iterator[bytes]:
        position, failures = 0, 0
        while True:
            try:
                for chunk in self._read_from(path, position):
                    position += len(chunk)
                    failures = 0
                    yield chunk
                return
            except ServerUnavailable:
                failures += 1
                if failures > len(_RETRY_PAUSES):
                    raise
            time.sleep(_RETRY_PAUSES[failures - 1])

    def _read_from(self, path: str, position: int) -> Iterator[bytes]:
        """Yield the bytes of a file from a position until the end or a lost connection."""
        headers, expected = {}, http.client.OK
        if position:
            headers, expected = {"Range": f"bytes={position}-"}, http.client.PARTIAL_CONTENT
        connection, response = self._request("GET", quote(path), None, headers, seconds=_SECONDS)
        with closing(connection):
            if response.status != expected:
                raise self._unavailable(f"unexpected status {response.status} for a file")
            while chunk := self._read(response, _CHUNK_BYTES):
                yield chunk
            if response.length:
                raise self._unavailable(f"a file ended {response.length:,} bytes early")

    def close(self) -> None:
        """Do nothing: no connection stays open."""

    def _request(
        self,
        method: str,
        target: str,
        body: Iterator[bytes] | None,
        headers: Mapping[str, str],
        *,
        seconds: float,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request and return its successful response.

        Raises:
            FeatureStoreError: The server returned an error.
            ServerUnavailable: The server is unreachable or the response is invalid.
        """
        all_headers = {"Accept": "application/json", **headers}
        if self._token is not None:
            all_headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connection(seconds)
        monitored_body = body if body is None else send_until_response(connection, body)
        try:
            path = self._url.path.rstrip("/") + _API + target
            with suppress(
                BrokenPipeError, ConnectionResetError
            ):  # the response contains the reason
                connection.request(
                    method, path, monitored_body, all_headers, encode_chunked=body is not None
                )
            response = connection.getresponse()
            if response.status in _SUCCESS:
                return connection, response
            refusal = self._error_from(response)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unavailable(f"{type(error).__name__}: {error}") from error
        except BaseException:
            connection.close()
            raise
        connection.close()
        raise refusal

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
        return http.client.HTTPConnection(host, port, timeout=seconds)

    def _read(self, response: http.client.HTTPResponse, max_bytes: int | None = None) -> bytes:
        try:
            return response.read(max_bytes)
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(f"{type(error).__name__}: {error}") from error

    def _json(self, response: http.client.HTTPResponse) -> Any:
        try:
            return json.loads(self._read(response))
        except ValueError as error:
            raise self._unavailable("its response is not JSON") from error

    def _error_from(self, response: http.client.HTTPResponse) -> FeatureStoreError:
        """Return the error of a problem object, with the class that the server raised."""
        text = self._read(response)
        try:
            problem = json.loads(text)
            title, message, hint = problem["title"], problem["detail"], problem.get("hint")
        except (ValueError, TypeError, KeyError):
            return self._unavailable(f"unexpected status {response.status}")
        error_class = getattr(errors, str(title), None)
        if isinstance(error_class, type) and issubclass(error_class, FeatureStoreError):
            return error_class(message, hint=hint)
        return ServerUnavailable(f"{self.address}: {message}", hint=hint)

    def _unavailable(self, reason: str) -> ServerUnavailable:
        return ServerUnavailable(
            f"The server at {self.address} is unavailable: {reason}.",
            hint="is 'featurestore serve' running there?",
        )


if TYPE_CHECKING:
    _contract: Client = HttpClient("http://localhost")
