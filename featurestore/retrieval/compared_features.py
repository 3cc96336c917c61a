"""Features of groups that expectations compare with the columns of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from featurestore.errors import FeatureGroupNotFound, InvalidExpectation, did_you_mean, listing
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.names import parse_reference
from featurestore.model.plan import Source
from featurestore.model.validation import FeatureComparison
from featurestore.plugins.engine import Relation
from featurestore.registry import featuregroups
from featurestore.retrieval.catalog import group_source
from featurestore.session import Session


@dataclass
class ComparedFeatures:
    """Opens features with all their values, at the newest Delta version or in their source.

    ``subject`` is the group whose rows are checked, and None for other tables. The values of its
    own features are those of the checked rows, and with ``with_stored_rows`` also those that the
    group already has.
    """

    session: Session
    subject: FeatureGroupSpec | None = None
    with_stored_rows: bool = False
    # Rows of an external group are available as long as there is a reference to its source.
    _sources: list[Source] = field(default_factory=list, repr=False)

    def __call__(self, comparison: FeatureComparison, checked_rows: Relation) -> list[Relation]:
        """Return relations with one column, which together have the values of a feature.

        Raises:
            InvalidExpectation: The group or the feature does not exist.
        """
        engine = self.session.engine
        reference = parse_reference(comparison.feature)
        columns = {reference.feature: reference.feature}
        subject = self.subject
        if subject is None or not is_own_feature(comparison, subject):
            spec = find_group_of_feature(self.session, comparison)
            return [self._read(spec.name, spec.version, reference.feature)]
        values = [engine.select(checked_rows, columns)]
        if self.with_stored_rows:
            values.append(self._read(subject.name, subject.version, reference.feature))
        return values

    def _read(self, name: str, version: int, column: str) -> Relation:
        source = group_source(self.session, self.session.featuregroup_path(name, version))
        self._sources.append(source)
        return self.session.engine.read_table(
            source.path, version=source.delta_version, schema=source.spec.schema, columns=[column]
        )


def check_compared_features(session: Session, spec: FeatureGroupSpec) -> None:
    """Check that the features that the expectations of a group name exist.

    Raises:
        InvalidExpectation: A group or feature does not exist.
    """
    for comparison in find_comparisons(spec.expectations):
        if not is_own_feature(comparison, spec):
            find_group_of_feature(session, comparison)
            continue
        column = parse_reference(comparison.feature).feature
        if column not in spec.schema.names:
            raise _unknown_feature_error(comparison, spec, column)


def find_comparisons(expectations: Iterable[Mapping[str, Any]]) -> list[FeatureComparison]:
    """Return the comparisons with features in expectations."""
    comparisons = map(FeatureComparison.from_expectation, expectations)
    return [comparison for comparison in comparisons if comparison is not None]


def is_own_feature(comparison: FeatureComparison, spec: FeatureGroupSpec) -> bool:
    """Return whether the feature is a column of the group whose rows are checked."""
    reference = parse_reference(comparison.feature)
    return reference.group == spec.name and reference.version in (None, spec.version)


def find_group_of_feature(session: Session, comparison: FeatureComparison) -> FeatureGroupSpec:
    """Return the registered group of a feature; without a version, the latest one.

    Raises:
        InvalidExpectation: The group or the feature does not exist.
    """
    reference = parse_reference(comparison.feature)
    try:
        with session.registry.reading() as connection:
            spec = featuregroups.get(connection, str(reference.group), reference.version).spec
    except FeatureGroupNotFound as error:
        raise InvalidExpectation(
            f"Column {comparison.column!r} cannot be compared with the feature "
            f"{comparison.feature!r}: {error.message}",
            hint=error.hint,
        ) from error
    if reference.feature not in spec.schema.names:
        raise _unknown_feature_error(comparison, spec, reference.feature)
    return spec


def _unknown_feature_error(
    comparison: FeatureComparison, spec: FeatureGroupSpec, column: str
) -> InvalidExpectation:
    names = spec.schema.names
    return InvalidExpectation(
        f"Column {comparison.column!r} cannot be compared with the feature "
        f"{comparison.feature!r}: feature group {spec.name!r} version {spec.version} has no column "
        f"{column!r}. Available: {listing(names, limit=30)}.",
        hint=did_you_mean(column, names),
    )
