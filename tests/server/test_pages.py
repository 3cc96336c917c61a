"""Pages: links resolve, text is escaped, and nothing is computed for display."""

from __future__ import annotations

import html
import re
from collections import deque
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

import featurestore
from featurestore import experiments
from featurestore.model.finding import Finding
from featurestore.model.monitor_report import MonitorReport
from featurestore.model.times import Window
from featurestore.server import ServerSettings, charts, create_app
from featurestore.server.charts import chart_findings
from featurestore.server.rendering import deviation
from featurestore.server.settings import POLICY
from featurestore.statistics import compare_statistics
from featurestore.store import FeatureStore
from tests.server.conftest import HARM, NOON
from tests.statistics.example_tables import statistics_of

STARTS = ["/", "/search?q=s", "/groups", "/datasets", "/views", "/jobs", "/monitors", "/lineage"]
STARTS += ["/experiments", "/models"]
STARTS += ["/basket?feature=visits@v1.sales&q=tw", "/groups?sort=changed&fresh=1d&owner=ann"]
USED_ICON = re.compile('icons.svg#([^"]+)')


def pages_of(client: TestClient) -> dict[str, str]:
    """Return every page reachable by links with its text."""
    result: dict[str, str] = {}
    waiting = deque(STARTS)
    while waiting and len(result) < 200:
        address = waiting.popleft()
        if address in result:
            continue
        response = client.get(address)
        assert response.status_code == 200, f"{address}: {response.text[:500]}"
        result[address] = response.text
        if not response.headers["content-type"].startswith("text/html"):
            continue
        for link in re.findall(r'(?:href|src)="([^"]+)"', response.text):
            link = html.unescape(link).split("#")[0]
            if link.startswith("?"):
                link = address.split("?")[0] + link
            assert link.startswith("/") or not link, f"{address} leads to {link}"
            if link:
                waiting.append(link)
    return result


@pytest.fixture(scope="module")
def pages(client: TestClient) -> dict[str, str]:
    return pages_of(client)


def test_links_of_pages_resolve(pages: dict[str, str]) -> None:
    for address in ("/groups/visits/1/statistics", "/datasets/sells/2/diff", "/jobs/doubled"):
        assert address in pages
    assert any(address.endswith("/log") for address in pages)
    assert "/static/htmx.min.js" in pages


def test_pages_escape_stored_texts(pages: dict[str, str]) -> None:
    shown = 0
    for address, text in pages.items():
        if "<html" not in text and "<table" not in text:
            continue
        assert "<script>alert" not in text, address
        assert not re.search(r"<[^>]*\son\w+=", text), address
        shown += html.escape(HARM[:30]) in text or "&lt;script&gt;alert" in text
    assert shown >= 4
    assert not any("xyzxyzxyz" in text for text in pages.values())


def test_pages_have_no_inline_scripts_or_styles(pages: dict[str, str]) -> None:
    for address, text in pages.items():
        if "<html" in text:
            assert not re.search(r"<script(?![^>]*src=)", text), address
            assert " style=" not in text, address
            assert "<style" not in text, address
    assert "unsafe" not in POLICY


def test_empty_store_pages_show_first_command(
    empty_client: TestClient,
) -> None:
    assert "create_featuregroup" in empty_client.get("/").text
    for address in [
        "/groups",
        "/datasets",
        "/views",
        "/jobs",
        "/monitors",
        "/lineage",
        "/experiments",
        "/models",
        "/search?q=x",
    ]:
        assert empty_client.get(address).status_code == 200


def test_lists_are_paged_and_csv_formulas_escaped(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "many") as store:
        for number in range(5):
            store.create_featuregroup([{"x": 1}], f"group_{number}", description="=1+1")
        client = TestClient(create_app(store, ServerSettings(page=2)), base_url="http://localhost")
        names = re.findall(r'href="/groups/(group_\d)/1"', client.get("/groups?page=3").text)
        assert names == ["group_4"]
        table = client.get("/groups?format=csv&page=2").text.splitlines()
        assert [line.split(",")[0] for line in table] == ["name", "group_2", "group_3"]
        assert table[1].endswith(",'=1+1")


