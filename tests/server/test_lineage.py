"""The graph: everything that was read stands before what was made from it, and nothing overlaps."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from featurestore.server.drawing.graph import arrange, draw
from featurestore.server.records.lineage import Graph, Node, only

NODES = [Node("featuregroup", f"g{number}", 1) for number in range(12)]
PAIRS = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)), max_size=40)


@given(PAIRS)
def test_layers_hold_each_node_once_and_the_picture_has_no_overlaps(
    pairs: list[tuple[Node, Node]],
) -> None:
    edges = tuple(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))
    graph = Graph(tuple(NODES), edges)
    layers = arrange(graph)
    assert sorted(node for layer in layers for node in layer) == sorted(NODES)
    places = re.findall(r'<rect x="(\d+)" y="(\d+)"', draw(graph, focus=None, address="/"))
    assert len(set(places)) == len(NODES)


@given(PAIRS)
def test_what_was_read_stands_to_the_left(pairs: list[tuple[Node, Node]]) -> None:
    forward = [pair for pair in pairs if pair[0] < pair[1]]
    layers = arrange(Graph(tuple(NODES), tuple(dict.fromkeys(forward))))
    place = {node: number for number, layer in enumerate(layers) for node in layer}
    for before, after in forward:
        assert place[before] < place[after]


def test_edges_go_on_through_kinds_that_are_left_out() -> None:
    job = Node("job", "daily")
    first, second = NODES[:2]
    graph = Graph((first, job, second), ((first, job), (job, second)))
    assert only(graph, ["featuregroup"]).edges == ((first, second),)


def test_a_walk_goes_from_source_to_dataset_and_back(client: TestClient) -> None:
    def keys(node: str, **steps: int) -> set[str]:
        found = client.get("/api/v1/lineage", params={"node": node, **steps}).json()
        return {each["key"] for each in found["nodes"]}

    around = keys("featuregroup:visits@2")
    assert {"training_dataset:sells@1", "training_dataset:sells@2"} <= around
    assert "job:doubled" in keys("featuregroup:doubled@1")
    below = {"training_dataset:sells@1", "experiment:seller", "model:seller@1", "model:seller@2"}
    assert keys("training_dataset:sells@1", up=0) == below
    assert keys("experiment:seller", up=1, down=1) == below
    assert "experiment:seller" in keys("model:seller@1", up=1)
    whole = client.get("/api/v1/lineage").json()
    assert whole["complete"]
    assert {"from": "job:doubled", "to": "featuregroup:doubled@1"} in whole["edges"]
    assert {"from": "experiment:seller", "to": "model:seller@1"} in whole["edges"]
