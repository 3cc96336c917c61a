"""Nodes and graphs of lineage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

KINDS = (
    "source",
    "job",
    "featuregroup",
    "feature",
    "feature_view",
    "training_dataset",
    "experiment",
    "model",
)
MAX_NODES = 400
_PAGES = {
    "featuregroup": "/groups/{name}/{version}",
    "feature": "/groups/{group}/{version}#feature-{column}",
    "feature_view": "/views/{name}/{version}",
    "training_dataset": "/datasets/{name}/{version}",
    "model": "/models/{name}/{version}",
    "job": "/jobs/{name}",
    "experiment": "/experiments?name={name}",
}


def kind_label(kind: str) -> str:
    """Return the display name of a kind.

    >>> called("featuregroup"), called("training_dataset")
    ('feature group', 'training dataset')
    """
    return "feature group" if kind == "featuregroup" else kind.replace("_", " ")


@dataclass(frozen=True, order=True)
class Node:
    """A node of lineage; jobs, experiments and sources have no version.

    The key of a feature contains its group: ``feature:weather.temp@1``.
    """

    kind: str
    name: str
    version: int | None = None

    @property
    def key(self) -> str:
        """Key of the node in URLs: ``featuregroup:weather@1``."""
        return f"{self.kind}:{self.label}"

    @property
    def label(self) -> str:
        """Name and version."""
        return self.name if self.version is None else f"{self.name}@{self.version}"

    @property
    def page(self) -> str | None:
        """URL path of the page of the node, None without a page."""
        pattern = _PAGES.get(self.kind)
        if pattern is None:
            return None
        group, column = self.parts
        return pattern.format(name=self.name, version=self.version, group=group, column=column)

    @property
    def parts(self) -> tuple[str, str]:
        """Group and column of a feature."""
        group, _, column = self.name.partition(".")
        return group, column

    @classmethod
    def parse(cls, key: str) -> Node | None:
        """Parse a key; None if it is invalid.

        >>> Node.parse("featuregroup:weather@1")
        Node(kind='featuregroup', name='weather', version=1)
        """
        kind, _, label = key.partition(":")
        if kind not in KINDS or not label:
            return None
        name, _, version = label.rpartition("@")
        if name and version.isdecimal():
            node = cls(kind, name, int(version))
        else:
            node = cls(kind, label)
        is_complete = node.version is not None and all(node.parts)
        return node if kind != "feature" or is_complete else None


@dataclass(frozen=True)
class Graph:
    """Nodes and edges from inputs to outputs; ``truncated``: nodes beyond the limit are missing.

    ``columns`` maps datasets and views to the columns that are derived from a feature.
    """

    nodes: tuple[Node, ...]
    edges: tuple[tuple[Node, Node], ...]
    truncated: bool = False
    columns: Mapping[Node, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def from_edges(
        cls,
        nodes: Iterable[Node],
        edges: Iterable[tuple[Node, Node]],
        *,
        truncated: bool,
        columns: Mapping[Node, tuple[str, ...]] | None = None,
    ) -> Graph:
        """Build a graph from nodes and the edges between them; other edges are dropped."""
        shown_nodes = list(nodes)
        node_set = set(shown_nodes)
        inner_edges = [
            (before, after)
            for before, after in dict.fromkeys(edges)
            if before in node_set and after in node_set and before != after
        ]
        return cls(tuple(shown_nodes), tuple(inner_edges), truncated, columns or {})

    def descendants(self, node: Node) -> list[Node]:
        """Return all descendants of a node, nearest first."""
        following: dict[Node, list[Node]] = {}
        for before, after in self.edges:
            following.setdefault(before, []).append(after)
        reached = dict.fromkeys(following.get(node, ()))
        waiting = list(reached)
        while waiting:
            for each in following.get(waiting.pop(0), ()):
                if each not in reached and each != node:
                    reached[each] = None
                    waiting.append(each)
        return list(reached)
