"""Finding features: tags, search, lists, and where a column comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from sqlalchemy.engine import Connection

from featurestore.delta import commits
from featurestore.errors import FeatureNotFound, InvalidArgument, listing
from featurestore.featuregroups.descriptions import write_meta
from featurestore.featuregroups.table import OpenGroup, open_group, resolve
from featurestore.model.featuregroup import Commit, check_tags
from featurestore.model.paths import FEATUREVIEWS, TRAININGDATASETS
from featurestore.model.references import parse_reference
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


def search(session: Session, text: str, *, limit: int | None = None) -> list[Match]:
    """Return what contains a text, ignoring case.

    Names first, then features, tags, descriptions and what aggregates over windows are made of.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgument("search needs a text.", hint="search('weather')")
    if limit is not None and limit < 1:
        raise InvalidArgument(f"limit={limit!r} is no number of matches.", hint="limit=100")
    found: list[Match] = []
    wanted = text.strip().casefold()
    with session.registry.reading() as connection:
        for phase in (_names, _features, _tags, _descriptions, _feature_descriptions, _aggregates):
            left = None if limit is None else limit - len(found)
            found += islice(phase(connection, wanted), left)
    return found


def _names(connection: Connection, wanted: str) -> Iterator[Match]:
    for name, version in featuregroups.latest_names(connection, containing=wanted):
        yield Match(name, version, "name", name, name)


def _features(connection: Connection, wanted: str) -> Iterator[Match]:
    for each in features.containing(connection, wanted):
        yield Match(each.group, each.version, "feature", each.name, each.reference)


def _tags(connection: Connection, wanted: str) -> Iterator[Match]:
    for names in _candidates(connection, search_documents.TAG, wanted):
        found = tags.of_latest_groups(connection, featuregroups.KIND, names=names)
        for (name, version), values in found.items():
            for key, value in values.items():
                if wanted in key.casefold() or wanted in value.casefold():
                    yield Match(name, version, "tag", f"{key}={value}", name)


def _descriptions(connection: Connection, wanted: str) -> Iterator[Match]:
    for names in _candidates(connection, search_documents.DESCRIPTION, wanted):
        found = featuregroups.latest_descriptions(connection, names=names)
        for name, version, description in found:
            if wanted in description.casefold():
                yield Match(name, version, "description", description, name)


def _feature_descriptions(connection: Connection, wanted: str) -> Iterator[Match]:
    for names in _candidates(connection, search_documents.FEATURE_DESCRIPTION, wanted):
        found = features.latest_descriptions(connection, names=names)
        for name, version, feature, description in found:
            if wanted in description.casefold():
                yield Match(name, version, "description", description, f"{name}.{feature}")


def _aggregates(connection: Connection, wanted: str) -> Iterator[Match]:
    for kind, place in _PLACES.items():
        field = search_documents.WINDOW
        for names in search_documents.candidates(connection, kind, field, wanted):
            for name, version, aggregate in window_features.latest(connection, kind, names=names):
                if wanted in str(aggregate).casefold():
                    reference = place.format(name=name, feature=aggregate.name)
                    yield Match(name, version, "window", str(aggregate), reference)


def _candidates(connection: Connection, field: str, wanted: str) -> Iterator[list[str]]:
    return search_documents.candidates(connection, featuregroups.KIND, field, wanted)


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
