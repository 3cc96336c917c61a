"""Pages of other origins in a signed-in browser change and read nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from featurestore.registry import access, jobs
from featurestore.server import ServerSettings
from featurestore.store import FeatureStore
from tests.http_server import serve
from tests.server.browser import chromium, listening, tab
from tests.server.private_groups import PASSWORD, fill

# What each form would change: address, fields, and how a browser encodes them.
FORMS: list[tuple[str, dict[str, str], str]] = [
    ("/sign-out", {}, "application/x-www-form-urlencoded"),
    ("/sign-in", {"name": "rea", "password": PASSWORD}, "application/x-www-form-urlencoded"),
    ("/account/tokens", {"scope": "admin", "label": "evil"}, "application/x-www-form-urlencoded"),
    ("/account/password", {"before": PASSWORD, "password": "evil evil evil"}, "multipart/form-data"),
    ("/jobs/raise_pay/pause", {}, "application/x-www-form-urlencoded"),
    ("/jobs/raise_pay/run", {"what": "latest"}, "text/plain"),
    ("/monitors/watch_pay/accept", {"until": "2024-03-01T13:00Z"}, "multipart/form-data"),
    ("/basket/view", {"name": "evil", "features": "visits.sales"}, "text/plain"),
    ("/datasets/of_visits/1/verify", {}, "application/x-www-form-urlencoded"),
    # A plain-text form with JSON content.
    ("/api/v1/featuregroups/visits/1/deletions", {'{"where": "true", "x": "': '"}'}, "text/plain"),
    ("/api/v1/featuregroups/visits/1/tags", {'{"key": "evil", "value": "': '"}'}, "text/plain"),
]  # fmt: skip
_FORM = """<form method="post" action="{}" enctype="{}">{}</form>
<script>document.forms[0].submit()</script>"""
_FETCHES = """<title>fetching</title><script>
const asked = {}.flatMap(([address, body, type]) => ["no-cors", "cors"].map((mode) =>
  fetch(address, {{method: "POST", mode, credentials: "include", body,
                  headers: {{"Content-Type": type}}}}).then((r) => r.type, () => "refused")));
Promise.all(asked).then((all) => {{ document.title = "done " + all.join(" ") }});
</script>"""
_READS = """<title>reading</title><script>
fetch("{}", {{credentials: "include"}}).then((r) => r.text()).then(
  (text) => {{ document.title = "read " + text }}, () => {{ document.title = "refused" }});
</script>"""


@contextmanager
def evil_origin() -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the port of a server of another origin, and its pages by path."""
    pages: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = pages.get(self.path, "").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    with serve(Handler) as port:
        yield port, pages


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def guarded_store(browser: Any, empty_store: FeatureStore, tmp_path: Path) -> FeatureStore:
    fill(empty_store, tmp_path)
    return empty_store


def changes_in(store: FeatureStore) -> list[str]:
    """Return the changes made through the server, and the state that a change would affect."""
    with store.session.registry.reading() as connection:
        entries = connection.exec_driver_sql("select id, action, subject, who from audit_log")
        state = [str(tuple(entry)) for entry in entries]
        state.append(str(access.list_tokens(connection, "ann")))
        state.append(str(access.find_user(connection, "ann")))
        state.append(str(jobs.get(connection, "raise_pay").paused))
    return [*state, str(store.featuregroup("visits").delta_version)]


def sign_in(page: Any) -> None:
    page.goto("/sign-in")
    page.locator("input[name=name]").fill("ann")
    page.locator("input[name=password]").fill(PASSWORD)
    page.locator("main button").first.click()
    page.wait_for_url("**/")


def test_cross_origin_pages_change_and_read_nothing(
    browser: Any, guarded_store: FeatureStore
) -> None:
    with (
        listening(guarded_store, ServerSettings(auth=True)) as address,
        evil_origin() as (port, pages),
        tab(browser, address) as (page, _),
    ):
        sign_in(page)
        before = changes_in(guarded_store)
        # Another port is another origin of the same site, to which cookies are sent.
        for origin in (f"http://127.0.0.1:{port}", f"http://localhost:{port}"):
            for number, (path, fields, encoding) in enumerate(FORMS):
                inputs = ""
                for name, value in fields.items():
                    inputs += f"<input name='{name}' value='{value}'>"
                pages[f"/form{number}"] = _FORM.format(address + path, encoding, inputs)
                with page.expect_response(address + path) as posted:
                    page.goto(f"{origin}/form{number}", wait_until="commit")
                assert posted.value.status == 403, (origin, path)
                page.wait_for_url(address + path)
            bodies = []
            for path, fields, encoding in FORMS:
                text = "&".join(f"{name}={value}" for name, value in fields.items())
                for content_type in (
                    encoding.replace("multipart/form-data", "text/plain"),
                    "application/json",
                ):
                    bodies.append([address + path, text, content_type])
            pages["/fetch"] = _FETCHES.format(json.dumps(bodies))
            page.goto(f"{origin}/fetch")
            page.wait_for_function("document.title.startsWith('done')")
            assert set(page.title().split()[1:]) <= {"opaque", "refused"}
            for path in ("/groups", "/api/v1/featuregroups/salaries", "/account"):
                pages["/read"] = _READS.format(address + path)
                page.goto(f"{origin}/read")
                page.wait_for_function("document.title != 'reading'")
                assert page.title() == "refused", (origin, path)
            pages["/frame"] = f"<iframe src='{address}/account'></iframe>"
            page.goto(f"{origin}/frame")
            page.wait_for_load_state("networkidle")
            assert page.frames[1].url.startswith("chrome-error:")
            assert "form_token" not in page.frames[1].content()
        assert changes_in(guarded_store) == before
        page.goto(
            "/jobs/raise_pay"
        )  # still signed in, and the forms of the server's own pages work
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Resume").wait_for()
    assert changes_in(guarded_store) != before
