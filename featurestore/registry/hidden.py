"""Objects that are hidden from a user: private groups, and all objects derived from them.

Privacy follows the stored origins: an object, including a group, is hidden if it was computed from a
hidden object, has read it or contains its name. A role on a group makes the group visible, and also
the objects derived only from visible groups. A group that was deleted while it was private stays
hidden, and the objects that were computed from it. The graph of origins is loaded completely.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model.validation import IN_FEATURE
from featurestore.registry import access
from featurestore.registry.origins import (
    DATASET,
    FOLDERS,
    GROUP,
    JOB,
    MODEL,
    RUN,
    Object,
    parse_path,
)
from featurestore.registry.tables import (
    experiment_runs,
    featuregroups,
    job_definitions,
    lineage,
    models,
    origin_edges,
    origins,
    tags,
    training_dataset_pins,
)

# The key in a connection's ``info`` for the objects that are hidden from its reader.
HIDDEN = "featurestore_hidden"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_WORD = re.compile(r"[a-z0-9_]+")
# The targets of these jobs are feature groups that contain computed or copied data.
_FILLING = ("python", "sql", "window", "stream")

Artifact = tuple[str, str, int]
GroupVersion = tuple[str, int | None]


def extract_words(text: str) -> frozenset[str]:
    """Return the words in a string that may be names.

    >>> sorted(extract_words("the rows of visits@2"))
    ['2', 'of', 'rows', 'the', 'visits']
    """
    return frozenset(_WORD.findall(text))


Source = tuple[str, int | None]


@dataclass(frozen=True)
class HiddenObjects:
    """The hidden objects: groups, (kind, name, version) of derived outputs, sources and jobs.

    ``sources`` contains their names in lineage, with a version or with None for all versions.
    ``runs`` hides all experiment runs: a run's inputs are known only to its code, so runs are
    visible only to readers of the entire store.
    """

    groups: frozenset[str] = frozenset()
    outputs: frozenset[Artifact] = frozenset()
    sources: frozenset[Source] = frozenset()
    jobs: frozenset[str] = frozenset()
    runs: bool = False

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that must not appear in messages to this user."""
        return self.groups | self.jobs | {name for _, name, _ in self.outputs}

    def is_mentioned_in(self, text: str) -> bool:
        """Return whether a string contains a hidden name."""
        return not self.names.isdisjoint(extract_words(text))


def find_hidden_objects(
    connection: Connection,
    *,
    granted: Collection[str],
    reads_store: bool,
    made_public: Collection[str] = (),
) -> HiddenObjects:
    """Return the objects that are hidden from a user with roles on some groups.

    If ``reads_store``, the user can read all groups that are not private, otherwise only groups on
    which the user has a role. ``made_public`` are private groups that count as public.
    """
    groups = set(access.private_groups_of_store(connection)).difference(made_public)
    if not reads_store:
        groups |= _all_group_names(connection)
    groups -= set(granted)
    sealed = sa.select(origins.c.id).where(origins.c.sealed).limit(1)
    if not groups and reads_store and connection.execute(sealed).first() is None:
        return HiddenObjects()
    closure = _Closure(connection, granted=frozenset(granted), hides_runs=not reads_store)
    closure.hide_groups(groups)
    closure.hide_deleted(every_group=not reads_store)
    closure.complete()
    return HiddenObjects(
        frozenset(closure.groups),
        frozenset(closure.outputs),
        frozenset(closure.sources),
        frozenset(closure.jobs),
        runs=not reads_store,
    )


def find_opened_objects(connection: Connection, group: str) -> list[str]:
    """Return what all readers of the store can read only after a group is made public, sorted.

    What was computed from an earlier group of this name, which was deleted while it was private, is
    not opened.
    """
    before = find_hidden_objects(connection, granted=(), reads_store=True)
    after = find_hidden_objects(connection, granted=(), reads_store=True, made_public=[group])
    readable_objects = [f"feature group {name}" for name in before.groups - after.groups]
    readable_objects += [f"job {name}" for name in before.jobs - after.jobs]
    for object_kind, name, version in before.outputs - after.outputs:
        noun = object_kind.replace("_", " ")
        readable_objects.append(
            f"{noun} {name}" if object_kind == RUN else f"{noun} {name}@v{version}"
        )
    return sorted(readable_objects)


