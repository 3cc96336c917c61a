"""The lineage graph: inputs are placed before outputs, without overlaps."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from featurestore.server.lineage import filter_kinds, graph_around
from featurestore.server.lineage_graph import Graph, Node
from featurestore.server.lineage_page import arrange, draw
from featurestore.store import FeatureStore

NODES = [Node("featuregroup", f"g{number}", 1) for number in range(12)]
PAIRS = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)), max_size=40)


@given(PAIRS)
def test_arrange_places_each_node_once_without_overlaps(
    pairs: list[tuple[Node, Node]],
) -> None:
    edges = tuple(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))
    graph = Graph(tuple(NODES), edges)
    layers = arrange(graph)
    assert sorted(node for layer in layers for node in layer) == sorted(NODES)
    positions = re.findall(r'<rect x="(\d+)" y="(\d+)"', draw(graph, focus=None, address="/"))
    assert len(set(positions)) == len(NODES)


@given(PAIRS)
def test_arrange_places_inputs_left_of_outputs(pairs: list[tuple[Node, Node]]) -> None:
    forward = [pair for pair in pairs if pair[0] < pair[1]]
    layers = arrange(Graph(tuple(NODES), tuple(dict.fromkeys(forward))))
    layer_numbers = {node: number for number, layer in enumerate(layers) for node in layer}
    for before, after in forward:
        assert layer_numbers[before] < layer_numbers[after]


@given(PAIRS)
def test_draw_long_edges_avoid_nodes(
    pairs: list[tuple[Node, Node]],
) -> None:
    edges = tuple(dict.fromkeys(pair for pair in pairs if pair[0] < pair[1]))
    picture = draw(Graph(tuple(NODES), edges), focus=None, address="/")
    boxes = []
    for x, y, height in re.findall(
        r'<rect x="(\d+)" y="(\d+)" width="\d+" height="(\d+)"', picture
    ):
        boxes.append((int(x), int(y), int(y) + int(height)))
    for first, start in zip(boxes, range(1, len(boxes) + 1), strict=True):
        for x, top, bottom in boxes[start:]:
            assert x != first[0] or top >= first[2] or bottom <= first[1]
    for line, x, y in re.findall(r'<path d="([^"]* (\d+) (\d+))h\d+"', picture):
        assert not any(
            x == str(box_left) and top < int(y) < bottom for box_left, top, bottom in boxes
        ), line


def test_filter_kinds_joins_edges_through_removed_nodes() -> None:
    job = Node("job", "daily")
    first, second = NODES[:2]
    graph = Graph((first, job, second), ((first, job), (job, second)))
    assert filter_kinds(graph, ["featuregroup"]).edges == ((first, second),)


def test_lineage_node_returns_sources_and_datasets(client: TestClient) -> None:
    def keys(node: str, **steps: int) -> set[str]:
        document = client.get("/api/v1/lineage", params={"node": node, **steps}).json()
        return {item["key"] for item in document["nodes"]}

    around = keys("featuregroup:visits@2")
    assert {"training_dataset:sells@1", "training_dataset:sells@2"} <= around
    assert "job:doubled" in keys("featuregroup:doubled@1")
    below = {"training_dataset:sells@1", "experiment:seller", "model:seller@1", "model:seller@2"}
    assert keys("training_dataset:sells@1", up=0) == below
    assert keys("experiment:seller", up=1, down=1) == below
    assert "experiment:seller" in keys("model:seller@1", up=1)
    graph = client.get("/api/v1/lineage").json()
    assert graph["complete"]
    doubled = {"kind": "featuregroup", "name": "doubled", "version": 1}
    assert {"key": "featuregroup:doubled@1", **doubled} in graph["nodes"]
    assert {"from": "job:doubled", "to": "featuregroup:doubled@1"} in graph["edges"]
    assert {"from": "experiment:seller", "to": "model:seller@1"} in graph["edges"]


def test_lineage_feature_returns_derived_features_and_models(client: TestClient) -> None:
    """Through a job query, a dataset plan, a view, and the inputs of a model."""

    def keys(node: str, **steps: int) -> set[str]:
        document = client.get("/api/v1/lineage", params={"node": node, **steps}).json()
        return {item["key"] for item in document["nodes"]}

    sales = "feature:visits.sales@2"
    downstream = keys(sales, up=0)
    job_and_dataset = {"job:doubled", "feature:doubled.twice@1", "training_dataset:sells@1"}
    assert {
        sales,
        *job_and_dataset,
        "feature_view:selling@1",
        "experiment:seller",
        "model:seller@1",
    } <= downstream
    assert "feature:doubled.shop@1" not in downstream
    assert keys("feature:doubled.twice@1") == {sales, "job:doubled", "feature:doubled.twice@1"}
    assert keys("feature:visits.note@2") == {"feature:visits.note@2"}
    assert "training_dataset:sells@1" in keys("feature:visits.shop@2")  # rows are joined by it
    shown = client.get("/lineage", params={"node": sales}).text
    assert "Affected by changes of visits.sales@2" in shown
    assert 'href="/groups/doubled/1#feature-twice"' in shown
    assert client.get("/lineage?node=feature:visits@2").status_code == 400
    names = "".join(client.get(f"/groups/visits/{version}").text for version in (1, 2))
    assert "/lineage?node=feature%3Avisits.sales%402" in names


JOB = """
import featurestore
featurestore.sql_job(
    "daily", featuregroup="daily", primary_key="zone", event_time="at",
    sql="select ZONE, sum(fare) as Fare, $window_end as at from trips where tip > 0 group by all",
    inputs={"trips": "trips"}, schedule="0 0 * * *", start="2024-01-01T00:00Z", retries=0,
)
"""


def test_graph_of_feature_follows_query_of_sql_job(
    empty_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    trips = {
        "zone": ["a"],
        "at": [datetime(2024, 1, 1, 6, tzinfo=UTC)],
        "fare": [1.0],
        "tip": [2.0],
        "id": [3],
    }
    empty_store.create_featuregroup(trips, "trips", primary_key="zone", event_time="at")
    (tmp_path / "jobs.py").write_text(JOB)
    empty_store.register_jobs(tmp_path / "jobs.py")
    empty_store.run_job("daily", window="2024-01-01T00:00Z")
    job = Node("job", "daily")

    def neighbors(node: Node) -> set[Node]:
        edges = graph_around(empty_store, node).edges
        return {*[target for source, target in edges if source == job]} | {
            source for source, target in edges if target == job
        }

    fare, total = Node("feature", "trips.fare", 1), Node("feature", "daily.Fare", 1)
    assert neighbors(fare) == neighbors(total) == {fare, total}
    # A filter determines all rows of the group.
    tip = Node("feature", "trips.tip", 1)
    assert neighbors(tip) == {tip, Node("featuregroup", "daily", 1)}
    assert neighbors(Node("feature", "trips.id", 1)) == set()
