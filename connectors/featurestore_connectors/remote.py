"""HTTP client for a served store. Rows and files are streamed in both directions."""

from __future__ import annotations

import http.client
import io
import json
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import chain
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode, urlsplit

import pyarrow as pa

from featurestore import errors
from featurestore.arrow.batches import ipc_chunks
from featurestore.errors import (
    ConfigurationError,
    FeatureStoreError,
    InvalidArgument,
    RegistryWarning,
    ServerUnavailable,
    TooManyAttempts,
    TooManyRequests,
)
from featurestore.model.arguments import warn_caller
from featurestore.model.display import escape_line
from featurestore.plugins.remote import ARROW, NOTICE, RETRIEVAL, Client

_API = "/api/v1"
# The server sends nothing while it runs a query, and limits the time of queries itself.
_SECONDS, _LONG_SECONDS = 60.0, 3600.0
_SUCCESS = (http.client.OK, http.client.PARTIAL_CONTENT)
_CHUNK_BYTES = 1 << 20
_RETRY_PAUSES = (0.2, 1.0, 5.0)
# Repetitions of a request that the server refuses because other requests of this person run.
_BUSY_RETRIES, _LONGEST_PAUSE = 5, 30.0
_PAGE = 1000
_MAX_NOTICE = 4000


def request_body(
    retrieval: Mapping[str, Any], labels: pa.RecordBatchReader | None
) -> bytes | Iterator[bytes]:
    """Return the body of a request: a JSON line, followed by the rows batch by batch."""
    line = json.dumps(retrieval).encode() + b"\n"
    if labels is None:
        return line
    return chain([line], ipc_chunks(labels.schema, labels))


def send_until_response(
    connection: http.client.HTTPConnection, chunks: Iterator[bytes]
) -> Iterator[bytes]:
    """Yield chunks until the server responds; after an error it does not read the rest."""
    for chunk in chunks:
        # select() refuses descriptors above 1,023, which a training process can reach.
        readable = wait([connection.sock], timeout=0)
        if readable:
            return
        yield chunk


def read_stream(
    connection: http.client.HTTPConnection,
    response: http.client.HTTPResponse,
    *,
    unavailable: Callable[[str], Exception],
) -> pa.RecordBatchReader:
    """Return a lazy row reader, which closes the connection when it is closed or exhausted."""
    try:
        reader = pa.ipc.open_stream(_ResponseFile(response))
    except (OSError, pa.ArrowException, http.client.HTTPException) as error:
        connection.close()
        raise unavailable(f"its response is not an Arrow stream: {error}") from error
    return pa.RecordBatchReader.from_batches(
        reader.schema, _batches(connection, response, reader, unavailable)
    )


