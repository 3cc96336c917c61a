"""A schema registry in a thread of the test process, and the Protobuf compiler."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.http_server import serve


@dataclass(frozen=True)
class Registered:
    """A schema; ``references`` are the names of imports with their subjects, in version 1."""

    text: str
    schema_type: str = "AVRO"
    references: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def schema_registry(
    schemas: Mapping[int, Any], subjects: Mapping[str, int] | None = None
) -> Iterator[str]:
    """Serve schemas by their ids, and by subjects in version 1; schemas of Avro may be dicts."""
    registered = {
        number: schema if isinstance(schema, Registered) else Registered(json.dumps(schema))
        for number, schema in schemas.items()
    }

    class RegistryHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urllib.parse.urlsplit(self.path)
            match list(map(urllib.parse.unquote, address.path.strip("/").split("/"))):
                case ["schemas", "ids", number]:
                    number_or_none: int | None = int(number)
                case ["subjects", subject, "versions", _]:
                    number_or_none = (subjects or {}).get(subject)
                case _:
                    number_or_none = None
            schema = registered.get(number_or_none or 0)
            self.send_response(404 if schema is None else 200)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.end_headers()
            body: dict[str, Any] = {"error_code": 40403, "message": "Schema not found"}
            if schema is not None:
                text = schema.text
                if "format=serialized" in address.query and schema.schema_type == "PROTOBUF":
                    imports = {
                        name: registered[(subjects or {})[subject]].text
                        for name, subject in schema.references.items()
                    }
                    content = descriptors(text, imports)["record.proto"].SerializeToString()
                    text = base64.b64encode(content).decode()
                body = {"id": number_or_none, "version": 1, "schema": text}
                if schema.schema_type != "AVRO":
                    body["schemaType"] = schema.schema_type
                if schema.references:
                    body["references"] = [
                        {"name": name, "subject": subject, "version": 1}
                        for name, subject in schema.references.items()
                    ]
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    with serve(RegistryHandler) as port:
        yield f"http://127.0.0.1:{port}"


def header(number: int, *indexes: int) -> bytes:
    """Return the header of a value; for Protobuf with the indexes of the message."""
    varints = b""
    for index in (len(indexes), *indexes) if any(indexes) else (0,) * bool(indexes):
        zigzag = index << 1
        while zigzag > 0x7F:
            varints += bytes([zigzag & 0x7F | 0x80])
            zigzag >>= 7
        varints += bytes([zigzag])
    return struct.pack(">bI", 0, number) + varints


def descriptors(text: str, imports: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """Return the descriptors that protoc makes of a schema (record.proto) and of other files.

    A file follows those that it imports.
    """
    return _compiled(text, tuple((imports or {}).items()))


@cache
def _compiled(text: str, imports: tuple[tuple[str, str], ...]) -> Mapping[str, Any]:
    import grpc_tools
    from google.protobuf import descriptor_pb2

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = {**dict(imports), "record.proto": text}
        for import_name, import_text in texts.items():
            path = folder / import_name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(import_text, encoding="utf-8")
        known = Path(grpc_tools.__file__).parent / "_proto"
        options = [
            f"-I{folder}",
            f"-I{known}",
            "--include_imports",
            f"--descriptor_set_out={folder}/out",
        ]
        # In a process with TensorFlow, whose Protobuf library has the same symbols, protoc crashes.
        command = [sys.executable, "-m", "grpc_tools.protoc", *options, *texts]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            raise ValueError(f"protoc refuses {text}")
        files = descriptor_pb2.FileDescriptorSet.FromString((folder / "out").read_bytes())
    return {file.name: file for file in files.file}


def message_class(text: str, name: str, imports: Mapping[str, str] | None = None) -> Any:
    """Return the class that protoc makes of a message of a schema, by its full name."""
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for descriptor in descriptors(text, imports).values():
        pool.Add(descriptor)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