def test_groups_sorted_by_change_list_newest_first(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "order") as store:
        for name in ("a", "b"):
            store.create_featuregroup([{"x": 1}], name)
        store.insert_into_featuregroup([{"x": 2}], "a")
        client = TestClient(create_app(store), base_url="http://localhost")
        names = re.findall(r'href="/groups/([ab])/1"', client.get("/groups?sort=changed").text)
        assert names == ["a", "b"]


def test_search_filters_by_kind_tag_owner_and_freshness(
    client: TestClient, served_store: FeatureStore
) -> None:
    def find_results(address: str, **filters: str) -> set[str]:
        page = client.get(address, params={"q": "s", **filters})
        assert page.status_code == 200
        return set(re.findall(r'<ul class="found">(.*)</ul>', page.text, re.DOTALL))

    def listed(**filters: str) -> set[str]:
        items = client.get("/api/v1/search", params={"q": "s", **filters}).json()["items"]
        assert all(
            item["address"] in str(find_results("/search", **shown(filters))) for item in items
        )
        return {item["name"] for item in items}

    def shown(filters: dict[str, str]) -> dict[str, str]:
        renamed = {"changed_within": "fresh"}
        return {renamed.get(name, name): value for name, value in filters.items()}

    assert {"visits", "visits.shop", "sells", "selling", "seller"} <= listed()
    assert listed(kind="feature") == {"visits.shop", "visits.seen", "visits.sales", "doubled.shop",
                                      "doubled.seen"}  # fmt: skip
    assert listed(kind="model") == {"seller"}
    of_doubled = "from featuregroups where name = 'doubled'"
    with served_store.session.registry.transaction() as connection:
        changed = connection.execute(sa.text(f"select changed {of_doubled}")).scalar_one()
        connection.execute(sa.text("update featuregroups set changed = 0 where name = 'doubled'"))
    recent = listed(kind="feature", changed_within="1h")
    assert recent == {"visits.shop", "visits.seen", "visits.sales"}
    assert "selling" not in listed(changed_within="1h")
    served_store.add_featuregroup_tag("doubled", "owner", "bea")
    assert listed(owner="bea") == listed(tag="owner=bea") == {"doubled.shop", "doubled.seen"}
    served_store.remove_featuregroup_tag("doubled", "owner")
    assert listed(owner="nobody") == set()
    assert "with these filters" in client.get("/search?q=s&owner=nobody").text
    assert client.get("/views/selling").status_code == 200
    assert client.get("/api/v1/search?q=s&changed_within=soon").status_code == 422
    with served_store.session.registry.transaction() as connection:
        again = sa.text("update featuregroups set changed = :changed where name = 'doubled'")
        connection.execute(again, {"changed": changed})


def test_statistics_page_shows_drift_between_commits(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "drifting") as store:
        store.create_featuregroup([{"x": float(number)} for number in range(100)], "g")
        for start in (1000, 0):
            rows = [{"x": float(start + number)} for number in range(100)]
            store.insert_into_featuregroup(rows, "g", mode="overwrite")
        client = TestClient(create_app(store), base_url="http://localhost")
        history = client.get("/groups/g/1/history").text
        links = re.findall(r'href="(/groups/g/1/statistics[^"]*)"', history)
        links = [html.unescape(link) for link in links if "before" in link]
        assert [link.partition("?")[2] for link in links] == [
            "before=2&after=3",
            "before=1&after=2",
        ]
        first = store.get_featuregroup_statistics("g", delta_version=1)
        second = store.get_featuregroup_statistics("g", delta_version=2)
        page_text = html.unescape(client.get(links[1]).text)
        assert str(compare_statistics(first, second)) in page_text
        unchanged = html.unescape(client.get("/groups/g/1/statistics?before=1").text)
        assert str(compare_statistics(first, store.get_featuregroup_statistics("g"))) in unchanged
        store.create_featuregroup([{"x": 1.0}], "uncounted", statistics=False)
        response = client.get("/groups/uncounted/1/statistics?before=1")
        assert "delta_version=1" in response.text


