"""Finding features: tags, search, lists, and where a column comes from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from sqlalchemy.engine import Connection

from featurestore.delta import commits
from featurestore.errors import FeatureNotFound, InvalidArgument, listing
from featurestore.featuregroups.descriptions import write_meta
from featurestore.featuregroups.table import OpenGroup, open_group, resolve
from featurestore.model.counts import check_count
from featurestore.model.featuregroup import Commit, check_tags
from featurestore.model.paths import FEATUREVIEWS, TRAININGDATASETS
from featurestore.model.references import parse_reference
from featurestore.model.window_lineage import WindowLineage
from featurestore.registry import (
    feature_views,
    featuregroups,
    features,
    lineage,
    search_documents,
    tags,
    training_datasets,
    window_features,
)
from featurestore.registry.search_filters import SearchFilter, groups_within, within
from featurestore.registry.tables import check_search_text
from featurestore.session import Session

# Where a search found an aggregate: a reference, or the folder below the location.
_PLACES = {
    featuregroups.KIND: "{name}.{feature}",
    training_datasets.KIND: f"{TRAININGDATASETS}/{{name}}",
    feature_views.KIND: f"{FEATUREVIEWS}/{{name}}",
}


@dataclass(frozen=True)
class Match:
    """Something that a search found.

    ``where`` is "name", "description", "tag", "feature" or "window": what an aggregate is made of,
    in a group, a training dataset or a feature view of that name.
    """

    group: str
    version: int
    where: str
    text: str
    reference: str

    @property
    def kind(self) -> str:
        """What was found: "feature group", "feature", "training dataset" or "feature view".

        >>> Match("weather", 1, "feature", "temp", "weather.temp").kind
        'feature'
        """
        if self.reference.startswith(f"{TRAININGDATASETS}/"):
            return "training dataset"
        if self.reference.startswith(f"{FEATUREVIEWS}/"):
            return "feature view"
        return "feature" if "." in self.reference else "feature group"


@dataclass(frozen=True)
class _Asked:
    """What a search looks for, and the groups among which it does; None: all of them."""

    connection: Connection
    text: str
    wanted: SearchFilter
    among: Collection[str] | None

    def candidates(self, field: str) -> Iterator[list[str]]:
        return search_documents.candidates(
            self.connection, featuregroups.KIND, field, self.text, among=self.among
        )


@dataclass(frozen=True)
class Provenance:
    """Where a column comes from.

    Its group, the job that makes it, and the sources of the last commit.
    """

    reference: str
    version: int
    delta_version: int
    job: str | None
    run_id: str | None
    inputs: tuple[Mapping[str, object], ...]


def search(
    session: Session,
    text: str,
    *,
    limit: int | None = None,
    kind: str | None = None,
    wanted: SearchFilter | None = None,
) -> list[Match]:
    """Return what contains a text, ignoring case.

    Names first, then features, tags, descriptions and what aggregates over windows are made of.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgument("search needs a text.", hint="search('weather')")
    check_search_text(text)
    if limit is not None:
        check_count(limit, argument="limit", minimum=1)
    wanted = wanted or SearchFilter()
    with session.registry.reading() as connection:
        among = groups_within(connection, wanted)
        asked = _Asked(connection, text.strip().casefold(), wanted, among)
        return list(islice(_matches(asked, kind), limit))


def _matches(asked: _Asked, kind: str | None) -> Iterator[Match]:
    for phase in (_names, _features, _tags, _descriptions, _feature_descriptions, _aggregates):
        for match in phase(asked):
            if kind is None or match.kind == kind:
                yield match


def _names(asked: _Asked) -> Iterator[Match]:
    for name, version in featuregroups.latest_names(asked.connection, containing=asked.text):
        if asked.among is None or name in asked.among:
            yield Match(name, version, "name", name, name)


def _features(asked: _Asked) -> Iterator[Match]:
    for each in features.containing(asked.connection, asked.text, among=asked.among):
        yield Match(each.group, each.version, "feature", each.name, each.reference)


def _tags(asked: _Asked) -> Iterator[Match]:
    for names in asked.candidates(search_documents.TAG):
        found = tags.of_latest_groups(asked.connection, featuregroups.KIND, names=names)
        for (name, version), values in found.items():
            for key, value in values.items():
                if asked.text in key.casefold() or asked.text in value.casefold():
                    yield Match(name, version, "tag", f"{key}={value}", name)


