"""A real Google Cloud Storage server on the loopback interface: fake-gcs-server, from Go.

Google's connector of Hadoop uses its JSON protocol. Clients of Google Cloud Storage in Rust use its
XML protocol, of which fake-gcs-server has only a small part: ``_Handler`` translates these requests
to the JSON protocol. So listings, generations and preconditions are those of the server; parts of
uploads are joined by the handler.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.http_server import read_body, serve
from tests.maven import NotFetched, cache_folder
from tests.object_server import free_port, wait_for

MODULE, VERSION = "github.com/fsouza/fake-gcs-server", "v1.56.1"
_PAGE = 1000
# Clients in Java use the JSON protocol.
_JSON_PROTOCOL = ("/storage/v1/", "/upload/", "/download/", "/batch")


@dataclass(frozen=True)
class GcsServer:
    """A running server; buckets are in memory."""

    port: int
    backend: int

    @property
    def options(self) -> dict[str, str]:
        """Return the ``storage_options=`` of a client."""
        return {"endpoint": f"http://127.0.0.1:{self.port}", "anonymous": "true"}

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables of a client."""
        return {"GOOGLE_BASE_URL": self.options["endpoint"], "GOOGLE_SKIP_SIGNATURE": "true"}

    def new_bucket(self, name: str) -> str:
        """Create an empty bucket and return its URI."""
        status, _, response_body = _request(
            self.backend, "POST", "/storage/v1/b?project=tests", json.dumps({"name": name}).encode()
        )
        if status != 200:
            raise RuntimeError(f"no bucket: {status} {response_body!r}")
        return f"gs://{name}"


def fake_gcs_server() -> Path:
    """Return the path of the server program, built on first use."""
    folder = cache_folder() / f"fake-gcs-server-{VERSION}"
    program = folder / "fake-gcs-server"
    if not program.exists():
        if shutil.which("go") is None:
            raise NotFetched("Go is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-modcacherw"}
        command = ["nice", "go", "install", f"{MODULE}@{VERSION}"]
        try:
            finished = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=600, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotFetched("Go did not build fake-gcs-server in ten minutes") from None
        if finished.returncode:
            raise NotFetched(f"Go could not build fake-gcs-server: {finished.stderr[-300:]}")
    return program