def test_validation_page_shows_failing_rows_with_reasons(tmp_path: Path) -> None:
    between = {"column": "age", "min_value": 0, "max_value": 120}
    expected = [{"type": "expect_column_values_to_be_between", "kwargs": between}]
    with featurestore.connect(tmp_path / "checked") as store:
        store.create_featuregroup([{"id": 1, "age": 30}], "people", expectations=expected)
        rows = [{"id": 2, "age": 4_711}, {"id": 3, "age": 40}]
        store.insert_into_featuregroup(rows, "people", validation="warn")
        store.insert_into_featuregroup(rows, "people", validation="quarantine")
        client = TestClient(create_app(store), base_url="http://localhost")
        text = client.get("/groups/people/1/validation").text
        reports, _, quarantine = text.partition("Quarantined rows and reasons")
        assert reports.count("4711") == 2  # a sample of each report that failed
        assert quarantine.count("4711") == 1
        assert "expect_column_values_to_be_between(column=&#39;age&#39;" in quarantine
        table = client.get("/groups/people/1/validation?format=csv").text.splitlines()
        assert table[0].split(",")[0] == "reasons"
        assert table[1].endswith(",2,4711")


def test_statistics_page_does_not_compute_statistics(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "uncounted") as store:
        store.create_featuregroup([{"x": 1}], "plain", statistics=False)
        client = TestClient(create_app(store), base_url="http://localhost")
        assert "update_featuregroup_statistics" in client.get("/groups/plain/1/statistics").text
        assert not (tmp_path / "uncounted/feature_groups/plain/1_statistics").exists()
        response = client.get("/api/v1/featuregroups/plain/1/statistics")
        assert response.status_code == 404
        assert "update_featuregroup_statistics" in response.json()["hint"]


class NoSpark:
    """A Spark engine that must not be used."""

    name = "spark"


def test_spark_store_pages_work_without_spark(
    client: TestClient, served_store: FeatureStore
) -> None:
    session = replace(served_store.session, engine_source=NoSpark())  # type: ignore[arg-type]
    app = create_app(FeatureStore(session))
    with TestClient(
        app, base_url="http://localhost", raise_server_exceptions=False
    ) as spark_client:
        for address in (
            "/groups/visits/2/rows",
            "/basket?feature=visits.sales",
            "/datasets/sells/1",
        ):
            assert spark_client.get(address).text == client.get(address).text
        refused = spark_client.post("/jobs/doubled/run", data={"what": "due"})
        assert refused.status_code == 400
        assert "featurestore job run doubled --due" in refused.text


def test_dataset_verify_button_returns_result(client: TestClient) -> None:
    assert "ok, 2 rows" in client.post("/datasets/sells/1/verify").text


def test_run_log_outside_log_folder_is_refused(
    client: TestClient, served_store: FeatureStore
) -> None:
    run = served_store.get_runs("doubled")[0]
    address = f"/jobs/doubled/runs/{run.run_id}/log"
    assert client.get(address).status_code == 200
    with served_store.session.registry.transaction() as connection:
        logs = connection.exec_driver_sql("SELECT run_id, log FROM runs").all()
        connection.exec_driver_sql("UPDATE runs SET log = 'registry.db'")
    assert client.get(address).status_code == 404
    with served_store.session.registry.transaction() as connection:
        for run_id, log in logs:
            connection.exec_driver_sql("UPDATE runs SET log = ? WHERE run_id = ?", (log, run_id))


def test_monitor_page_matches_library_history(
    client: TestClient, served_store: FeatureStore
) -> None:
    text = client.get("/monitors/watch").text
    history = served_store.get_monitor_history("watch")
    assert text.count("<details") == 3  # a page of three windows
    assert f"{history[0].rows} rows of visits" in text
    table = client.get("/monitors/watch?format=csv&page=2").text.splitlines()
    findings = sum(len(report.findings) for report in history[3:6])
    assert len(table) == findings + 1
    assert client.get("/monitors/doubled").status_code == 404


