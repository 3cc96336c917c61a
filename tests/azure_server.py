"""A real Azure Blob Storage server on the loopback interface: Azurite, from npm."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from tests.maven import NotFetched, cache_folder
from tests.object_server import free_port, wait_for

VERSION = "3.35.0"
ACCOUNT = "storetests"
# A secret that must not appear in store files, logs or errors.
ACCOUNT_KEY = base64.b64encode(b"test-account-key-5d21e7aa").decode()


@dataclass(frozen=True)
class AzureServer:
    """A running server; containers are in memory."""

    port: int

    @property
    def options(self) -> dict[str, str]:
        """Return the ``storage_options=`` of a client."""
        return {
            "account_name": ACCOUNT,
            "account_key": ACCOUNT_KEY,
            "endpoint": f"http://127.0.0.1:{self.port}/{ACCOUNT}",
        }

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables of a client."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
            "AZURE_STORAGE_ENDPOINT": self.options["endpoint"],
        }

    def new_bucket(self, name: str) -> str:
        """Create an empty container and return its URI."""
        path = f"/{ACCOUNT}/{name}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        lines = ["PUT", *[""] * 11, *(f"{key}:{headers[key]}" for key in sorted(headers))]
        text = "\n".join([*lines, f"/{ACCOUNT}{path}", "restype:container"])
        signature = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256)
        encoded = base64.b64encode(signature.digest()).decode()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{encoded}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("PUT", f"{path}?restype=container", headers=headers)
            response = connection.getresponse()
            if response.status != 201:
                raise RuntimeError(f"no container: {response.status} {response.read()!r}")
        finally:
            connection.close()
        return f"az://{name}"


def azurite() -> Path:
    """Return the script of the server, installed on first use."""
    folder = cache_folder() / f"azurite-{VERSION}"
    script = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not (folder / "complete").exists():
        for program in ("node", "npm"):
            if shutil.which(program) is None:
                raise NotFetched(f"{program} is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            finished = subprocess.run(
                [*command, f"azurite@{VERSION}"],
                cwd=folder, capture_output=True, text=True, timeout=420, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NotFetched("npm did not install Azurite in seven minutes") from None
        if finished.returncode:
            raise NotFetched(f"npm could not install Azurite: {finished.stderr[-300:]}")
        (folder / "complete").touch()
    return script


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[AzureServer]:
    """Run a server while the block runs."""
    script = azurite()
    server = AzureServer(free_port())
    process = subprocess.Popen(
        [
            "node", str(script), "--silent", "--disableTelemetry", "--skipApiVersionCheck",
            "--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", str(server.port),
        ],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"},
    )  # fmt: skip
    try:
        wait_for(server.port, process)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=20)
