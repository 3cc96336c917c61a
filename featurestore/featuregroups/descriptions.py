"""Descriptions of a group and of its features, which change without a new version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from featurestore.delta import commits
from featurestore.delta.log import latest_version
from featurestore.errors import InvalidArgument
from featurestore.featuregroups.definition import check_descriptions, check_text
from featurestore.featuregroups.registration import advance
from featurestore.featuregroups.table import OpenGroup, open_group
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.recovery.in_flight import in_flight
from featurestore.session import Session


def update(
    session: Session,
    name: str,
    *,
    version: int | None = None,
    description: str | None = None,
    descriptions: Mapping[str, str] | None = None,
) -> FeatureGroupSpec:
    """Change the description of a group, and those of some of its features ("" removes one).

    Raises:
        InvalidArgument: Nothing to change, or descriptions of unknown features.
    """
    if description is None and not descriptions:
        raise InvalidArgument(
            "update_featuregroup was given nothing to change.",
            hint="description='...', or descriptions={'temp': '...'}",
        )
    check_text(description or "")
    group = open_group(session, name, version)
    meta = commits.meta_of(group.state)
    new_descriptions = check_descriptions(descriptions or {}, group.spec.schema.names)
    features = {}
    for feature, text in {**meta.features, **new_descriptions}.items():
        if text:
            features[feature] = text
    meta = replace(meta, features=features)
    if description is not None:
        meta = replace(meta, description=description)
    write_meta(session, group, meta)
    return group.spec


def write_meta(session: Session, group: OpenGroup, meta: commits.Meta) -> None:
    """Write description, descriptions of features and tags into the table, then the registry."""
    spec = group.spec
    with in_flight(session, kind="write", name=spec.name, version=spec.version) as run:
        session.engine.set_properties(group.path, {commits.META: meta.to_text()})
        advance(session, spec, latest_version(group.path), run=run, meta=meta)