@contextlib.contextmanager
def serving() -> Iterator[GcsServer]:
    """Run a server while the block runs."""
    backend = free_port()
    process = subprocess.Popen(
        [
            str(fake_gcs_server()), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1",
            "-port", str(backend), "-log-level", "error",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(backend, process)
        handler = type("Handler", (_Handler,), {"backend": backend, "uploads": {}})
        with serve(handler) as port:
            yield GcsServer(port, backend)
    finally:
        process.terminate()
        process.wait(timeout=20)


_threads = threading.local()


def _request(
    port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Send a request over the connection of this thread; return status, headers and content."""
    connections = _threads.__dict__.setdefault("connections", {})
    connection = connections.get(port)
    if connection is None:
        connection = connections[port] = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body=body, headers=headers or {})
    response = connection.getresponse()
    return response.status, dict(response.getheaders()), response.read()


class _Handler(BaseHTTPRequestHandler):
    """Translates the XML protocol to the JSON protocol of the server."""

    protocol_version = "HTTP/1.1"
    # Small answers would otherwise wait for the acknowledgment of their headers.
    disable_nagle_algorithm = True
    wbufsize = -1
    backend: ClassVar[int]
    uploads: ClassVar[dict[str, dict[int, bytes]]]

    def _handle(self) -> None:
        body = read_body(self)
        if self.path.startswith(_JSON_PROTOCOL):
            headers = {
                key: value for key, value in self.headers.items() if key != "Transfer-Encoding"
            }
            self._respond(*self._send(self.command, self.path, body, headers))
            return
        url = urlsplit(self.path)
        bucket, _, name = url.path[1:].partition("/")
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        self.target = f"/storage/v1/b/{bucket}/o"
        if not name:
            self._list(query)
        elif "uploads" in query or "uploadId" in query:
            self._upload_parts(name, query, body)
        elif self.command == "PUT" and "x-goog-copy-source" in self.headers:
            source_bucket, _, source = self.headers["x-goog-copy-source"].partition("/")
            rewrite = f"/storage/v1/b/{source_bucket}/o/{_encode(source)}/rewriteTo/b/{bucket}/o"
            status, _, response_body = self._send("POST", f"{rewrite}/{_encode(name)}")
            self._respond(status, body=response_body)
        elif self.command == "PUT":
            self._put(name, body)
        elif self.command == "DELETE":
            self._respond(self._send("DELETE", f"{self.target}/{_encode(name)}")[0])
        else:
            range_header = {"Range": self.headers["Range"]} if "Range" in self.headers else {}
            path = f"{self.target}/{_encode(name)}?alt=media"
            self._respond(*self._send(self.command, path, headers=range_header))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815

    def _send(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        return _request(self.backend, method, path, body, headers)

    def _put(self, name: str, body: bytes) -> None:
        query = {"uploadType": "media", "name": unquote(name)}
        if "x-goog-if-generation-match" in self.headers:
            query["ifGenerationMatch"] = self.headers["x-goog-if-generation-match"]
        status, _, response_body = self._send(
            "POST", f"/upload{self.target}?{urlencode(query)}", body
        )
        headers = {}
        if status == 200:
            metadata = json.loads(response_body)
            headers = {"ETag": f'"{metadata["etag"]}"', "x-goog-generation": metadata["generation"]}
        self._respond(status, headers, response_body if status != 200 else b"")

    def _upload_parts(self, name: str, query: dict[str, str], body: bytes) -> None:
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self.uploads[upload] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
            self._respond(200, body=f"{text}</InitiateMultipartUploadResult>".encode())
        elif self.command == "PUT":
            self.uploads[query["uploadId"]][int(query["partNumber"])] = body
            self._respond(200, {"ETag": f'"part-{query["partNumber"]}"'})
        elif self.command == "DELETE":
            self.uploads.pop(query["uploadId"], None)
            self._respond(204)
        else:
            part_bodies = self.uploads.pop(query["uploadId"])
            elements = ElementTree.fromstring(body).iter()
            numbers = [
                int(element.text or "") for element in elements if _is(element, "PartNumber")
            ]
            media = urlencode({"uploadType": "media", "name": unquote(name)})
            content = b"".join(part_bodies[number] for number in numbers)
            status, _, response_body = self._send("POST", f"/upload{self.target}?{media}", content)
            metadata = json.loads(response_body)
            text = f"<CompleteMultipartUploadResult><ETag>{metadata['etag']}</ETag>"
            self._respond(
                status,
                {"x-goog-generation": metadata["generation"]},
                f"{text}</CompleteMultipartUploadResult>".encode(),
            )

    def _list(self, query: dict[str, str]) -> None:
        after = max(query.get("continuation-token", ""), query.get("start-after", ""))
        selection = {key: query[key] for key in ("prefix", "delimiter") if query.get(key)}
        status, _, response_body = self._send(
            "GET", f"{self.target}?{urlencode({**selection, 'startOffset': after})}"
        )
        if status != 200:
            self._respond(status, body=b"<Error><Code>NoSuchBucket</Code></Error>")
            return
        result: dict[str, Any] = json.loads(response_body)
        items = [item for item in result.get("items", []) if item["name"] > after]
        limit = int(query.get("max-keys", _PAGE))
        entries = [_contents(item) for item in items[:limit]]
        for prefix in result.get("prefixes", []):
            entries.append(f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>")
        if len(items) > limit:
            token = escape(items[limit - 1]["name"])
            entries.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
        text = f"<ListBucketResult>{''.join(entries)}</ListBucketResult>"
        self._respond(200, body=text.encode())

    def _respond(
        self, status: int, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        self.send_response(status)
        length = str(len(body))
        for key, value in (headers or {}).items():
            if key.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif key.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                self.send_header(key, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Suppress the log."""


def _encode(name: str) -> str:
    """Return a percent-encoded object name as one part of a path."""
    return quote(unquote(name), safe="")


def _is(element: ElementTree.Element, tag: str) -> bool:
    return element.tag.rpartition("}")[2] == tag


def _contents(item: dict[str, Any]) -> str:
    return (
        f"<Contents><Key>{escape(item['name'])}</Key><Size>{item['size']}</Size>"
        f"<LastModified>{item['updated']}</LastModified><ETag>{escape(item['etag'])}</ETag>"
        "</Contents>"
    )
