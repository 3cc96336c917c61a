"""The nodes of lineage, and graphs of them."""

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
MOST_NODES = 400
_PAGES = {
    "featuregroup": "/groups/{name}/{version}",
    "feature": "/groups/{group}/{version}#feature-{column}",
    "feature_view": "/views/{name}/{version}",
    "training_dataset": "/datasets/{name}/{version}",
    "model": "/models/{name}/{version}",
    "job": "/jobs/{name}",
    "experiment": "/experiments?name={name}",
}


def called(kind: str) -> str:
    """Return a kind as people say it.

    >>> called("featuregroup"), called("training_dataset")
    ('feature group', 'training dataset')
    """
    return "feature group" if kind == "featuregroup" else kind.replace("_", " ")


@dataclass(frozen=True, order=True)
class Node:
    """Something that data came from or went to; jobs, experiments and sources have no version.

    A feature is called by its group and its own name: ``feature:weather.temp@1``.
    """

    kind: str
    name: str
    version: int | None = None

    @property
    def key(self) -> str:
        """The node as an address has it: ``featuregroup:weather@1``."""
        return f"{self.kind}:{self.label}"

    @property
    def label(self) -> str:
        """Name and version."""
        return self.name if self.version is None else f"{self.name}@{self.version}"

    @property
    def page(self) -> str | None:
        """The page of it, None where it has none."""
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
        """Return the node of a key, None where it is none.

        >>> Node.parse("featuregroup:weather@1")
        Node(kind='featuregroup', name='weather', version=1)
        """
        kind, _, label = key.partition(":")
        if kind not in KINDS or not label:
            return None
        name, _, version = label.rpartition("@")
        if name and version.isdecimal():
            found = cls(kind, name, int(version))
        else:
            found = cls(kind, label)
        is_whole = found.version is not None and all(found.parts)
        return found if kind != "feature" or is_whole else None


@dataclass(frozen=True)
class Graph:
    """Nodes, and edges from what was read to what was made. ``cut``: more than fits was left out.

    ``columns`` says, around a feature, which columns of a dataset or view it became.
    """

    nodes: tuple[Node, ...]
    edges: tuple[tuple[Node, Node], ...]
    cut: bool = False
    columns: Mapping[Node, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        nodes: Iterable[Node],
        edges: Iterable[tuple[Node, Node]],
        *,
        cut: bool,
        columns: Mapping[Node, tuple[str, ...]] | None = None,
    ) -> Graph:
        """Return a graph with those of some edges that stand between its nodes."""
        kept = list(nodes)
        inside = set(kept)
        between = []
        for before, after in dict.fromkeys(edges):
            if before in inside and after in inside and before != after:
                between.append((before, after))
        return cls(tuple(kept), tuple(between), cut, columns or {})

    def behind(self, node: Node) -> list[Node]:
        """Return all that was made of a node, the nearest first."""
        following: dict[Node, list[Node]] = {}
        for before, after in self.edges:
            following.setdefault(before, []).append(after)
        found = dict.fromkeys(following.get(node, ()))
        waiting = list(found)
        while waiting:
            for each in following.get(waiting.pop(0), ()):
                if each not in found and each != node:
                    found[each] = None
                    waiting.append(each)
        return list(found)