@dataclass(frozen=True)
class _JobWords:
    """A job definition: the words it contains, and the words in its inputs."""

    name: str
    target: str | None
    words: frozenset[str]
    reads: frozenset[str]


@dataclass
class _Closure:
    """The transitive closure of hidden groups through origins and names in definitions."""

    connection: Connection
    granted: frozenset[str]
    hides_runs: bool
    groups: set[str] = field(default_factory=set)
    outputs: set[Artifact] = field(default_factory=set)
    sources: set[Source] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        # All edges are loaded once, since the closure visits them several times.
        self._origins = load_graph(self.connection)
        self._hidden_ids: set[str] = set()
        self._waiting: list[str] = []
        self._paths = _paths_of_groups(self.connection)
        self._jobs = _job_definitions(self.connection)
        self._trained = _runs_of_models(self.connection)
        self._compared = _compared_groups(self.connection)
        # Runs store the names that they mention as tags, so their files need not be opened.
        mentions = sa.select(tags.c.name, tags.c.key).where(tags.c.kind == RUN)
        self._named_by_runs = [(row[0], row[1]) for row in self.connection.execute(mentions)]

    def hide_groups(self, names: Collection[str]) -> None:
        """Hide groups on which the user has no role."""
        # A role on a group makes it visible, so the closure does not pass through it.
        for name in set(names) - self.groups - self.granted:
            self.groups.add(name)
            self.sources.add((name, None))
            self.sources.update((path, None) for path in self._paths.get(name, ()))
            for identifier in self._origins.last_of_groups.get(name, ()):
                self._hide_id(identifier)

    def hide_deleted(self, *, every_group: bool) -> None:
        """Hide what was deleted while it was private, or all deleted groups without a role."""
        for identifier, version in self._origins.objects.items():
            if version.object_kind == GROUP and version.name in self.granted:
                continue
            if identifier in self._origins.sealed or (every_group and version.object_kind == GROUP):
                self._hide_id(identifier)

    def complete(self) -> None:
        """Hide derived objects until no more are found."""
        before = None
        while before != (len(self._hidden_ids), len(self.jobs), len(self.outputs)):
            # The sets only grow, so equal sizes mean that nothing was added.
            before = (len(self._hidden_ids), len(self.jobs), len(self.outputs))
            self._follow_origins()
            # The result of a comparison states which values the other group has.
            for name, compared_groups in self._compared:
                if not self.groups.isdisjoint(compared_groups):
                    self.hide_groups([name])
            self._hide_jobs()
            self._hide_runs()

    def _hide_id(self, identifier: str) -> None:
        if identifier not in self._hidden_ids:
            self._hidden_ids.add(identifier)
            self._waiting.append(identifier)

    def _hide_object(self, version: Object) -> None:
        """Hide the current dataset, view, model, run or job with a name and version."""
        identifier = self._origins.last.get(version)
        if identifier is not None:
            self._hide_id(identifier)
        if version.object_kind == JOB:
            self.jobs.add(version.name)
        else:
            self.outputs.add((version.object_kind, version.name, version.version))
            if version.object_kind in FOLDERS:
                self.sources.add(
                    (f"{FOLDERS[version.object_kind]}/{version.name}", version.version)
                )

    def _follow_origins(self) -> None:
        """Hide the current objects of hidden creations, and all that was computed from them."""
        while self._waiting:
            identifier = self._waiting.pop()
            version = self._origins.objects[identifier]
            if version.object_kind == GROUP:
                if self._origins.represents_group(identifier):
                    self.hide_groups([version.name])
            elif self._origins.last[version] == identifier:
                self._hide_object(version)
            for derived in self._origins.derived.get(identifier, ()):
                derived_object = self._origins.objects[derived]
                if derived_object.object_kind != GROUP or derived_object.name not in self.granted:
                    self._hide_id(derived)

    def _hidden_names(self) -> set[str]:
        """Return the names that hide the jobs and runs that mention them.

        The names of removed outputs are free words again: jobs and runs that were registered before
        the removal have the output as an origin.
        """
        names = set(self.groups)
        for output in self.outputs:
            if self._origins.last.get(Object(*output)) not in self._origins.ended:
                names.add(output[1])
        return names

    def _hide_jobs(self) -> None:
        """Hide jobs that name hidden objects, and the groups they write."""
        names = self._hidden_names()
        for job in self._jobs:
            if job.name not in self.jobs and names.isdisjoint(job.words):
                continue
            self._hide_object(Object(JOB, job.name))
            # Hide the target even if the job has not written yet: it may have rejected rows and
            # reports.
            if job.target is not None and not names.isdisjoint(job.reads):
                self.hide_groups([job.target])

    def _hide_runs(self) -> None:
        """Hide runs that mention hidden objects, and the models of hidden runs."""
        names = self._hidden_names()
        for run, name in self._named_by_runs:
            if name in names:
                self._hide_object(Object(RUN, run))
        for model, run, dataset in self._trained:
            if self.hides_runs or dataset in self.outputs or (RUN, run, 1) in self.outputs:
                self._hide_object(Object(*model))


