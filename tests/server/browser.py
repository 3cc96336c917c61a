"""A running server, and a browser that opens its pages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from featurestore.server import ServerSettings, create_app
from featurestore.store import FeatureStore
from tests.maven import NotFetched, cache_folder

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Downloads and other responses that are not pages.
_NO_PAGES = ("/static", "/api", "/metrics", "/healthz")
# SVG links have their address as an attribute only.
_LINKS = """Array.from(document.querySelectorAll("a[href]"), (link) => {
  const url = new URL(link.getAttribute("href"), location.href);
  return url.pathname + url.search;
})"""


@contextmanager
def listening(store: FeatureStore, settings: ServerSettings) -> Iterator[str]:
    """Yield the address of a server of this process."""
    import uvicorn

    server = uvicorn.Server(
        uvicorn.Config(create_app(store, settings), port=0, log_level="warning", lifespan="off")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def installed_browser() -> str | None:
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


def browser_folder() -> Path:
    return cache_folder() / "browsers"


def fetch_browser() -> None:
    """Download the browser of Playwright once, if the machine has none.

    Raises:
        NotFetched: The download failed, or Playwright is not installed.
    """
    folder = browser_folder()
    if installed_browser() is not None or (folder / "complete").exists():
        return
    command = [sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"]
    environment = {**os.environ, "PLAYWRIGHT_BROWSERS_PATH": str(folder)}
    try:
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotFetched("Playwright did not fetch its browser in five minutes") from None
    if process.returncode:
        lines = (process.stdout + process.stderr).strip().splitlines()
        raise NotFetched(f"Playwright could not fetch its browser: {' '.join(lines[-2:])[-300:]}")
    (folder / "complete").touch()


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a browser, or skip the test with the reason."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: no browser walks the pages"
    )
    program = installed_browser()
    if program is None:
        if not (browser_folder() / "complete").exists():
            pytest.skip("Chromium is neither installed nor fetched: no browser walks the pages")
        os.environ["PLAYWRIGHT_BROWSERS_PATH"] = str(browser_folder())
    with playwright.sync_playwright() as started:
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = started.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@contextmanager
def tab(browser: Any, address: str, **settings: Any) -> Iterator[tuple[Any, list[str]]]:
    """Yield a page and its console errors, including refused scripts and styles."""
    context = browser.new_context(base_url=address, **settings)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
    page.on("console", lambda message: _note(errors, page.url, message))
    yield page, errors
    context.close()


def _note(errors: list[str], address: str, message: Any) -> None:
    if message.type in ("error", "warning"):
        errors.append(f"{address}: {message.text}")


def walk(page: Any, starts: list[str]) -> Iterator[str]:
    """Open one page of each kind reachable by links, and yield its address."""
    waiting = deque(starts)
    patterns: set[str] = set()
    while waiting:
        address = waiting.popleft()
        if kind_of(address) in patterns:
            continue
        patterns.add(kind_of(address))
        response = page.goto(address)
        assert response.status == 200, f"{address}: {response.status}"
        yield address
        waiting.extend(filter(_is_page, page.evaluate(_LINKS)))


def _is_page(address: str) -> bool:
    is_file = "format=csv" in address or address.endswith("/log")
    return not is_file and not address.startswith(_NO_PAGES)


def kind_of(address: str) -> str:
    """Return the common path pattern of pages with one template.

    >>> kind_of("/groups/visits/1/history?before=2"), kind_of("/experiments/20240301-120000-a")
    ('/groups/_/_/history', '/experiments/_')
    """
    first, *segments = urlsplit(address).path.strip("/").split("/")
    words = {"statistics", "history", "rows", "validation", "compare", "verify", "diff"}
    words |= {"search", "backfill"}
    masked_segments = [segment if segment in words else "_" for segment in segments]
    return re.sub("/$", "", "/".join(["", first, *masked_segments])) or "/"
