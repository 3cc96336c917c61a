"""Feature views: named, versioned retrievals that training and scoring share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from featurestore.arrow.fitting import with_wider_decimals
from featurestore.arrow.schemas import type_from_json, type_to_json
from featurestore.errors import FeatureViewDamaged, InvalidName, InvalidReference
from featurestore.model import display
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.json_object import (
    JsonDict,
    JsonMapping,
    JsonObject,
    MalformedJson,
    check_format,
    seal,
    unseal,
)
from featurestore.model.names import FeatureReference, check_name, parse_group_reference
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.paths import FEATUREVIEWS
from featurestore.model.window_features import (
    WindowFeature,
    WindowLineage,
    window_from_json,
    window_to_json,
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

    group: str
    version: int
    column: str
    name: str
    type: Any
    window: WindowFeature | None = None

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


@dataclass(frozen=True)
class ViewStep:
    """One call of ``get_features``: its features, and how they are joined to the previous rows.

    ``on_demand`` features are computed from the rows of the call.
    """

    features: tuple[ViewFeature, ...]
    join_key: Any = None
    join: Literal["left", "inner"] = "left"
    on_demand: tuple[OnDemandFeature, ...] = ()

    @property
    def requests(self) -> list[str | WindowFeature | OnDemandFeature]:
        """The features that the ``get_features`` call requests."""
        return [*[feature.request for feature in self.features], *self.on_demand]


@dataclass(frozen=True)
class FeatureViewSpec:
    """The definition of one version of a feature view.

    ``steps`` are calls of ``get_features``, each with the result of the previous call as its
    labels. Groups are pinned to group versions, not to Delta versions: the definition is fixed, but
    new commits are read. ``labels`` is the reference of the label group, if the view has one.
    ``transformations`` are those of training datasets: the steps for each column, as JSON.
    """

    name: str
    version: int
    steps: tuple[ViewStep, ...]
    labels: str | None = None
    label: tuple[str, ...] = ()
    label_time: str | None = None
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    transformations: JsonMapping = field(default_factory=dict)

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
        steps = []
        for step in self.steps:
            features = list(map(_feature_json, step.features))
            step_json = {"features": features, "join_key": step.join_key, "join": step.join}
            if step.on_demand:
                step_json["on_demand"] = [feature.to_json() for feature in step.on_demand]
            steps.append(step_json)
        data = {
            "format": self._format_version,
            "name": self.name,
            "version": self.version,
            "steps": steps,
            "labels": self.labels,
            "label": list(self.label),
            "label_time": self.label_time,
            "description": self.description,
            "tags": dict(self.tags),
            "created": self.created,
        }
        if self.transformations:
            data["transformations"] = dict(self.transformations)
        return data

    @property
    def _format_version(self) -> int:
        """The oldest format version that can represent the view."""
        # Earlier releases refuse newer formats, so a view gets a newer one only for what needs it.
        if self.on_demand:
            return ON_DEMAND_FORMAT
        if self.windows or self.transformations:
            return WINDOWS_FORMAT
        return VIEW_FORMAT

    @classmethod
    def from_json(cls, data: object) -> FeatureViewSpec:
        """Parse the output of ``to_json``; raise MalformedJson if it is invalid."""
        view = JsonObject.from_value(data)
        format_number = view.number("format", minimum=1)
        subject = f"The feature view {view.get('name')!r}"
        check_format(format_number, ON_DEMAND_FORMAT, subject=subject)
        # The format is checked first, since other fields of a newer format may differ.
        labels = view.optional_text("labels")
        transformations: JsonMapping = {}
        # Absent in formats 1 and 2 without transformations.
        if "transformations" in view:
            transformations = view.object("transformations").read_values(JsonObject.array)
        try:
            name = check_name(view.text("name"), noun="feature view")
            if labels is not None:
                parse_group_reference(labels)
        except (InvalidName, InvalidReference) as error:
            raise MalformedJson(error.message) from error
        return cls(
            name=name,
            version=view.number("version", minimum=1),
            steps=tuple(map(_parse_step, view.objects("steps"))),
            labels=labels,
            label=view.texts("label"),
            label_time=view.optional_text("label_time"),
            description=view.text("description"),
            tags=view.object("tags").read_values(JsonObject.text),
            created=view.text("created"),
            transformations=transformations,
        )

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


def _parse_step(data: JsonObject) -> ViewStep:
    """Parse one ``get_features`` call of a view."""
    join = data.text("join")
    if join not in JOINS:
        raise data.wrong_type_error("join", "'left' or 'inner'")
    join_key = data.get("join_key")
    # The forms of the ``join_key`` argument of ``get_features``.
    if join_key is not None and not isinstance(join_key, str | list | dict):
        raise data.wrong_type_error("join_key", "a name, a list or an object")
    features = tuple(map(_parse_feature, data.objects("features")))
    on_demand: tuple[OnDemandFeature, ...] = ()
    if "on_demand" in data:
        on_demand = tuple(map(OnDemandFeature.from_json, data.objects("on_demand")))
    return ViewStep(features, join_key, join, on_demand)  # type: ignore[arg-type]


def _feature_json(feature: ViewFeature) -> JsonDict:
    data = dict(vars(feature))
    del data["window"]
    if feature.window is not None:
        data["window"] = window_to_json(feature.window)
    return data


def _parse_feature(data: JsonObject) -> ViewFeature:
    """Parse one feature of a step."""
    window = None
    if "window" in data:
        window = window_from_json(data.object("window"))
    try:
        # The name becomes part of a path, so it is checked like a name in an argument.
        group = check_name(data.text("group"))
    except InvalidName as error:
        raise MalformedJson(error.message) from error
    return ViewFeature(
        group=group,
        version=data.number("version", minimum=1),
        column=data.text("column"),
        name=data.text("name"),
        type=data.get("type"),
        window=window,
    )
