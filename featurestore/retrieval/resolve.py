"""Resolution of feature references to groups, versions and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from featurestore.errors import (
    AmbiguousFeature,
    FeatureGroupNotFound,
    FeatureNotFound,
    InvalidArgument,
    InvalidReference,
    did_you_mean,
    listing,
    meaning,
    names_near,
)
from featurestore.model.counts import check_version
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.references import FeatureReference, parse_reference, suggest_group
from featurestore.model.time_limits import in_time

# name -> version -> definition, for every group of the store
Specs = Mapping[str, Mapping[int, FeatureGroupSpec]]


@dataclass(frozen=True)
class Feature:
    """One requested feature: ``column`` of the group ``spec``, called ``name`` in the result."""

    spec: FeatureGroupSpec
    column: str
    name: str

    @property
    def group(self) -> tuple[str, int]:
        """Name and version of the group."""
        return self.spec.name, self.spec.version

    def __str__(self) -> str:
        return f"{self.spec.name}@v{self.spec.version}.{self.column}"


def resolve(
    references: str | Sequence[str],
    *,
    specs: Specs,
    versions: Mapping[str, int] | None = None,
    groups_with: Callable[[str], Iterable[str]] | None = None,
) -> tuple[Feature, ...]:
    """Return the features of references, in the requested order.

    A plain name searches the latest version of every group, its features first, then its keys and
    times. ``groups_with`` returns the groups that may have a column, so that the others need not be
    loaded.

    Raises:
        FeatureNotFound: No such feature; suggests similar names.
        AmbiguousFeature: A plain name is in several groups; lists the full references.
        FeatureGroupNotFound: No such group or version; lists the available ones.
    """
    if isinstance(references, str):
        reference_texts = [references]
    else:
        reference_texts = list(references)
    if not reference_texts:
        raise no_features_error()
    pinned = dict(versions or {})
    _check_versions(pinned, specs=specs)
    matches: list[Feature] = []
    for text in in_time(reference_texts):
        reference = parse_reference(text)
        if reference.group is None:
            candidates: Iterable[str] = specs
            if groups_with is not None:
                candidates = groups_with(reference.feature)
            matches.append(_find_plain(reference, candidates, specs=specs, pinned=pinned))
        else:
            matches += _find_in_group(reference, reference.group, specs=specs, pinned=pinned)
    return tuple(matches)


def no_features_error() -> InvalidReference:
    """Return the error for a retrieval of no feature at all."""
    return InvalidReference(
        "No features were requested.", hint="get_features(['group.feature', 'group.*'])"
    )


def find_spec(
    name: str, *, version: int | None, specs: Specs, feature: str | None = None
) -> FeatureGroupSpec:
    """Return a group's definition; the latest version by default.

    ``feature`` is the requested feature, if any, for the hint.
    """
    if name not in specs:
        explain = getattr(specs, "absence_of", None)
        if explain is not None and explain(name) is not None:
            raise explain(name)
        raise FeatureGroupNotFound(
            f"No feature group {name!r}; there are {listing(sorted(specs))}.",
            hint=suggest_group(name, specs, feature=feature),
        )
    specs_by_version = specs[name]
    wanted_version = version
    if wanted_version is None:
        wanted_version = max(specs_by_version)
    if wanted_version not in specs_by_version:
        raise FeatureGroupNotFound(
            f"Feature group {name!r} has no version {wanted_version}; it has {listing(sorted(specs_by_version))}.",
            hint=f"{name}@v{max(specs_by_version)}",
        )
    return specs_by_version[wanted_version]


def _find_in_group(
    reference: FeatureReference, group: str, *, specs: Specs, pinned: Mapping[str, int]
) -> list[Feature]:
    if reference.version is not None and pinned.get(group, reference.version) != reference.version:
        raise InvalidArgument(
            f"{str(reference)!r} has version {reference.version}, versions= has {pinned[group]}.",
            hint="pin the version in one place",
        )
    version = reference.version
    if version is None:
        version = pinned.get(group)
    spec = find_spec(group, version=version, specs=specs, feature=reference.feature)
    if reference.is_star:
        if not spec.features:
            raise FeatureNotFound(
                f"Feature group {spec.name!r} has keys and times only: "
                f"{listing(spec.schema.names)}.",
                hint="name a key itself, for example "
                + repr(f"{spec.name}.{spec.schema.names[0]}"),
            )
        return [Feature(spec, column, column) for column in spec.features]
    if reference.feature not in spec.schema.names:
        raise FeatureNotFound(
            f"Feature group {spec.name!r} version {spec.version} has no feature "
            f"{reference.feature!r}; "
            f"it has {listing(spec.schema.names, limit=20)}.",
            hint=_suggest_other_group(reference.feature, spec, specs)
            or _suggest_name(reference.feature, spec.schema.names, prefix=f"{spec.name}."),
        )
    return [Feature(spec, reference.feature, reference.name)]


def _find_plain(
    reference: FeatureReference,
    candidates: Iterable[str],
    *,
    specs: Specs,
    pinned: Mapping[str, int],
) -> Feature:
    name = reference.feature
    as_feature, as_column = [], []
    for group in sorted(candidates):
        if group in specs:
            spec = find_spec(group, version=pinned.get(group), specs=specs)
            if name in spec.features:
                as_feature.append(spec)
            if name in spec.schema.names:
                as_column.append(spec)
    matching_specs = as_feature or as_column
    if not matching_specs:
        raise _unknown_feature(name, specs=specs, pinned=pinned)
    if len(matching_specs) > 1:
        candidates = [f"{spec.name}.{name}" for spec in matching_specs]
        raise AmbiguousFeature(
            f"{name!r} is in {len(matching_specs)} feature groups: {listing(candidates, limit=30)}.",
            hint=f"write one of them, for example {candidates[0]!r}",
        )
    return Feature(matching_specs[0], name, reference.name)


def _unknown_feature(name: str, *, specs: Specs, pinned: Mapping[str, int]) -> FeatureNotFound:
    columns_by_reference: dict[str, str] = {}
    groups = sorted(specs)
    for group in groups:
        spec = find_spec(group, version=pinned.get(group), specs=specs)
        for column in spec.features:
            columns_by_reference[f"{spec.name}.{column}"] = column
    searched = f"{len(groups)} feature groups"
    if len(groups) == 1:
        searched = "1 feature group"
    return FeatureNotFound(
        f"No feature {name!r} in {searched}.",
        hint=_suggest_features(name, columns_by_reference),
    )


def _check_versions(pinned: Mapping[str, int], *, specs: Specs) -> None:
    for group, version in pinned.items():
        number = check_version(version, argument=f"versions[{group!r}]")
        find_spec(group, version=number, specs=specs)


def _suggest_other_group(column: str, spec: FeatureGroupSpec, specs: Specs) -> str | None:
    """Return the hint for a column that other groups have."""
    references = [
        f"{group}.{column}"
        for group in sorted(specs)
        if group != spec.name and column in find_spec(group, version=None, specs=specs).features
    ]
    if not references:
        return None
    return f"another group has it: {' or '.join(map(repr, references[:5]))}"


def _suggest_name(name: str, known_names: Iterable[str], *, prefix: str = "") -> str | None:
    return did_you_mean(name, known_names, write=f"'{prefix}{{}}'")


def _suggest_features(name: str, columns_by_reference: Mapping[str, str]) -> str:
    similar_columns = [
        column.lower() for column in names_near(name, sorted(set(columns_by_reference.values())))
    ]
    similar_references = [
        repr(reference)
        for reference, column in columns_by_reference.items()
        if column.lower() in similar_columns
    ]
    if similar_references:
        return meaning(similar_references[:5])
    return "get_features_list() shows every feature, search(text) finds some"
