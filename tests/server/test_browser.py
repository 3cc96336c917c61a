"""Pages in a browser: with and without scripts, wide and narrow, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import featurestore
from featurestore.server import ServerSettings
from featurestore.store import FeatureStore
from tests.maven import NotFetched
from tests.server.axe import axe
from tests.server.browser import chromium, kind_of, listening, tab, walk
from tests.server.private_groups import PASSWORD, fill

STARTS = ["/", "/search?q=s", "/basket?feature=visits@v1.sales&q=tw", "/groups?sort=changed"]
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 740}
Look = tuple[str, dict[str, int]]
LOOKS: list[Any] = [
    pytest.param([("light", WIDE), ("dark", PHONE)], id="light and wide, dark and narrow"),
    pytest.param(
        [("dark", WIDE), ("light", PHONE)],
        id="dark and wide, light and narrow",
        marks=pytest.mark.soak,
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(browser: Any, served_store: FeatureStore) -> Iterator[str]:
    with listening(served_store, ServerSettings(page=3)) as address:
        yield address


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_pages_of_every_kind_open_without_errors(browser: Any, address: str, script: bool) -> None:
    """Links are checked by another test without a browser."""
    patterns = set()
    with tab(browser, address, java_script_enabled=script) as (page, errors):
        for actual in walk(page, STARTS):
            assert page.locator("h1").count() == 1, actual
            patterns.add(kind_of(actual))
    assert errors == []
    assert patterns >= {
        "/", "/search", "/groups", "/groups/_/_", "/groups/_/_/history", "/groups/_/_/rows",
        "/groups/_/_/statistics", "/groups/_/_/validation", "/datasets", "/datasets/_/_",
        "/datasets/_/_/verify", "/datasets/_/_/diff", "/views", "/views/_/_", "/jobs", "/jobs/_",
        "/jobs/_/backfill",
        "/monitors", "/monitors/_", "/experiments", "/experiments/_", "/models", "/models/_/_",
        "/lineage", "/basket",
    }  # fmt: skip


def test_lists_with_script_search_sort_and_page(browser: Any, address: str) -> None:
    with tab(browser, address) as (page, errors):
        page.goto("/groups?sort=changed")
        names = page.locator("tbody th").all_inner_texts()
        page.get_by_role("button", name="Name", exact=True).click()
        assert page.locator("tbody th").all_inner_texts() == sorted(names)
        page.get_by_role("button", name="Name", exact=True).click()
        assert page.locator("tbody th").all_inner_texts() == sorted(names, reverse=True)
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy the table").click()
        page.get_by_role("button", name="Copied").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()").splitlines()
        assert [line.split("\t")[0] for line in copied] == ["Name", *sorted(names, reverse=True)]
        page.get_by_role("searchbox", name="Search the store").fill("twi")
        suggested = page.locator("#suggestions a").first
        suggested.wait_for()
        assert suggested.inner_text() == "doubled.twice"
        page.get_by_role("searchbox", name="Name").fill("doub")
        page.locator("tbody tr").nth(1).wait_for(state="detached")
        assert "q=doub" in page.url
        assert page.get_by_role("button", name="Changed", exact=True).count() == 0  # one row
        page.get_by_role("searchbox", name="Name").fill("")
        page.get_by_role("button", name="Changed", exact=True).wait_for()
        page.goto("/monitors/watch")
        page.evaluate("window.same = true")
        page.get_by_role("link", name="Next").click()
        page.wait_for_url("**page=2")
        assert page.locator("header").count() == page.locator("main").count() == 1
        assert page.evaluate("window.same")
        page.goto("/search")
        page.get_by_label("Names, features").fill("sel")
        page.wait_for_selector("#results a")
        assert "selling" in page.locator("#results").inner_text()
    assert errors == []


def test_lists_without_script_filter_and_page(browser: Any, address: str) -> None:
    with tab(browser, address, java_script_enabled=False) as (page, errors):
        page.goto("/groups")
        page.get_by_role("searchbox", name="Name").fill("doub")
        page.get_by_role("button", name="Show").click()
        assert page.locator("tbody th").all_inner_texts() == ["doubled"]
        page.goto("/groups/visits/1")
        page.get_by_label("select sales").check()
        page.get_by_role("button", name="basket").click()
        assert "store.get_features(" in page.locator("main").inner_text()
        page.goto("/experiments")
        for box in page.locator("input[name=run]").all()[1:]:
            box.check()
        page.get_by_role("button", name="Compare").click()
        assert page.locator("svg polyline.run-2").count() >= 2
    assert errors == []


@pytest.mark.parametrize("looks", LOOKS)
def test_axe_reports_no_serious_violations(browser: Any, address: str, looks: list[Look]) -> None:
    """One page of each kind; no page is wider than the screen."""
    try:
        script = axe()
    except NotFetched as error:
        pytest.skip(f"nothing looks for barriers: {error}")
    patterns: set[str] = set()
    barriers = []
    with tab(browser, address) as (page, errors):
        for actual in walk(page, STARTS):
            patterns.add(kind_of(actual))
            page.evaluate(script)
            for scheme, size in looks:
                page.emulate_media(color_scheme=scheme)
                page.set_viewport_size(size)
                barriers += [(actual, scheme, *barrier) for barrier in barriers_of(page)]
    assert not barriers, "\n".join(map(str, barriers))
    assert errors == []
    assert len(patterns) >= 24


def barriers_of(page: Any) -> list[tuple[str, Any]]:
    """Return the accessibility violations of the current page."""
    result: list[tuple[str, Any]] = []
    actual = page.evaluate("axe.run({resultTypes: ['violations']})")
    for violation in actual["violations"]:
        if violation["impact"] in ("serious", "critical"):
            nodes = [node["html"] for node in violation["nodes"]]
            result.append((violation["id"], nodes[:3]))
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    if wide > 0:
        result.append(("wider than the screen", wide))
    return result


# User, and the expected text of a private job's page and of the audit log.
ROLES = [("ann", 200, 200), ("wil", 404, 403), ("mia", 200, 403), ("non", 403, 403)]


@pytest.fixture(scope="module")
def guarded(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("guarded")
    with featurestore.connect(folder / "store") as store:
        fill(store, folder)
        with listening(store, ServerSettings(auth=True)) as address:
            yield address


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_sign_in_shows_pages_of_each_role(browser: Any, guarded: str, script: bool) -> None:
    for name, job, log in ROLES if script else ROLES[:2]:
        with tab(browser, guarded, java_script_enabled=script) as (page, _):
            page.goto("/groups")
            page.get_by_label("Name").fill(name)
            page.get_by_label("Password").fill(PASSWORD)
            page.locator("main").get_by_role("button").first.click()
            page.wait_for_url("**/groups")
            groups = page.locator("main").inner_text()
            assert ("salaries" in groups) == (name in ("ann", "mia")), name
            assert ("visits" in groups) == (name != "non"), name
            assert page.goto("/jobs/raise_pay").status == job, name
            buttons = page.get_by_role("button", name="Pause").count()
            assert buttons == (1 if name == "ann" else 0), name
            assert page.goto("/audit").status == log, name