def _batches(
    connection: http.client.HTTPConnection,
    response: http.client.HTTPResponse,
    reader: pa.RecordBatchReader,
    unavailable: Callable[[str], Exception],
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a response, and close the connection at the end."""
    try:
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                break
            yield batch
        # Raises an error if the server aborted the response, since the last HTTP chunk is then
        # missing.
        response.read()
    except (OSError, pa.ArrowException, http.client.HTTPException) as error:
        raise unavailable(f"the row stream was aborted: {type(error).__name__}: {error}") from error
    finally:
        connection.close()


class _ResponseFile(io.RawIOBase):
    """A response as a file for Arrow. Reads are only short at the end of the file."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        """Fill a buffer with response bytes."""
        view = memoryview(target).cast("B")
        filled = 0
        while filled < len(view):
            count = self._response.readinto(view[filled:])
            if not count:
                break
            filled += count
        return filled


class HttpClient:
    """Client of a server. Each call opens its own connection, so threads do not block."""

    def __init__(self, address: str, *, token: str | None = None) -> None:
        url = urlsplit(address)
        # Errors contain the address, so it must not contain a password.
        if not url.hostname or url.query or url.fragment or url.username:
            raise ConfigurationError(
                "Invalid address of a served store. Expected: scheme, host, optional port and path, "
                "no password.",
                hint="featurestore.connect('http://127.0.0.1:8787', token='fs_...')",
            )
        self._url = url
        self._token = token
        self._last_notice = ""

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
        """Send a request without a body and parse its JSON response."""
        query = {name: value for name, value in arguments.items() if value is not None}
        target = quote(path)
        if query:
            target = f"{target}?{urlencode(query)}"
        connection, response = self._request(method, target, None, {}, seconds=seconds)
        with closing(connection):
            return self._parse_json(response)

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
            return self._parse_json(response)

    def table(self, path: str, request: Mapping[str, Any]) -> pa.Table:
        headers = {"Content-Type": "application/json", "Accept": ARROW}
        body = request_body(request, None)
        connection, response = self._request("POST", quote(path), body, headers, seconds=_SECONDS)
        with closing(connection):
            content = self._read(response)
        try:
            with pa.ipc.open_stream(content) as reader:
                return reader.read_all()
        except (pa.ArrowException, EOFError) as error:
            raise self._unavailable("its response is not an Arrow stream") from error

    def file_chunks(self, path: str) -> Iterator[bytes]:
        position, failures = 0, 0
        while True:
            try:
                for chunk in self._read_from(path, position):
                    # A retry continues after the bytes that were received. Only failures without
                    # progress count.
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
        """Yield the bytes of a file from a position until its end or a lost connection."""
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
                raise self._unavailable(
                    f"the file is truncated: {response.length:,} bytes are missing"
                )

    def close(self) -> None:
        """Do nothing: connections are closed after each request."""

    def _request(
        self,
        method: str,
        target: str,
        body: bytes | Iterator[bytes] | None,
        headers: Mapping[str, str],
        *,
        seconds: float,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request and return its successful response.

        A request without rows is repeated if the server runs too many requests of this person.

        Raises:
            FeatureStoreError: The server returned an error.
            ServerUnavailable: The server is unreachable or its response is invalid.
        """
        failures = 0
        while True:
            response, refusal, connection = self._try(method, target, body, headers, seconds)
            if refusal is None:
                self._warn_of_notice(response)
                return connection, response
            # Rows are an iterator, which was consumed.
            is_repeatable = body is None or isinstance(body, bytes)
            # Too many requests of this person run, and end soon.
            is_busy = isinstance(refusal, TooManyRequests)
            is_busy = is_busy and not isinstance(refusal, TooManyAttempts)
            if not is_repeatable or not is_busy or failures == _BUSY_RETRIES:
                raise refusal
            failures += 1
            header = response.getheader("Retry-After", "")
            pause = min(float(header), _LONGEST_PAUSE) if header.isdecimal() else 1.0
            # Clients that were refused together should not return together.
            time.sleep(pause * random.uniform(1.0, 1.5))

    def _warn_of_notice(self, response: http.client.HTTPResponse) -> None:
        """Warn once of objects that the registry of the server lacks."""
        notice = escape_line(unquote(response.getheader(NOTICE, "")[:_MAX_NOTICE]))
        if notice and notice != self._last_notice:
            warn_caller(f"{self.address}: {notice}", RegistryWarning)
        self._last_notice = notice

    def _try(
        self,
        method: str,
        target: str,
        body: bytes | Iterator[bytes] | None,
        headers: Mapping[str, str],
        seconds: float,
    ) -> tuple[http.client.HTTPResponse, FeatureStoreError | None, http.client.HTTPConnection]:
        """Send a request once; return its response, and the error that the response reports."""
        all_headers = {"Accept": "application/json", **headers}
        if self._token is not None:
            all_headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connection(seconds)
        streamed = None
        if body is not None:
            chunks = iter([body]) if isinstance(body, bytes) else body
            streamed = send_until_response(connection, chunks)
        try:
            path = self._url.path.rstrip("/") + _API + target
            # The response contains the reason.
            with suppress(BrokenPipeError, ConnectionResetError):
                # The length of a streamed body is unknown, so it is sent in chunks.
                connection.request(
                    method, path, streamed, all_headers, encode_chunked=body is not None
                )
            response = connection.getresponse()
            if response.status in _SUCCESS:
                return response, None, connection
            refusal = self._error_from(response)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unavailable(f"{type(error).__name__}: {error}") from error
        except BaseException:
            connection.close()
            raise
        connection.close()
        return response, refusal, connection

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

    def _parse_json(self, response: http.client.HTTPResponse) -> Any:
        try:
            return json.loads(self._read(response))
        except ValueError as error:
            raise self._unavailable("its response is not JSON") from error

    def _error_from(self, response: http.client.HTTPResponse) -> FeatureStoreError:
        """Return the error in a problem response, with the error class that the server raised."""
        text = self._read(response)
        try:
            problem = json.loads(text)
            title, message, hint = problem["title"], problem["detail"], problem.get("hint")
        except (ValueError, TypeError, KeyError):
            return self._unavailable(f"unexpected status {response.status}")
        error_class = getattr(errors, str(title), None)
        # The name comes from the network and must only select a feature store error.
        if isinstance(error_class, type) and issubclass(error_class, FeatureStoreError):
            return error_class(message, hint=hint)
        if response.status == 422:  # the server's check of the arguments
            return InvalidArgument(message, hint=hint)
        return ServerUnavailable(f"{self.address}: {message}", hint=hint)

    def _unavailable(self, reason: str) -> ServerUnavailable:
        return ServerUnavailable(
            f"The server at {self.address} is unavailable: {reason}.",
            hint="check that 'featurestore serve' is running there",
        )


if TYPE_CHECKING:
    _contract: Client = HttpClient("http://localhost")
