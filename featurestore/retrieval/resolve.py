"""Feature references to groups, versions and columns: pure, over the specs that exist."""

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
from featurestore.model.references import FeatureReference, meant_group, parse_reference
from featurestore.model.time_limits import in_time

# name -> version -> definition, for every group of the store
Specs = Mapping[str, Mapping[int, FeatureGroupSpec]]


@dataclass(frozen=True)
class Feature:
    """One requested column, found: ``spec``'s ``column``, called ``name`` in the result."""

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
    """Return the columns that references mean, in the order requested.

    A plain name searches the latest version of every group, its features first, then its keys and
    times. ``groups_with`` tells which groups may have a column, so that the others need not be
    looked at.

    Raises:
        FeatureNotFound: No such feature; names those that are near.
        AmbiguousFeature: A plain name is found in several groups; lists them as they must be typed.
        FeatureGroupNotFound: No such group or version; lists those there are.
    """
    if isinstance(references, str):
        texts = [references]
    else:
        texts = list(references)
    if not texts:
        raise nothing_requested()
    pinned = dict(versions or {})
    _check_versions(pinned, specs=specs)
    found: list[Feature] = []
    for text in in_time(texts):
        reference = parse_reference(text)
        if reference.group is None:
            candidates: Iterable[str] = specs
            if groups_with is not None:
                candidates = groups_with(reference.feature)
            found.append(_find_plain(reference, candidates, specs=specs, pinned=pinned))
        else:
            found += _find_in_group(reference, reference.group, specs=specs, pinned=pinned)
    return tuple(found)


def nothing_requested() -> InvalidReference:
    """Return the error for a retrieval of no feature at all."""
    return InvalidReference(
        "No features were requested.", hint="get_features(['group.feature', 'group.*'])"
    )


def find_spec(
    name: str, *, version: int | None, specs: Specs, feature: str | None = None
) -> FeatureGroupSpec:
    """Return a group's definition; the latest version when none is given.

    ``feature`` is the one that is looked for, where there is one: the hint names it.
    """
    if name not in specs:
        explain = getattr(specs, "absence_of", None)
        if explain is not None and explain(name) is not None:
            raise explain(name)
        raise FeatureGroupNotFound(
            f"No feature group {name!r}; there are {listing(sorted(specs))}.",
            hint=meant_group(name, specs, feature=feature),
        )
    found = specs[name]
    wanted = version
    if wanted is None:
        wanted = max(found)
    if wanted not in found:
        raise FeatureGroupNotFound(
            f"Feature group {name!r} has no version {wanted}; it has {listing(sorted(found))}.",
            hint=f"{name}@v{max(found)}",
        )
    return found[wanted]


def _find_in_group(
    reference: FeatureReference, group: str, *, specs: Specs, pinned: Mapping[str, int]
) -> list[Feature]:
    if reference.version is not None and pinned.get(group, reference.version) != reference.version:
        raise InvalidArgument(
            f"{str(reference)!r} asks for version {reference.version}, versions= for "
            f"{pinned[group]}.",
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
            hint=_elsewhere(reference.feature, spec, specs)
            or _near(reference.feature, spec.schema.names, prefix=f"{spec.name}."),
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
    found = as_feature or as_column
    if not found:
        raise _no_such_feature(name, specs=specs, pinned=pinned)
    if len(found) > 1:
        candidates = [f"{spec.name}.{name}" for spec in found]
        raise AmbiguousFeature(
            f"{name!r} is in {len(found)} feature groups: {listing(candidates, limit=30)}.",
            hint=f"write one of them, for example {candidates[0]!r}",
        )
    return Feature(found[0], name, reference.name)


def _no_such_feature(name: str, *, specs: Specs, pinned: Mapping[str, int]) -> FeatureNotFound:
    known: dict[str, str] = {}
    groups = sorted(specs)
    for group in groups:
        spec = find_spec(group, version=pinned.get(group), specs=specs)
        for column in spec.features:
            known[f"{spec.name}.{column}"] = column
    searched = f"{len(groups)} feature groups"
    if len(groups) == 1:
        searched = "1 feature group"
    return FeatureNotFound(
        f"No feature {name!r} in {searched}.",
        hint=_near_features(name, known),
    )


def _check_versions(pinned: Mapping[str, int], *, specs: Specs) -> None:
    for group, version in pinned.items():
        number = check_version(version, argument=f"versions[{group!r}]")
        find_spec(group, version=number, specs=specs)


def _elsewhere(column: str, spec: FeatureGroupSpec, specs: Specs) -> str | None:
    """Return the hint for a column that other groups have."""
    found = []
    for group in sorted(specs):
        if group != spec.name and column in find_spec(group, version=None, specs=specs).features:
            found.append(f"{group}.{column}")
    if not found:
        return None
    return f"another group has it: {' or '.join(map(repr, found[:5]))}"


def _near(name: str, known: Iterable[str], *, prefix: str = "") -> str | None:
    return did_you_mean(name, known, write=f"'{prefix}{{}}'")


def _near_features(name: str, known: Mapping[str, str]) -> str:
    close = [column.lower() for column in names_near(name, sorted(set(known.values())))]
    near = []
    for reference, column in known.items():
        if column.lower() in close:
            near.append(repr(reference))
    if near:
        return meaning(near[:5])
    return "get_features_list() shows every feature, search(text) finds some"