def test_icons_of_pages_are_exactly_the_shipped_ones(client: TestClient) -> None:
    shipped = set(re.findall('<symbol id="([^"]+)"', client.get("/static/icons.svg").text))
    drawn = {name for text in pages_of(client).values() for name in USED_ICON.findall(text)}
    assert drawn <= shipped
    folder = Path(charts.__file__).parent
    sources = "".join(
        file.read_text() for file in folder.rglob("*.*") if file.suffix in (".py", ".html")
    )
    assert [name for name in shipped if f'"{name}"' not in sources] == []
    assert "ISC License" in client.get("/static/lucide.LICENSE").text


def test_basket_button_creates_view_of_selected_features(flights_copy: FeatureStore) -> None:
    with TestClient(create_app(flights_copy), base_url="http://localhost") as client:
        references = ["weather@v1.temp", "weather@v1.wind"]
        basket = client.get("/basket", params={"feature": references}).text
        assert "one for each row of weather" in basket
        form = {"name": "air", "features": "\n".join(references), "description": "Air"}
        created = client.post("/basket/view", data=form, follow_redirects=False)
        assert created.headers["location"] == "/views/air/1"
        assert list(flights_copy.get_feature_view("air").features) == references
        unknown = client.post("/basket/view", data={**form, "features": "weather@v1.none"})
        assert unknown.status_code == 404


def test_small_histogram_of_long_tails_is_clipped_and_counts_outliers() -> None:
    fares = [float(number % 100) for number in range(10_000)] + [1e6] * 30
    statistics = statistics_of(
        pa.table({"fare": fares, "even": [number % 100 for number in range(10_030)]})
    )
    picture = charts.histogram(statistics.column("fare"))
    heights = [float(height) for height in re.findall(r'<rect[^>]* height="([\d.]+)"', picture)]
    assert len(heights) == 24
    assert min(heights) > 0.5 * max(heights)
    assert "about 50 outside" in picture
    assert "outside" not in charts.histogram(statistics.column("even"))
    # All values but a few are equal: no bar can show the range between the quantiles.
    constant = statistics_of(pa.table({"x": [0.0] * 9_999 + [1e9]})).column("x")
    assert "outside" not in charts.histogram(constant)


def test_deviation_of_times_has_a_unit() -> None:
    times = [NOON + timedelta(hours=hour) for hour in range(48)]
    statistics = statistics_of(pa.table({"at": times, "n": list(range(48))}))
    assert deviation(statistics.column("at")) == "14 h"
    assert deviation(statistics.column("n")) == "14"


def test_monitor_charts_shade_windows_and_put_words_first() -> None:
    windows = [
        Window(NOON + timedelta(hours=hour), NOON + timedelta(hours=hour + 1)) for hour in range(4)
    ]
    history = []
    for number, window in enumerate(windows):
        shift = Finding("drift", "temp", "psi", number * 0.6, None, 0.2, number > 0, number > 1)
        # The measure of wind is missing in the second window.
        wind = Finding("metric", "wind", "value", 5.0, 3.0, 8.0)
        findings = (shift,) if number == 1 else (shift, wind)
        history.insert(0, MonitorReport("watch", HARM, 1, 1, window, 10, findings))
    temp, wind_chart = chart_findings(history)
    assert str(temp.finding) == "temp: distribution shifted; PSI 1.8, limit 0.2"
    assert (temp.windows_out, wind_chart.windows_out) == (3, 0)
    assert temp.picture.count("alarmed") == 2
    assert temp.picture.count("suspected") == 1
    assert "bound" in temp.picture
    # A gap separates the first window, a point, from the line of the last two.
    assert wind_chart.picture.count("<circle") == wind_chart.picture.count('class="value"') == 1
    assert str(wind_chart.finding) == "wind: within bounds; 5, limits 3 to 8"


