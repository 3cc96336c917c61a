"""The client over HTTP, by the standard library: nothing is held whole, neither sent nor received."""

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
from featurestore_connectors.remote.streams import parts_of, read_stream, until_answered

_API = "/api/v1"
# What takes long at the server says nothing meanwhile: it ends queries by itself.
_SECONDS, _LONG = 60.0, 3600.0
_SUCCESS = (http.client.OK, http.client.PARTIAL_CONTENT)
_PIECE = 1 << 20
_PAUSES = (0.2, 1.0, 5.0)
_PAGE = 1000


class HttpClient:
    """Asks one server; each call has a connection of its own, so that threads do not wait."""

    def __init__(self, address: str, *, token: str | None = None) -> None:
        parts = urlsplit(address)
        if not parts.hostname or parts.query or parts.fragment or parts.username:
            raise ConfigurationError(
                "This is no address of a served store: it has a host, maybe a port and a path, and "
                "no password.",
                hint="featurestore.connect('http://127.0.0.1:8787', token='fs_...')",
            )
        self._parts = parts
        self._token = token

    @property
    def address(self) -> str:
        return f"{self._parts.scheme}://{self._parts.netloc}{self._parts.path.rstrip('/')}"

    def get(self, path: str, **arguments: str | int | None) -> Any:
        return self._record("GET", path, arguments, seconds=_SECONDS)

    def post(self, path: str, **arguments: str | int | None) -> Any:
        return self._record("POST", path, arguments, seconds=_LONG)

    def content(self, path: str) -> bytes:
        connection, answer = self._ask("GET", quote(path), None, {}, seconds=_SECONDS)
        with closing(connection):
            return self._read(answer)

    def _record(
        self, method: str, path: str, arguments: Mapping[str, str | int | None], *, seconds: float
    ) -> Any:
        given = {name: value for name, value in arguments.items() if value is not None}
        target = quote(path)
        if given:
            target = f"{target}?{urlencode(given)}"
        connection, answer = self._ask(method, target, None, {}, seconds=seconds)
        with closing(connection):
            return self._json(answer)

    def items(self, path: str, **arguments: str | int | None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        offset: int | None = 0
        while offset is not None:
            page = self.get(path, limit=_PAGE, offset=offset, **arguments)
            found += page["items"]
            offset = page["next"]
        return found

    def rows(
        self, retrieval: Mapping[str, Any], labels: pa.RecordBatchReader | None = None
    ) -> pa.RecordBatchReader:
        body = parts_of(retrieval, labels)
        headers = {"Content-Type": RETRIEVAL}
        connection, answer = self._ask("POST", "/rows", body, headers, seconds=_LONG)
        return read_stream(connection, answer, broken=self._broken)

    def send(
        self, path: str, told: Mapping[str, Any], rows: pa.RecordBatchReader | None = None
    ) -> Any:
        body, kind = parts_of(told, rows), RETRIEVAL
        if rows is None:
            kind = "application/json"
        headers = {"Content-Type": kind}
        connection, answer = self._ask("POST", quote(path), body, headers, seconds=_LONG)
        with closing(connection):
            return self._json(answer)

    def pieces(self, path: str) -> Iterator[bytes]:
        position, failures = 0, 0
        while True:
            try:
                for piece in self._rest(path, position):
                    position += len(piece)
                    failures = 0
                    yield piece
                return
            except ServerUnavailable:
                failures += 1
                if failures > len(_PAUSES):
                    raise
            time.sleep(_PAUSES[failures - 1])

    def _rest(self, path: str, position: int) -> Iterator[bytes]:
        """Yield the bytes of a file from one of them on, as far as one connection brings them."""
        headers, expected = {}, http.client.OK
        if position:
            headers, expected = {"Range": f"bytes={position}-"}, http.client.PARTIAL_CONTENT
        connection, answer = self._ask("GET", quote(path), None, headers, seconds=_SECONDS)
        with closing(connection):
            if answer.status != expected:
                raise self._broken(f"asked for a file from a byte on it answers {answer.status}")
            while piece := self._read(answer, _PIECE):
                yield piece
            if answer.length:
                raise self._broken(f"a file broke off, {answer.length:,} bytes before its end")

    def close(self) -> None:
        """Nothing is kept open."""

    def _ask(
        self,
        method: str,
        target: str,
        body: Iterator[bytes] | None,
        headers: Mapping[str, str],
        *,
        seconds: float,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Return the answer of the server, if it is one of success.

        Raises:
            FeatureStoreError: What the server says instead.
            ServerUnavailable: It does not answer.
        """
        given = {"Accept": "application/json", **headers}
        if self._token is not None:
            given["Authorization"] = f"Bearer {self._token}"
        connection = self._connection(seconds)
        sent = body if body is None else until_answered(connection, body)
        try:
            path = self._parts.path.rstrip("/") + _API + target
            with suppress(BrokenPipeError, ConnectionResetError):  # the answer says why
                connection.request(method, path, sent, given, encode_chunked=body is not None)
            answer = connection.getresponse()
            if answer.status in _SUCCESS:
                return connection, answer
            refusal = self._refusal(answer)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._broken(f"{type(error).__name__}: {error}") from error
        except BaseException:
            connection.close()
            raise
        connection.close()
        raise refusal

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
        return http.client.HTTPConnection(host, port, timeout=seconds)

    def _read(self, answer: http.client.HTTPResponse, most: int | None = None) -> bytes:
        try:
            return answer.read(most)
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(f"{type(error).__name__}: {error}") from error

    def _json(self, answer: http.client.HTTPResponse) -> Any:
        try:
            return json.loads(self._read(answer))
        except ValueError as error:
            raise self._broken("its answer is no JSON") from error

    def _refusal(self, answer: http.client.HTTPResponse) -> FeatureStoreError:
        """Return the error of a problem object, of the kind that the server raised."""
        text = self._read(answer)
        try:
            told = json.loads(text)
            title, message, hint = told["title"], told["detail"], told.get("hint")
        except (ValueError, TypeError, KeyError):
            return self._broken(f"it answers {answer.status}")
        kind = getattr(errors, str(title), None)
        if isinstance(kind, type) and issubclass(kind, FeatureStoreError):
            return kind(message, hint=hint)
        return ServerUnavailable(f"{self.address}: {message}", hint=hint)

    def _broken(self, why: str) -> ServerUnavailable:
        return ServerUnavailable(
            f"The server at {self.address} does not answer as one: {why}.",
            hint="is 'featurestore serve' running there?",
        )


if TYPE_CHECKING:
    _contract: Client = HttpClient("http://localhost")
