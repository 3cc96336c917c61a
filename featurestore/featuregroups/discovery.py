"""Discovery of groups and features: search, tags, descriptions, and column provenance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from sqlalchemy.engine import Connection

from featurestore.delta import commits
from featurestore.delta.snapshot import Snapshot
from featurestore.errors import FeatureNotFound, InvalidArgument, listing
from featurestore.featuregroups.redefinition import change_metadata
from featurestore.featuregroups.table import OpenGroup, open_group, resolve
from featurestore.model import display
from featurestore.model.arguments import check_count
from featurestore.model.featuregroup import check_tags
from featurestore.model.names import parse_reference
from featurestore.model.paths import FEATUREVIEWS, TRAININGDATASETS
from featurestore.plugins.engine import PropertyChange
from featurestore.registry import (
    artifacts,
    featuregroups,
    lineage,
    search_documents,
    training_datasets,
)
from featurestore.registry.artifacts import feature_views
from featurestore.registry.overview import SearchFilter, filter_group_names, filter_names
from featurestore.registry.tables import check_search_text
from featurestore.session import Session

# How to reference an aggregate, by kind: as a feature, or by a folder in the store.
_REFERENCE_FORMATS = {
    featuregroups.KIND: "{name}.{feature}",
    training_datasets.KIND: f"{TRAININGDATASETS}/{{name}}",
    feature_views.object_kind: f"{FEATUREVIEWS}/{{name}}",
}


@dataclass(frozen=True)
class Match:
    """One search result.

    ``where`` is the kind of the matched text: "name", "description", "tag", "feature" or "window"
    (an aggregate of the group, training dataset or feature view that ``group`` names).
    """

    group: str
    version: int
    where: str
    text: str
    reference: str

    __repr__ = display.record_repr

    @property
    def kind(self) -> str:
        """The kind: "feature group", "feature", "training dataset" or "feature view".

        >>> Match("weather", 1, "feature", "temp", "weather.temp").kind
        'feature'
        """
        if self.reference.startswith(f"{TRAININGDATASETS}/"):
            return "training dataset"
        if self.reference.startswith(f"{FEATUREVIEWS}/"):
            return "feature view"
        return "feature" if "." in self.reference else "feature group"


@dataclass(frozen=True)
class _Search:
    """The text and filters of a search, and the groups to search (None for all)."""

    connection: Connection
    text: str
    filters: SearchFilter
    among: Collection[str] | None

    def candidates(self, field: str) -> Iterator[list[str]]:
        return search_documents.candidate_names(
            self.connection, featuregroups.KIND, field, self.text, among=self.among
        )


@dataclass(frozen=True)
class Provenance:
    """The origin of a column: its group, the job that writes it, and inputs of the last commit."""

    reference: str
    version: int
    delta_version: int
    job: str | None
    run_id: str | None
    inputs: tuple[Mapping[str, object], ...]

    __repr__ = display.record_repr


def search(
    session: Session,
    text: str,
    *,
    limit: int | None = None,
    match_kind: str | None = None,
    filters: SearchFilter | None = None,
) -> list[Match]:
    """Search for a text, ignoring case, and return the matches.

    The order is: names, features, tags, descriptions, window aggregates.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgument("search needs a non-empty string.", hint="search('weather')")
    check_search_text(text)
    if limit is not None:
        check_count(limit, argument="limit", minimum=1)
    filters = filters or SearchFilter()
    with session.registry.reading() as connection:
        among = filter_group_names(connection, filters)
        query = _Search(connection, text.strip().casefold(), filters, among)
        matches = list(islice(_iterate_matches(query, match_kind), limit))
    _record_matches(session, matches)
    return matches


def _record_matches(session: Session, matches: Sequence[Match]) -> None:
    """Record reads of the groups, datasets and views whose names, features or descriptions match."""
    for object_kind in (featuregroups.KIND, training_datasets.KIND, feature_views.object_kind):
        noun = object_kind.replace("_", " ").replace("featuregroup", "feature group")
        versions = {
            (match.group, match.version)
            for match in matches
            if match.kind == noun or (match.kind == "feature" and noun == "feature group")
        }
        session.record_reads(object_kind, sorted(versions))


def _iterate_matches(query: _Search, match_kind: str | None) -> Iterator[Match]:
    """Yield the matches of all phases, in the order of ``search``."""
    # Phases are evaluated lazily, so that a search with a small limit stops early.
    for phase in (
        _match_names,
        _match_features,
        _match_tags,
        _match_descriptions,
        _match_feature_descriptions,
        _match_aggregates,
    ):
        for match in phase(query):
            if match_kind is None or match.kind == match_kind:
                yield match


def _match_names(query: _Search) -> Iterator[Match]:
    for name, version in featuregroups.latest_names(query.connection, containing=query.text):
        if query.among is None or name in query.among:
            yield Match(name, version, "name", name, name)


def _match_features(query: _Search) -> Iterator[Match]:
    for feature in featuregroups.search_features(query.connection, query.text, among=query.among):
        yield Match(feature.group, feature.version, "feature", feature.name, feature.reference)