def test_compare_page_draws_runs_together(client: TestClient, served_store: FeatureStore) -> None:
    runs = experiments.get_runs("seller", store=served_store)[1:]
    listed = client.get("/experiments?name=seller&dataset=sells&version=1&page=1").text
    for run in runs:
        assert f'href="/experiments/{run.id}"' in listed
        assert f"{run.params['rate']}</td>" in listed
    ids = "&".join(f"run={run.id}" for run in runs)
    text = client.get(f"/experiments/compare?{ids}").text
    assert len(re.findall('<polyline class="run-[12]" points="64.0,', text)) == 2
    assert f'href="?{html.escape(ids)}&amp;format=csv"' in text
    table = client.get(f"/experiments/compare?{ids}&format=csv").text.splitlines()
    losses = [line for line in table if ",loss," in line]
    actual = []
    for run in runs:
        for step, value in run.history("loss").items():
            actual.append(f"{run.id},loss,{step},{value}")
    assert losses == actual
    for wrong in ("", f"run={runs[0].id}", f"{ids}&run=third"):
        assert client.get(f"/experiments/compare?{wrong}").status_code == 400
    assert client.get(f"/experiments/compare?run={runs[0].id}&run=none-such").status_code == 404


def test_model_page_links_run_dataset_and_lineage(client: TestClient) -> None:
    text = client.get("/models/seller/2").text
    for address in ("/datasets/sells/1", "/experiments/2024", "/models/seller/1", "/lineage?node="):
        assert f'href="{address}' in text
    assert 'href="/models/seller/2"' in client.get("/datasets/sells/1").text
    table = client.get("/models?format=csv").text.splitlines()
    assert [line.split(",")[:3] for line in table[1:]] == [
        ["seller", "2", "development"],
        ["seller", "1", "development"],
    ]


def test_metrics_match_library_metrics(client: TestClient, served_store: FeatureStore) -> None:
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'featurestore_featuregroup_rows{featuregroup="doubled"}' in response.text
    assert _series(response.text) == _series(served_store.get_metrics())


def _series(text: str) -> list[str]:
    """Return the metrics without values, since ages grow."""
    return sorted(line.rsplit(" ", 1)[0] for line in text.splitlines() if line[0] != "#")


def test_unknown_address_returns_404_with_suggestions(client: TestClient) -> None:
    missing = client.get("/groups/visit/1")
    assert missing.status_code == 404
    assert "<h1>Feature group not found" in missing.text
    assert "Unknown feature group" in missing.text
    assert "FeatureGroupNotFound" not in missing.text
    assert "visits" in missing.text
    assert "/nothing</code> does not exist" in client.get("/nothing").text
    assert client.get("/nothing").status_code == 404
    assert client.get("/groups/visits/first").status_code == 422
    assert client.get("/lineage?node=nothing").status_code == 400


def test_search_without_results_suggests_similar_names(client: TestClient) -> None:
    for address in ("/search?q=vists", "/suggestions?q=vists"):
        text = client.get(address).text
        assert '<a href="/search?q=visits">visits</a>' in text, address
        assert "Did you mean" in text
    assert "Did you mean" not in client.get("/search?q=visits").text


def test_lists_show_owner_and_status(tmp_path: Path) -> None:
    expected = [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "x"}}]
    with featurestore.connect(tmp_path / "owned") as store:
        owner = {"owner": "ann"}
        store.create_featuregroup([{"x": 1}], "good", tags=owner, expectations=expected)
        store.create_featuregroup([{"x": 1}], "bad", expectations=expected)
        store.insert_into_featuregroup([{"x": None}], "bad", validation="warn")
        frame = store.get_featuregroup("good")
        store.create_training_dataset(frame, "rows", tags=owner, seed=4711, progress=False)
        store.create_feature_view("view", features=["good.x"], tags=owner)
        client = TestClient(create_app(store), base_url="http://localhost")
        groups = client.get("/groups").text
        assert groups.count('class="state failed"') == groups.count('class="state ok"') == 1
        for address in ("/groups", "/datasets", "/views"):
            assert "<td>ann</td>" in client.get(address).text, address
        assert "<dd>4711</dd>" in client.get("/datasets/rows/1").text


def test_job_page_starts_at_computed_windows(client: TestClient) -> None:
    text = client.get("/jobs/doubled").text
    strip = re.findall(r'<li class="(\w+)"><span title="([^"]+)"', text)
    assert [state for state, _ in strip[:4]] == ["done", "done", "done", "due"]
    assert strip[0][1].startswith("2024-03-01 12:00:00")
    assert "due windows after them" in text
    assert "<dt>done windows</dt><dd>3</dd>" in text
    assert re.search(r"\d\.\d\d s</td>", text)