def _all_group_names(connection: Connection) -> set[str]:
    """Return all group names in the registry, including those of deleted groups."""
    return {
        name
        # Pins and lineage still contain the names of deleted groups.
        for column in (featuregroups.c.name, training_dataset_pins.c.featuregroup, lineage.c.source)
        for name in connection.execute(sa.select(column).distinct()).scalars()
        # Sources in lineage are also paths and registered sources.
        if _NAME.fullmatch(name)
    }


def _paths_of_groups(connection: Connection) -> dict[str, set[str]]:
    """Return the table paths by which lineage refers to groups, as jobs may read them."""
    paths: dict[str, set[str]] = {}
    query = sa.select(lineage.c.source).where(lineage.c.source.contains("/")).distinct()
    for source in connection.execute(query).scalars():
        parsed = parse_path(source)
        if parsed is not None and parsed[0] == GROUP:
            paths.setdefault(parsed[1], set()).add(source)
    return paths


def _job_definitions(connection: Connection) -> list[_JobWords]:
    """Return all definitions of all jobs, including previous versions."""
    columns = job_definitions.c
    definitions = []
    # The target may still contain rows that an earlier definition computed.
    for name, text in connection.execute(sa.select(columns.name, columns.spec)):
        try:
            spec = json.loads(text)
        except ValueError:
            spec = text  # all words in a damaged definition count as names
        definitions.append(_to_job_words(name, spec))
    return definitions


def _compared_groups(connection: Connection) -> list[tuple[str, frozenset[str]]]:
    """Return the groups whose expectations name features of other groups, with their words."""
    columns = featuregroups.c
    # Definitions are parsed only if they may contain such an expectation.
    query = sa.select(columns.name, columns.spec).where(columns.spec.contains(IN_FEATURE))
    compared = []
    for name, text in connection.execute(query):
        try:
            expectations = json.loads(text)["expectations"]
            kwargs = [
                expectation["kwargs"]
                for expectation in expectations
                if expectation["type"] == IN_FEATURE
            ]
            words = extract_words(" ".join(str(arguments["feature"]) for arguments in kwargs))
        except (ValueError, LookupError, TypeError):
            words = extract_words(text)  # all words in a damaged definition count as names
        compared.append((str(name), words))
    return compared


