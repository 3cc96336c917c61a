"""Versioned objects in the registry: common operations, tags and reports, feature views and models.

Each kind of object has a table with one row per version. Tags, lineage, window aggregates, search
documents and validation reports refer to a version by kind, name and number. ``VersionedTable``
handles all kinds; feature groups and training datasets, which have more columns, use it in their
own modules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from featurestore.errors import (
    FeatureStoreError,
    FeatureViewNotFound,
    ModelNotFound,
    did_you_mean,
    listing,
)
from featurestore.model.arguments import check_version
from featurestore.model.json_object import MalformedJson
from featurestore.model.paths import TRAININGDATASETS
from featurestore.model.times import to_micros, utc_now
from featurestore.registry import lineage, origins, search_documents, tables
from featurestore.registry.rows import is_version, lock, translate_parse_errors
from featurestore.registry.stores import unregistered_error
from featurestore.registry.tables import featuregroups, is_latest, tags, validation_reports
from featurestore.registry.unregistered import is_unregistered

# A command that reads only groups imports no definitions of views and models.
if TYPE_CHECKING:
    from featurestore.model.feature_view import FeatureViewSpec
    from featurestore.model.registered_model import ModelAnnotations, ModelSpec

_DATASET = "training_dataset"
# The tables whose rows refer to a version by kind, name and number.
_DEPENDENT_TABLES = (
    tables.tags,
    tables.lineage,
    tables.window_features,
    tables.validation_reports,
)


@dataclass(frozen=True)
class VersionedTable:
    """All versions of one kind of object.

    Args:
        kind: The kind in tags, lineage, aggregates, search documents and reports.
        noun: The name of the kind in messages.
        table: A table with the columns ``name`` and ``version``.
        not_found: The error class for an unknown name or version.
        latest_hint: The hint for an unknown version; ``{name}`` and ``{version}`` are replaced by
        the latest version.
        creation_hint: The hint for an unknown name if no similar name exists.
        suggest: Returns a hint for an unknown name that is similar to existing names.
        list_command: The command that lists the names.
    """

    object_kind: str
    noun: str
    table: sa.Table
    not_found: type[FeatureStoreError]
    latest_hint: str
    creation_hint: str
    suggest: Callable[[str, list[str]], str | None] = lambda _name, _names: None
    list_command: str | None = None

    def versions(self, connection: Connection, name: str) -> list[int]:
        """Return the versions of a name in ascending order; empty if the name does not exist."""
        columns = self.table.c
        query = sa.select(columns.version).where(columns.name == name).order_by(columns.version)
        # SQLite stores a string in an integer column if another program inserts one.
        with translate_parse_errors(f"the versions of {self.noun} {name!r}"):
            return [check_version(int(number)) for number in connection.execute(query).scalars()]

    def names(self, connection: Connection) -> list[str]:
        """Return all names, sorted."""
        column = self.table.c.name
        query = sa.select(column).distinct().order_by(column)
        return [str(name) for name in connection.execute(query).scalars()]

    def list_all(
        self,
        connection: Connection,
        *conditions: sa.ColumnElement[bool],
        newest_first: bool = False,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[tuple[str, int]]:
        """Return name and version of all versions that match the conditions, or of one page.

        They are sorted by name and version; with ``newest_first``, the newest version of each name
        comes first.
        """
        columns = self.table.c
        version = columns.version.desc() if newest_first else columns.version
        query = sa.select(columns.name, columns.version).where(*conditions)
        rows = connection.execute(query.order_by(columns.name, version).limit(limit).offset(offset))
        return [(str(row.name), check_version(row.version)) for row in rows]

    def row(
        self, connection: Connection, name: str, version: int | None = None
    ) -> Row[tuple[object, ...]] | None:
        """Return the row of a version (None: the latest), or None if it does not exist."""
        return connection.execute(self._row_query(name, version)).first()

    def row_for_update(
        self, connection: Connection, name: str, version: int
    ) -> Row[tuple[object, ...]] | None:
        """Return the row of a version and lock it until the end of the transaction.

        A transaction that changes the row depending on its values would otherwise undo the change
        of a concurrent one in Postgres. SQLAlchemy omits the lock for SQLite, where write
        transactions exclude each other.
        """
        return connection.execute(self._row_query(name, version).with_for_update()).first()

    def _row_query(self, name: str, version: int | None) -> sa.Select[Any]:
        columns = self.table.c
        query = sa.select(self.table).where(columns.name == name)
        if version is None:
            query = query.order_by(columns.version.desc()).limit(1)
        else:
            query = query.where(columns.version == version)
        return query

    def get(self, connection: Connection, name: str, version: int | None = None) -> tuple[str, int]:
        """Return the name and version number (None: the latest).

        Raises:
            FeatureStoreError: ``not_found``; the message lists the versions or the names.
        """
        existing = self.versions(connection, name)
        if existing and (version is None or version in existing):
            return name, existing[-1] if version is None else version
        raise self.missing(connection, name, version)

    def missing(self, connection: Connection, name: str, version: int | None) -> FeatureStoreError:
        """Return the error for an unknown name or version."""
        existing = self.versions(connection, name)
        unregistered = self.unregistered_error(connection, name, version)
        if unregistered is not None:
            return unregistered
        if existing:
            return self.not_found(
                f"{self.noun.capitalize()} {name!r} has no version {version}. "
                f"Available: {', '.join(map(str, existing))}.",
                hint=self.latest_hint.format(name=name, version=existing[-1]),
            )
        names = self.names(connection)
        command = self.list_command
        if command is not None:
            command = did_you_mean(name, names) or command
        return self.not_found(
            f"Unknown {self.noun} {name!r}. Available: {listing(names)}.",
            hint=self.suggest(name, names) or self.creation_hint,
            command=command,
        )

    def lock_version(self, connection: Connection, name: str, version: int) -> None:
        """Lock a version, registered or not, until the end of the transaction."""
        lock(connection, f"{self.object_kind}/{name}/{version}")

    def unregistered_error(
        self, connection: Connection, name: str, version: int | None
    ) -> FeatureStoreError | None:
        """Return the error for a published version that the registry lacks, None for others."""
        if not is_unregistered(connection, self.object_kind, name, version):
            return None
        part = "it" if version is None else f"version {version}"
        subject = f"{self.noun.capitalize()} {name!r}"
        return unregistered_error(connection, self.not_found, subject, part=part)

    def remove(self, connection: Connection, name: str, version: int) -> None:
        """Remove a version with all its rows in the registry, except its origins."""
        origins.end(connection, origins.Object(self.object_kind, name, version))
        self.clear(connection, name, version)

    def clear(self, connection: Connection, name: str, version: int) -> None:
        """Remove the rows of a version that is registered again."""
        self.lock_version(connection, name, version)
        columns = self.table.c
        is_row = sa.and_(columns.name == name, columns.version == version)
        connection.execute(self.table.delete().where(is_row))
        # These tables refer to several kinds of objects, so they have no foreign keys.
        for table in _DEPENDENT_TABLES:
            belongs = is_version(table, self.object_kind, name, version)
            connection.execute(table.delete().where(belongs))
        search_documents.remove(connection, self.object_kind, name, version)


def tags_of(connection: Connection, object_kind: str, name: str, version: int) -> dict[str, str]:
    """Return the tags of a version by key."""
    query = (
        sa.select(tags.c.key, tags.c.value)
        .where(is_version(tags, object_kind, name, version))
        .order_by(tags.c.key)
    )
    return {row.key: row.value for row in connection.execute(query)}


def tags_of_latest_groups(
    connection: Connection, object_kind: str, *, names: Collection[str]
) -> dict[tuple[str, int], dict[str, str]]:
    """Return the tags of the latest group versions as ``{(name, version): {key: value}}``."""
    tagged = sa.and_(tags.c.name == featuregroups.c.name, tags.c.version == featuregroups.c.version)
    query = (
        sa.select(tags)
        .join(featuregroups, tagged)
        .where(tags.c.kind == object_kind, tags.c.name.in_(names), is_latest(featuregroups))
        .order_by(tags.c.name, tags.c.key)
    )
    tags_by_version: dict[tuple[str, int], dict[str, str]] = {}
    for row in connection.execute(query):
        tags_by_version.setdefault((row.name, row.version), {})[row.key] = row.value
    return tags_by_version


def replace_tags(
    connection: Connection, object_kind: str, name: str, version: int, values: Mapping[str, str]
) -> None:
    """Replace the tags of a version."""
    connection.execute(tags.delete().where(is_version(tags, object_kind, name, version)))
    version_key = {"kind": object_kind, "name": name, "version": version}
    rows = [version_key | {"key": key, "value": value} for key, value in values.items()]
    if rows:
        connection.execute(tags.insert(), rows)
    texts = [text for tag in values.items() for text in tag]
    search_documents.replace(connection, object_kind, name, version, {search_documents.TAG: texts})


def add_validation_report(
    connection: Connection, object_kind: str, report: Mapping[str, Any]
) -> None:
    """Record a validation report, which is a JSON object with the schema ``validation_report``."""
    connection.execute(
        validation_reports.insert().values(
            kind=object_kind,
            name=report["name"],
            version=report["version"],
            delta_version=report.get("delta_version"),
            run_id=report.get("run_id"),
            policy=report["policy"],
            success=bool(report["success"]),
            rows=report["rows"],
            report=json.dumps(report),
            created=to_micros(utc_now()),
        )
    )


def validation_reports_of(
    connection: Connection, object_kind: str, name: str, version: int, *, limit: int | None = None
) -> list[dict[str, Any]]:
    """Return the ``limit`` newest reports of a version as JSON objects, oldest first."""
    columns = validation_reports.c
    query = (
        sa.select(columns.report)
        .where(is_version(validation_reports, object_kind, name, version))
        .order_by(columns.id.desc())
        .limit(limit)
    )
    with translate_parse_errors(f"the validation reports of {name!r} version {version}"):
        newest_first = [json.loads(text) for text in connection.execute(query).scalars()]
    return newest_first[::-1]


def describe_failed_validations(connection: Connection, run_id: str) -> list[str]:
    """Describe the failed validations of the rows that a run committed."""
    columns = validation_reports.c
    query = sa.select(columns.name, columns.policy, columns.rows).where(
        columns.run_id == run_id, columns.success.is_(False)
    )
    return [
        f"{rows:,} rows for {name} failed validation (policy {policy})"
        for name, policy, rows in connection.execute(query)
    ]


class _FeatureViews(VersionedTable):
    """Feature views, and the groups they read."""

    def add(self, connection: Connection, spec: FeatureViewSpec) -> None:
        """Register a version with its tags and source groups; replace an earlier registration."""
        name, version = spec.name, spec.version
        self.clear(connection, name, version)
        values = {"name": name, "version": version, "spec": json.dumps(spec.to_json())}
        connection.execute(self.table.insert().values(**values))
        replace_tags(connection, self.object_kind, name, version, spec.tags)
        inputs = [{"featuregroup": group, "version": number} for group, number in spec.groups]
        lineage.add(connection, self.object_kind, name, version, delta_version=None, inputs=inputs)
        lineage.replace_windows(connection, self.object_kind, name, version, spec.windows)

    def views_reading(
        self, connection: Connection, group: str, version: int | None = None
    ) -> list[FeatureViewSpec]:
        """Return the views that read a group (any version, or one of them)."""
        edges, columns = tables.lineage.c, self.table.c
        # Lineage contains the group and version of each input, so no definition is parsed to find
        # readers.
        readers = (
            sa.select(edges.name, edges.version)
            .where(edges.kind == self.object_kind, edges.source == group)
            .distinct()
        )
        if version is not None:
            readers = readers.where(edges.source_version == version)
        query = (
            sa.select(columns.name, columns.version, columns.spec)
            .where(sa.tuple_(columns.name, columns.version).in_(readers))
            .order_by(columns.name, columns.version)
        )
        return [_to_view_spec(row) for row in connection.execute(query)]

    def datasets_of(self, connection: Connection, name: str, version: int) -> list[tuple[str, int]]:
        """Return name and version of the training datasets created from a view."""
        from featurestore.model.feature_view import view_lineage_name

        edges = lineage.results(connection, view_lineage_name(name), version)
        return [(edge.name, edge.version) for edge in edges if edge.kind == _DATASET]

    def used_versions(self, connection: Connection, name: str) -> list[int]:
        """Return the versions from which training datasets were created, including deleted ones."""
        from featurestore.model.feature_view import view_lineage_name

        return _source_versions(connection, view_lineage_name(name))


def _to_view_spec(row: Row[*tuple[Any, ...]]) -> FeatureViewSpec:
    from featurestore.model.feature_view import FeatureViewSpec

    with translate_parse_errors(f"feature view {row.name!r} version {row.version}"):
        try:
            return FeatureViewSpec.from_json(json.loads(row.spec))
        except MalformedJson as error:
            raise ValueError(str(error)) from error


def _source_versions(connection: Connection, source: str) -> list[int]:
    versions = [edge.source_version for edge in lineage.results(connection, source)]
    return [version for version in versions if version is not None]


class _Models(VersionedTable):
    """Registered models with their stage, training run and training dataset."""

    def add(self, connection: Connection, spec: ModelSpec, annotations: ModelAnnotations) -> None:
        """Register a version with its tags and lineage; replace an earlier registration."""
        name, version, dataset = spec.name, spec.version, spec.dataset
        self.clear(connection, name, version)
        connection.execute(
            self.table.insert().values(
                name=name,
                version=version,
                stage=annotations.stage,
                run=spec.run,
                experiment=spec.experiment,
                dataset=dataset["name"],
                dataset_version=dataset["version"],
            )
        )
        replace_tags(connection, self.object_kind, name, version, annotations.tags)
        inputs: list[Mapping[str, Any]] = [
            {"source": f"{TRAININGDATASETS}/{dataset['name']}", "version": dataset["version"]}
        ]
        inputs += [
            {"featuregroup": group, "version": number} for group, number in spec.features.groups
        ]
        lineage.add(
            connection,
            self.object_kind,
            name,
            version,
            delta_version=None,
            inputs=inputs,
            run_id=spec.run,
        )
        if spec.run is not None:
            run = origins.Object(origins.RUN, spec.run)
            origins.record(connection, origins.Object(self.object_kind, name, version), [run])

    def annotate(
        self, connection: Connection, name: str, version: int, annotations: ModelAnnotations
    ) -> None:
        """Replace the stage and the tags of a registered version."""
        columns = self.table.c
        is_version = sa.and_(columns.name == name, columns.version == version)
        updated = self.table.update().where(is_version).values(stage=annotations.stage)
        # The version may have been removed meanwhile.
        if connection.execute(updated).rowcount:
            replace_tags(connection, self.object_kind, name, version, annotations.tags)

    def get(
        self,
        connection: Connection,
        name: str,
        version: int | None = None,
        *,
        stage: str | None = None,
    ) -> tuple[str, int]:
        """Return the name and version number (None: the latest), optionally in a stage.

        Raises:
            ModelNotFound: The message lists the versions with their stages, or the names.
        """
        columns = self.table.c
        query = sa.select(columns.version, columns.stage).where(columns.name == name)
        rows = connection.execute(query.order_by(columns.version)).all()
        matching = [
            check_version(row.version)
            for row in rows
            if version in (None, row.version) and stage in (None, row.stage)
        ]
        if matching:
            return name, matching[-1]
        if not rows:
            raise self.missing(connection, name, version)
        request = f"version {version}" if stage is None else f"version in stage {stage!r}"
        existing = listing([f"{row.version} ({row.stage})" for row in rows])
        raise ModelNotFound(
            f"Model {name!r} has no {request}. Available: {existing}.", hint=self.latest_hint
        )

    def of_run(self, connection: Connection, run: str) -> list[tuple[str, int]]:
        """Return name and version of the models that a run trained."""
        return self.list_all(connection, self.table.c.run == run)

    def of_dataset(
        self, connection: Connection, name: str, version: int, *, limit: int | None = None
    ) -> list[tuple[str, int]]:
        """Return name and version of the models trained on a dataset, or of the first ones."""
        columns = self.table.c
        is_trained_on = (columns.dataset == name, columns.dataset_version == version)
        return self.list_all(connection, *is_trained_on, limit=limit)

    def used_versions(self, connection: Connection, name: str) -> list[int]:
        """Return the versions with stored predictions, including deleted versions."""
        from featurestore.model.registered_model import model_lineage_name

        return _source_versions(connection, model_lineage_name(name))


feature_views = _FeatureViews(
    object_kind="feature_view",
    noun="feature view",
    table=tables.feature_views,
    not_found=FeatureViewNotFound,
    latest_hint="version=None selects the latest version",
    creation_hint="featurestore.create_feature_view(name, features=[...]) creates one",
)
models = _Models(
    object_kind="model",
    noun="model",
    table=tables.models,
    not_found=ModelNotFound,
    latest_hint="version=None selects the latest version",
    creation_hint="experiments.register_model(run, name) registers one",
)