def _match_tags(query: _Search) -> Iterator[Match]:
    """Yield the tags whose key or value contains the text."""
    for names in query.candidates(search_documents.TAG):
        tags_by_group = artifacts.tags_of_latest_groups(
            query.connection, featuregroups.KIND, names=names
        )
        for (name, version), values in tags_by_group.items():
            for key, value in values.items():
                # Candidates come from an index of trigrams and may not contain the text.
                if query.text in key.casefold() or query.text in value.casefold():
                    yield Match(name, version, "tag", f"{key}={value}", name)


def _match_descriptions(query: _Search) -> Iterator[Match]:
    for names in query.candidates(search_documents.DESCRIPTION):
        descriptions = featuregroups.latest_descriptions(query.connection, names=names)
        for name, version, description in descriptions:
            if query.text in description.casefold():
                yield Match(name, version, "description", description, name)


def _match_feature_descriptions(query: _Search) -> Iterator[Match]:
    for names in query.candidates(search_documents.FEATURE_DESCRIPTION):
        descriptions = featuregroups.latest_feature_descriptions(query.connection, names=names)
        for name, version, feature, description in descriptions:
            if query.text in description.casefold():
                yield Match(name, version, "description", description, f"{name}.{feature}")


def _match_aggregates(query: _Search) -> Iterator[Match]:
    """Yield the window aggregates of groups, datasets and views that contain the text."""
    for object_kind, reference_format in _REFERENCE_FORMATS.items():
        among = query.among
        if object_kind != featuregroups.KIND:
            among = filter_names(query.connection, object_kind, query.filters)
        candidates = search_documents.candidate_names(
            query.connection, object_kind, search_documents.WINDOW, query.text, among=among
        )
        for names in candidates:
            for name, version, aggregate in lineage.latest_windows(
                query.connection, object_kind, names=names
            ):
                if query.text in str(aggregate).casefold():
                    reference = reference_format.format(name=name, feature=aggregate.name)
                    yield Match(name, version, "window", str(aggregate), reference)


def list_feature_references(session: Session) -> list[str]:
    """Return references to all features of the latest group versions, without keys and times."""
    with session.registry.reading() as connection:
        features = featuregroups.latest_features(connection)
    session.record_reads(
        featuregroups.KIND, sorted({(feature.group, feature.version) for feature in features})
    )
    return [feature.reference for feature in features if feature.role == "feature"]


def tags_of(session: Session, name: str, *, version: int | None = None) -> dict[str, str]:
    """Return the tags of a group."""
    name, version = resolve(session, name, version)
    with session.registry.reading() as connection:
        return artifacts.tags_of(connection, featuregroups.KIND, name, version)


def add_tag(
    session: Session, name: str, key: str, value: str, *, version: int | None = None
) -> None:
    """Set a tag of a group in the table and the registry."""
    check_tags({key: value})
    group = open_group(session, name, version)
    _change_tags(session, group, lambda tags: {**tags, key: value})


def remove_tag(session: Session, name: str, key: str, *, version: int | None = None) -> None:
    """Remove a tag of a group.

    Raises:
        InvalidArgument: The tag does not exist; the message lists the existing tags.
    """
    group = open_group(session, name, version)

    def without_key(tags: Mapping[str, str]) -> dict[str, str]:
        if key not in tags:
            raise InvalidArgument(
                f"Feature group {group.spec.name!r} has no tag {key!r}. Available: {listing(tags)}."
            )
        return {tag: value for tag, value in tags.items() if tag != key}

    _change_tags(session, group, without_key)


def provenance(session: Session, reference: str) -> Provenance:
    """Return the origin of a column, referenced as ``group.feature`` or ``group@v2.feature``."""
    parsed = parse_reference(reference)
    if parsed.group is None:
        raise InvalidArgument(f"Reference {reference!r} has no group name.", hint="'group.feature'")
    group = open_group(session, parsed.group, parsed.version)
    if parsed.feature not in group.spec.schema.names:
        raise FeatureNotFound(
            f"Feature group {group.spec.name!r} has no column {parsed.feature!r}. "
            f"Available: {listing(group.spec.schema.names)}."
        )
    origin = Provenance(
        reference=f"{group.spec.name}.{parsed.feature}",
        version=group.spec.version,
        delta_version=group.delta_version,
        job=group.spec.job,
        run_id=None,
        inputs=(),
    )
    # Maintenance commits after the last change of rows have no inputs.
    changed = commits.latest_data_version(group.path, group.delta_version)
    for commit in commits.history(group.path):
        if commit.delta_version <= changed and (commit.inputs or commit.run_id):
            return replace(
                origin,
                delta_version=commit.delta_version,
                run_id=commit.run_id,
                inputs=tuple(commit.inputs.values()),
            )
    return origin


def derived_from(
    session: Session, name: str, *, version: int | None = None
) -> list[lineage.LineageEdge]:
    """Return the groups, training datasets and feature views that were derived from a group."""
    name, version = resolve(session, name, version)
    with session.registry.reading() as connection:
        return lineage.results(connection, name, version)


def _change_tags(
    session: Session, group: OpenGroup, change: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> None:
    """Change the tags of a group in one commit; ``change`` gets the newest tags."""

    def change_properties(state: Snapshot, _run_id: str) -> PropertyChange | None:
        meta = commits.meta_of(state)
        changed = replace(meta, tags=change(meta.tags))
        return None if changed == meta else PropertyChange({commits.META: changed.to_text()})

    change_metadata(session, group, change_properties)
