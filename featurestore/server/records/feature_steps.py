"""One step of the lineage of a feature: the columns that it was made of, and what it became.

Plans of retrievals, definitions of views, window jobs and queries of SQL jobs name columns. Where
nothing does, as for a job in Python, the group or dataset is told as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy.engine import Connection

from featurestore.lineage.column_origins import (
    ColumnOrigins,
    Origin,
    origins_of_plan,
    origins_of_query,
    origins_of_window_job,
)
from featurestore.model.references import parse_group_reference
from featurestore.model.window_job import WindowJob
from featurestore.registry import (
    feature_views,
    featuregroups,
    features,
    jobs,
    training_datasets,
)
from featurestore.server.records import lineage_steps as steps
from featurestore.server.records import models
from featurestore.server.records.lineage_graph import Node
from featurestore.store import FeatureStore

Edges = list[tuple[Node, Node]]
Given = ParamSpec("Given")
T = TypeVar("T")
# Each has a manifest to be opened.
_MOST_DATASETS = 100


class FeatureSteps:
    """The steps around a feature; ``columns`` notes what it is called in datasets and views."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store
        self.columns: dict[Node, tuple[str, ...]] = {}
        self.is_cut = False  # more datasets pin the group than are looked into
        self._whole: set[Node] = set()  # datasets of which every model needs the feature

    def _ask(
        self,
        query: Callable[Concatenate[Connection, Given], T],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> T:
        """Return what the registry says; none of its connections is held while files are read."""
        with self._store.session.registry.reading() as connection:
            return query(connection, *given, **named)

    def sources(self, node: Node) -> Edges:
        """Return the edges that lead to a node."""
        if node.kind != "feature":
            return [] if node.kind == "job" else self._ask(steps.sources, node)
        group, column = node.parts
        edges: Edges = []
        for before, made in self._ask(steps.sources, Node("featuregroup", group, node.version)):
            origins = self._columns_of(made, before.name) if before.kind == "job" else None
            if origins is None:
                edges.append((before, node))
                continue
            for origin in origins.columns.get(column, ()):
                edges.append((self._feature(origin), before))
                edges.append((before, node))
        return edges

    def results(self, node: Node) -> Edges:
        """Return the edges that leave a node."""
        if node.kind == "feature":
            return [*self._groups(node), *self._datasets(node), *self._views(node)]
        if node.kind == "job":
            return []  # its edges to features came with those that lead to it
        edges = self._ask(steps.results, node)
        return [edge for edge in edges if edge[1].kind != "model" or self._takes(edge[1])]

    def _takes(self, model: Node) -> bool:
        """Tell whether a model needs the feature."""
        spec = models.get(self._store, model.name, model.version).spec
        dataset = Node("training_dataset", spec.dataset["name"], spec.dataset["version"])
        inputs = {each.name for each in spec.inputs}
        return dataset in self._whole or not inputs.isdisjoint(self.columns.get(dataset, ()))

    def _feature(self, origin: Origin) -> Node:
        """Return the feature of an origin; without a version it is of the latest one."""
        group, version = origin.group
        if version is None:
            version = self._ask(featuregroups.versions, group)[-1]
        return Node("feature", f"{group}.{origin.column}", version)

    def _groups(self, node: Node) -> Edges:
        """Return the edges to the features that jobs compute from a feature."""
        group = Node("featuregroup", node.parts[0], node.version)
        edges: Edges = []
        for _, job in self._ask(steps.results, group):
            if job.kind != "job":
                continue
            for _, made in self._ask(steps.results, job):
                origins = self._columns_of(made, job.name)
                if origins is None:
                    edges += [(node, job), (job, made)]
                    continue
                for name in _made_of(node, origins):
                    feature = Node("feature", f"{made.name}.{name}", made.version)
                    edges += [(node, job), (job, feature)]
        return edges

    def _columns_of(self, made: Node, job: str) -> ColumnOrigins | None:
        """Return what the columns of a group were made of, None where its job does not tell."""
        registered = self._ask(jobs.find, job)
        if registered is None or made.kind != "featuregroup" or made.version is None:
            return None
        if registered.spec.kind == "window":
            return origins_of_window_job(WindowJob.of(registered.spec))
        if registered.spec.kind != "sql":
            return None
        tables = {}
        for name, text in registered.spec.inputs.items():
            if "/" not in text and ":" not in text:  # neither a path nor a registered source
                tables[name] = parse_group_reference(text)
        names = self._ask(features.names, made.name, made.version)
        return origins_of_query(registered.spec.code, tables, names)

    def _datasets(self, node: Node) -> Edges:
        """Return the edges to the training datasets that hold a feature, or are joined by it."""
        pins = self._ask(training_datasets.pinning, node.parts[0], node.version or 1)
        pinned = list(dict.fromkeys((name, version) for name, version, _ in pins))
        self.is_cut |= len(pinned) > _MOST_DATASETS
        edges: Edges = []
        for name, version in pinned[-_MOST_DATASETS:]:
            dataset = Node("training_dataset", name, version)
            manifest = self._store.get_training_dataset(name, version=version).manifest
            if manifest.plan is None:
                self._whole.add(dataset)
                edges.append((node, dataset))
                continue
            origins = origins_of_plan(manifest.plan)
            kept = {column.name for column in manifest.columns}
            found = tuple(each for each in _made_of(node, origins) if each in kept)
            if found:
                self.columns[dataset] = found
            if _is_of(node, origins.rows):
                self._whole.add(dataset)
            if found or dataset in self._whole:
                edges.append((node, dataset))
        return edges

    def _views(self, node: Node) -> Edges:
        """Return the edges to the feature views that name a feature."""
        group, column = node.parts
        edges: Edges = []
        for spec in self._ask(feature_views.reading, group, node.version):
            found = []
            for each in spec.features:
                if (each.group, each.version, each.column) == (group, node.version, column):
                    found.append(each.name)
            if found:
                view = Node("feature_view", spec.name, spec.version)
                self.columns[view] = tuple(found)
                edges.append((node, view))
        return edges


def _made_of(node: Node, origins: ColumnOrigins) -> list[str]:
    """Return the columns that were made of a feature."""
    return [name for name, found in origins.columns.items() if _is_of(node, found)]


def _is_of(node: Node, origins: Iterable[Origin]) -> bool:
    group, column = node.parts
    for each in origins:
        name, version = each.group
        if (name, each.column) == (group, column) and version in (None, node.version):
            return True
    return False