def _to_job_words(name: str, spec: Any) -> _JobWords:
    """Extract the words of a job definition."""
    words = frozenset(_string_words(spec))
    if not isinstance(spec, dict):
        return _JobWords(name, None, words, words)
    job_kind, target = spec.get("kind"), spec.get("target")
    # A query reads only its inputs, while a function may open any group that it mentions.
    fields = ("inputs",) if job_kind == "sql" else ("inputs", "code", "sources", "stream")
    input_words = frozenset(_string_words([spec.get(field) for field in fields]))
    fills_group = job_kind in _FILLING and isinstance(target, str)
    return _JobWords(name, target if fills_group else None, words, input_words)


def _string_words(value: Any) -> Iterator[str]:
    """Yield the words in all strings of a JSON value except its keys, which the format defines."""
    if isinstance(value, str):
        yield from _WORD.findall(value)
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _string_words(item)


def _runs_of_models(connection: Connection) -> list[tuple[Artifact, str, Artifact]]:
    """Return (model, run, dataset) for all models that were trained by a run."""
    run, model = experiment_runs.c, models.c
    query = sa.select(model.name, model.version, run.id, run.dataset, run.dataset_version)
    return [
        ((MODEL, row[0], row[1]), str(row[2]), (DATASET, row[3], row[4]))
        for row in connection.execute(query.join(experiment_runs, run.id == model.run))
    ]


# -- graph of origins -----------------------------------------------------------------------


@dataclass(frozen=True)
class OriginGraph:
    """The stored origins: what was computed from each creation of an object.

    ``objects`` are the objects by the ids of their creations, ``derived`` the ids of what was
    computed from a creation, ``last`` the id of the last creation of each object, and ``sealed``
    the creations that stay private, and ``ended`` the removed creations. ``registered`` has
    (name, version) of the groups that exist, and (name, None).
    """

    objects: dict[str, Object]
    derived: dict[str, list[str]]
    sealed: frozenset[str]
    ended: frozenset[str]
    last: dict[Object, str]
    registered: frozenset[GroupVersion]

    @cached_property
    def last_of_groups(self) -> dict[str, list[str]]:
        """The ids of the last creation of each version, by group name."""
        ids: dict[str, list[str]] = {}
        for version, identifier in self.last.items():
            if version.object_kind == GROUP:
                ids.setdefault(version.name, []).append(identifier)
        return ids

    def represents_group(self, identifier: str) -> bool:
        """Return whether a creation decides about the name of its group.

        A deleted version decides only if the group has no other version: its name may remain in the
        definitions of jobs.
        """
        version = self.objects[identifier]
        if self.last[version] != identifier:
            return False
        is_registered = (version.name, version.version) in self.registered
        return is_registered or (version.name, None) not in self.registered


def load_graph(connection: Connection) -> OriginGraph:
    """Read all stored origins."""
    columns = origins.c
    objects, sealed, ended, last = {}, set(), set(), dict[Object, tuple[int, str]]()
    query = sa.select(
        columns.id,
        columns.kind,
        columns.name,
        columns.version,
        columns.creation,
        columns.sealed,
        columns.ended,
    )
    for (
        identifier,
        object_kind,
        name,
        version,
        creation,
        is_sealed,
        has_ended,
    ) in connection.execute(query):
        objects[identifier] = Object(object_kind, name, version)
        last[objects[identifier]] = max(
            last.get(objects[identifier], (0, "")), (creation, identifier)
        )
        if is_sealed:
            sealed.add(identifier)
        if has_ended:
            ended.add(identifier)
    derived: dict[str, list[str]] = {}
    for child, parent in connection.execute(
        sa.select(origin_edges.c.derived, origin_edges.c.origin)
    ):
        derived.setdefault(parent, []).append(child)
    group = featuregroups.c
    registered: set[GroupVersion] = set()
    for name, version in connection.execute(sa.select(group.name, group.version)):
        registered.update({(name, version), (name, None)})
    last_ids = {version: identifier for version, (_, identifier) in last.items()}
    return OriginGraph(
        objects, derived, frozenset(sealed), frozenset(ended), last_ids, frozenset(registered)
    )
