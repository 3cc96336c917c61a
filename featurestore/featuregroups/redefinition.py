"""In-place changes of a group's metadata, which is in table properties: definition, tags, writers.

A change is one commit without rows, so that every Delta version has the definition under which its
rows were written. Plans that pin an earlier Delta version use the definition of that version.

A change is a function of the newest snapshot, and the engine calls it again if another writer
commits first. So concurrent changes of different fields and tags are all in the table, even if they
are made through different registries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from featurestore.delta import commits, iceberg
from featurestore.delta.snapshot import Snapshot
from featurestore.errors import InvalidArgument
from featurestore.featuregroups.comparison import (
    StoredDefinition,
    describe_changes,
    read_definition,
)
from featurestore.featuregroups.definition import (
    check_description,
    check_descriptions,
    check_validation_policy,
    normalize_expectations,
)
from featurestore.featuregroups.table import OpenGroup, open_group, version_title
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.times import parse_duration, parse_ttl
from featurestore.plugins.engine import PropertyChange
from featurestore.plugins.validator import find_validator
from featurestore.recovery import groups
from featurestore.recovery.in_flight import in_flight
from featurestore.retrieval.compared_features import check_compared_features
from featurestore.session import Session
from featurestore.storage.failures import warn_after_publication
from featurestore.validation import Subject, check_columns


@dataclass(frozen=True)
class Update:
    """Arguments of an update; None leaves a value unchanged, and an empty value removes it."""

    description: str | None = None
    descriptions: Mapping[str, str] | None = None
    expectations: object = None
    validation: str | None = None
    ttl: timedelta | str | None = None
    event_time_tolerance: timedelta | str | None = None
    statistics: bool | None = None
    compact: str | None = None

    def apply(self, definition: StoredDefinition) -> StoredDefinition:
        """Return the changed definition."""
        fields: dict[str, Any] = {}
        if self.expectations is not None:
            fields["expectations"] = normalize_expectations(self.expectations)
        if self.validation is not None:
            fields["validation"] = self.validation
        if self.ttl is not None:
            fields["ttl"] = parse_ttl(self.ttl or None)
        if self.event_time_tolerance is not None:
            fields["event_time_tolerance"] = parse_duration(
                self.event_time_tolerance, argument="event_time_tolerance"
            )
        if self.statistics is not None:
            fields["statistics"] = bool(self.statistics)
        if self.compact is not None:
            fields["compact"] = self.compact or None
        features = dict(definition.meta.features)
        for feature, text in (self.descriptions or {}).items():
            features.pop(feature, None)
            if text:
                features[feature] = text
        meta = replace(definition.meta, features=features)
        if self.description is not None:
            meta = replace(meta, description=self.description)
        return StoredDefinition(replace(definition.spec, **fields), meta)


def update(
    session: Session, name: str, changes: Update, *, version: int | None = None
) -> FeatureGroupSpec:
    """Change descriptions and fields of a definition, and return the definition.

    Raises:
        InvalidArgument: Nothing is to be changed, a value is invalid, or a feature does not exist.
    """
    # An empty dict of descriptions changes nothing, but an empty list of expectations does.
    if changes in (Update(), Update(descriptions={})):
        raise InvalidArgument(
            "update_featuregroup has nothing to change.",
            hint="description='...', descriptions={'temp': '...'}, expectations=[...] or ttl='7d'",
        )
    check_description(changes.description or "")
    check_validation_policy(changes.validation)
    group = open_group(session, name, version)
    check_descriptions(changes.descriptions or {}, group.spec.schema.names)
    check_expectations(session, changes.apply(read_definition(group)).spec)
    return change_definition(session, group, changes.apply)


def change_definition(
    session: Session, group: OpenGroup, change: Callable[[StoredDefinition], StoredDefinition]
) -> FeatureGroupSpec:
    """Change the definition of a group in one commit, and return the new definition.

    ``change`` gets the newest stored definition, so that concurrent changes of other fields are not
    lost, and may be called several times. If it returns an equal definition, nothing is written.
    """
    changed = read_definition(group)

    def change_properties(state: Snapshot, run_id: str) -> PropertyChange | None:
        nonlocal changed
        current = StoredDefinition(commits.declared_spec(state), commits.meta_of(state))
        changed = change(current)
        differences = describe_changes(current, changed)
        if not differences:
            return None
        return PropertyChange(
            commits.properties(changed.spec, changed.meta),
            {"operation": "update", "run": run_id, "changes": differences},
        )

    change_metadata(session, group, change_properties)
    return changed.spec


def change_metadata(
    session: Session, group: OpenGroup, change: Callable[[Snapshot, str], PropertyChange | None]
) -> None:
    """Change the table properties of a group in one commit without rows, then the registry.

    ``change`` gets a snapshot and the id of the run, and may be called several times. If it returns
    None, only the registry is written: another registry may have registered the same change.
    """
    spec = group.spec

    def register() -> None:
        with session.registry.transaction() as connection:
            groups.register_definition(connection, group.path, spec.name, spec.version)

    # An intent is needed only if there is a change.
    if change(group.state, "") is None:
        register()
        return
    with in_flight(session, operation="write", name=spec.name, version=spec.version) as run:
        # The table is written first, because the registry can be rebuilt from it after a crash.
        run.committed_version = session.engine.change_properties(
            group.path, lambda snapshot: change(snapshot, run.run_id)
        )
        if run.committed_version is None:
            register()
            run.registered = True
            return
        title = version_title(spec, run.committed_version)
        # If the registration fails, recovery finds the commit.
        with warn_after_publication(title):
            register()
            run.registered = True
    if spec.iceberg:
        with warn_after_publication(title):
            iceberg.publish(group.path)


def check_expectations(session: Session, spec: FeatureGroupSpec) -> None:
    """Raise InvalidExpectation if expectations name columns or features that do not exist."""
    if spec.expectations:
        validator, subject = find_validator(), Subject.of(spec)
        for expectation in spec.expectations:
            check_columns(expectation, subject, validator=validator)
        check_compared_features(session, spec)
