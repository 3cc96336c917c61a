"""Feature views: named, versioned retrievals that training and scoring share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import pyarrow as pa

from featurestore.arrow.fitting import with_wider_decimals
from featurestore.arrow.schemas import type_from_json, type_to_json
from featurestore.errors import FeatureViewDamaged
from featurestore.model import display
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.json_object import (
    JsonDict,
    JsonMapping,
    MalformedJson,
    seal,
    unseal,
)
from featurestore.model.names import FeatureReference, check_name, parse_group_reference
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.paths import FEATUREVIEWS
from featurestore.model.records import (
    OMIT_DEFAULT,
    Checked,
    FeatureType,
    Record,
    Valid,
    Version,
    codec_of,
)
from featurestore.model.window_features import (
    WINDOW,
    WindowFeature,
    WindowLineage,
)

VIEW_FORMAT = 1
# The format of views with window aggregates or transformations, which earlier releases cannot read.
WINDOWS_FORMAT = 2
# The format of views with on-demand features.
ON_DEMAND_FORMAT = 3
JOINS = ("left", "inner")


@dataclass(frozen=True)
class ViewFeature:
    """A column of a group version, and its ``name`` in the retrieved rows; ``type`` is JSON.

    ``window`` is the requested window aggregate of the column, if any.
    """

    # The name becomes part of a path, so it is checked like a name in an argument.
    group: Annotated[str, Checked(check_name)]
    version: Version
    column: str
    name: str
    type: FeatureType
    window: Annotated[WindowFeature | None, WINDOW, OMIT_DEFAULT] = None

    @property
    def request(self) -> str | WindowFeature:
        """The feature as an argument of ``get_features``."""
        return self.window or self.reference

    @property
    def reference(self) -> str:
        """The feature as a string."""
        if self.window is not None:
            return str(self.window)
        alias = None
        if self.name != self.column:
            alias = self.name
        return str(FeatureReference(self.column, self.group, self.version, alias))


def _is_join_key(value: object) -> bool:
    # The forms of the ``join_key`` argument of ``get_features``.
    return value is None or isinstance(value, str | list | dict)


@dataclass(frozen=True)
class ViewStep:
    """One call of ``get_features``: its features, and how they are joined to the previous rows.

    ``on_demand`` features are computed from the rows of the call.
    """

    features: tuple[ViewFeature, ...]
    join_key: Annotated[Any, Valid(_is_join_key, "a name, a list or an object")] = None
    join: Literal["left", "inner"] = "left"
    on_demand: Annotated[tuple[OnDemandFeature, ...], OMIT_DEFAULT] = ()

    @property
    def requests(self) -> list[str | WindowFeature | OnDemandFeature]:
        """The features that the ``get_features`` call requests."""
        return [*[feature.request for feature in self.features], *self.on_demand]


@dataclass(frozen=True)
class FeatureViewSpec(Record, format=ON_DEMAND_FORMAT, subject="The feature view {name!r}"):
    """The definition of one version of a feature view.

    ``steps`` are calls of ``get_features``, each with the result of the previous call as its
    labels. Groups are pinned to group versions, not to Delta versions: the definition is fixed, but
    new commits are read. ``labels`` is the reference of the label group, if the view has one.
    ``transformations`` are those of training datasets: the steps for each column, as JSON.
    """

    name: Annotated[str, Checked(partial(check_name, noun="feature view"))]
    version: Version
    steps: tuple[ViewStep, ...]
    labels: Annotated[str | None, Checked(parse_group_reference)] = None
    label: tuple[str, ...] = ()
    label_time: str | None = None
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    transformations: Annotated[JsonMapping, codec_of(Mapping[str, list[object]]), OMIT_DEFAULT] = (
        field(default_factory=dict)
    )

    __repr__ = display.record_repr

    @property
    def features(self) -> tuple[ViewFeature, ...]:
        """The features of all steps, in order."""
        all_features: list[ViewFeature] = []
        for step in self.steps:
            all_features += step.features
        return tuple(all_features)

    @property
    def on_demand(self) -> tuple[OnDemandFeature, ...]:
        """The on-demand features of all steps."""
        features: list[OnDemandFeature] = []
        for step in self.steps:
            features += step.on_demand
        return tuple(features)

    @property
    def windows(self) -> tuple[WindowLineage, ...]:
        """The lineage of the window aggregates."""
        lineages = [
            WindowLineage.from_feature(feature.window, version=feature.version)
            for feature in self.features
            if feature.window is not None
        ]
        return tuple(lineages)

    @property
    def groups(self) -> tuple[tuple[str, int], ...]:
        """The name and version of each group that is read, with the label group first."""
        # A dict, since a set has no order.
        read: dict[tuple[str, int], None] = {}
        if self.labels is not None:
            name, version = parse_group_reference(self.labels)
            read[name, version or 1] = None
        for feature in self.features:
            read[feature.group, feature.version] = None
        return tuple(read)

    def to_json(self) -> JsonDict:
        """Convert to a JSON object, the inverse of ``from_json``."""
        return {**super().to_json(), "format": self._format_version}

    @property
    def _format_version(self) -> int:
        """The oldest format version that can represent the view."""
        # Earlier releases refuse newer formats, so a view gets a newer one only for what needs it.
        if self.on_demand:
            return ON_DEMAND_FORMAT
        if self.windows or self.transformations:
            return WINDOWS_FORMAT
        return VIEW_FORMAT

    def to_bytes(self) -> bytes:
        """Return the contents of the view file."""
        return seal(self.to_json())

    @classmethod
    def from_bytes(cls, content: bytes, *, path: str) -> FeatureViewSpec:
        """Parse the output of ``to_bytes``.

        Raises:
            FeatureViewDamaged: The contents differ from what was written.
        """
        try:
            return cls.from_json(unseal(content))
        except MalformedJson as error:
            raise FeatureViewDamaged(
                f"The feature view {path!r} is damaged: {error}.",
                hint="restore the file from a copy, or delete the view and create it again",
            ) from error


def view_lineage_name(name: str) -> str:
    """Return the name of a view in lineage: its folder, relative to the store location.

    >>> view_lineage_name("late_flights")
    'featureviews/late_flights'
    """
    return f"{FEATUREVIEWS}/{name}"


def incompatible_features(features: Iterable[ViewFeature], spec: FeatureGroupSpec) -> list[str]:
    """Return the differences between requested features and a group definition."""
    problems = []
    for feature in features:
        if feature.column not in spec.schema.names:
            problems.append(f"{feature.column!r} no longer exists")
            continue
        dtype = spec.schema.field(feature.column).type
        # A group widens its decimals without a new version
        # (``FeatureGroupSpec.with_wider_decimals``).
        if type_to_json(dtype) != feature.type and not _is_widened(feature.type, dtype):
            type_name = feature.type if isinstance(feature.type, str) else "another type"
            problems.append(f"{feature.column!r} is {dtype}, previously {type_name}")
    return problems


def _is_widened(stored_type: Any, dtype: pa.DataType) -> bool:
    """Return whether a type is a stored type with wider decimals."""
    before = type_from_json(stored_type)
    return before != dtype and with_wider_decimals(before, dtype) == dtype
