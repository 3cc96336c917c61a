"""Reads of sources for a plan, before its draft of the registry.

A draft holds the write lock of a SQLite registry, and a source may respond slowly. Columns of new
external groups and topics of stream jobs are therefore read first. The draft uses the results, and
raises the errors at their definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from featurestore.define.definitions import Definition, GroupContent, JobContent
from featurestore.define.loading import Project
from featurestore.errors import FeatureStoreError
from featurestore.external.reading import build_source
from featurestore.model.project import SOURCE
from featurestore.model.source import SourceSpec
from featurestore.plugins.source import SourceQuery
from featurestore.registry import featuregroups, jobs, projects, sources
from featurestore.session import Session
from featurestore.sources import registration
from featurestore.sources.frame import source_schema
from featurestore.streams import check_topic


@dataclass(frozen=True)
class SourceReads:
    """The columns that queries of sources have, and the topics that exist, or their errors."""

    columns: Mapping[tuple[str, str], pa.Schema | FeatureStoreError]
    topics: Mapping[tuple[str, str], FeatureStoreError | None]

    def schema(self, session: Session, source: SourceSpec, query: SourceQuery) -> pa.Schema:
        """Return the columns of a query."""
        key = (source.name, query.hash)
        # Another process may have deleted the group since the sources were read.
        if key not in self.columns:
            return source_schema(session, source, query)
        columns = self.columns[key]
        if isinstance(columns, FeatureStoreError):
            raise columns
        return columns

    def check_topic(self, session: Session, source: str, topic: str) -> None:
        """Raise an error if a topic does not exist."""
        if (source, topic) not in self.topics:
            check_topic(session, registration.get(session, source), topic)
            return
        error = self.topics[source, topic]
        if error is not None:
            raise error


def read_sources(session: Session, loaded: Project, project: str) -> SourceReads:
    """Read what the definitions of new external groups and changed stream jobs refer to."""
    columns: dict[tuple[str, str], pa.Schema | FeatureStoreError] = {}
    topics: dict[tuple[str, str], FeatureStoreError | None] = {}
    usable = find_usable_sources(session, loaded, project)
    for definition in loaded.definitions:
        content = definition.content
        if isinstance(content, GroupContent) and content.declared.external is not None:
            source = usable.get(content.declared.external.source)
            query = content.query
            if source is None or query is None or _is_registered(session, definition):
                continue
            try:
                columns[source.name, query.hash] = source_schema(session, source, query)
            except FeatureStoreError as error:
                columns[source.name, query.hash] = error
        elif isinstance(content, JobContent) and content.job.spec.stream is not None:
            stream = content.job.spec.stream
            source = usable.get(stream.source)
            if source is None or _is_registered(session, definition):
                continue
            try:
                check_topic(session, source, stream.topic)
                topics[source.name, stream.topic] = None
            except FeatureStoreError as error:
                topics[source.name, stream.topic] = error
    return SourceReads(columns, topics)


def find_usable_sources(session: Session, loaded: Project, project: str) -> dict[str, SourceSpec]:
    """Return the sources by name as they will be after the plan, without refused definitions."""
    with session.registry.reading() as connection:
        usable = {spec.name: spec for spec in sources.list_all(connection)}
        owners = {name: projects.owner(connection, SOURCE, name) for name in usable}
    for definition in loaded.definitions:
        spec = definition.content
        if not isinstance(spec, SourceSpec) or owners.get(spec.name) not in (None, project):
            continue
        try:
            # This checks the URI and the options. The draft raises the error.
            build_source(session, spec)
        except FeatureStoreError:
            continue
        registration.grant_source(session, spec)
        usable[spec.name] = spec
    return usable


def _is_registered(session: Session, definition: Definition) -> bool:
    """Return whether a group, or a job with the same definition, is registered."""
    content = definition.content
    with session.registry.reading() as connection:
        if isinstance(content, JobContent):
            job = jobs.find(connection, definition.name)
            return job is not None and job.spec.hash == content.job.spec.hash
        assert isinstance(content, GroupContent)
        return featuregroups.find(connection, definition.name, content.version) is not None