def _descriptions(asked: _Asked) -> Iterator[Match]:
    for names in asked.candidates(search_documents.DESCRIPTION):
        found = featuregroups.latest_descriptions(asked.connection, names=names)
        for name, version, description in found:
            if asked.text in description.casefold():
                yield Match(name, version, "description", description, name)


def _feature_descriptions(asked: _Asked) -> Iterator[Match]:
    for names in asked.candidates(search_documents.FEATURE_DESCRIPTION):
        found = features.latest_descriptions(asked.connection, names=names)
        for name, version, feature, description in found:
            if asked.text in description.casefold():
                yield Match(name, version, "description", description, f"{name}.{feature}")


def _aggregates(asked: _Asked) -> Iterator[Match]:
    for kind, place in _PLACES.items():
        among = asked.among
        if kind != featuregroups.KIND:
            among = within(asked.connection, kind, asked.wanted)
        for name, version, aggregate in _windows(asked, kind, among):
            if asked.text in str(aggregate).casefold():
                reference = place.format(name=name, feature=aggregate.name)
                yield Match(name, version, "window", str(aggregate), reference)


def _windows(
    asked: _Asked, kind: str, among: Collection[str] | None
) -> Iterator[tuple[str, int, WindowLineage]]:
    field = search_documents.WINDOW
    for names in search_documents.candidates(
        asked.connection, kind, field, asked.text, among=among
    ):
        yield from window_features.latest(asked.connection, kind, names=names)


def features_list(session: Session) -> list[str]:
    """Return a reference to every feature (no keys, no times) of each group's latest version."""
    with session.registry.reading() as connection:
        return [each.reference for each in features.latest(connection) if each.role == "feature"]


def tags_of(session: Session, name: str, *, version: int | None = None) -> dict[str, str]:
    """Return the tags of a group."""
    name, version = resolve(session, name, version)
    with session.registry.reading() as connection:
        return tags.of(connection, featuregroups.KIND, name, version)


def add_tag(
    session: Session, name: str, key: str, value: str, *, version: int | None = None
) -> None:
    """Set a tag of a group; the table holds it, too."""
    check_tags({key: value})
    group = open_group(session, name, version)
    _write_tags(session, group, {**commits.meta_of(group.state).tags, key: value})


def remove_tag(session: Session, name: str, key: str, *, version: int | None = None) -> None:
    """Remove a tag of a group; InvalidArgument lists those there are."""
    group = open_group(session, name, version)
    known = dict(commits.meta_of(group.state).tags)
    if key not in known:
        raise InvalidArgument(
            f"Feature group {group.spec.name!r} has no tag {key!r}; it has {listing(known)}."
        )
    del known[key]
    _write_tags(session, group, known)


def provenance(session: Session, reference: str) -> Provenance:
    """Return where a column comes from: ``group.feature`` or ``group@v2.feature``."""
    parsed = parse_reference(reference)
    if parsed.group is None:
        raise InvalidArgument(f"{reference!r} names no group.", hint="write 'group.feature'")
    group = open_group(session, parsed.group, parsed.version)
    if parsed.feature not in group.spec.schema.names:
        raise FeatureNotFound(
            f"Feature group {group.spec.name!r} has no column {parsed.feature!r}; "
            f"it has {listing(group.spec.schema.names)}."
        )
    made = Provenance(
        reference=f"{group.spec.name}.{parsed.feature}",
        version=group.spec.version,
        delta_version=group.delta_version,
        job=group.spec.job,
        run_id=None,
        inputs=(),
    )
    for commit in _newest_first(group):
        if commit.inputs or commit.run_id:
            return replace(
                made,
                delta_version=commit.delta_version,
                run_id=commit.run_id,
                inputs=tuple(commit.inputs.values()),
            )
    return made


def derived_from(
    session: Session, name: str, *, version: int | None = None
) -> list[lineage.LineageEdge]:
    """Return the groups, training datasets and views that were made from a group."""
    name, version = resolve(session, name, version)
    with session.registry.reading() as connection:
        return lineage.results(connection, name, version)


def _newest_first(group: OpenGroup) -> Iterator[Commit]:
    changed = commits.latest_data_version(group.path, group.delta_version)
    for commit in commits.history(group.path):
        if commit.delta_version <= changed:
            yield commit


def _write_tags(session: Session, group: OpenGroup, values: Mapping[str, str]) -> None:
    write_meta(session, group, replace(commits.meta_of(group.state), tags=values))
