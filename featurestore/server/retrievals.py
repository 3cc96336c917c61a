"""Retrieval requests of remote clients: source, steps and response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from featurestore.errors import InvalidArgument, LimitExceeded
from featurestore.model.arguments import MAX_INT64, MAX_VERSION
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.model.on_demand import OnDemandFeature, feature
from featurestore.model.runtime import check_time
from featurestore.model.window_features import WindowFeature, window_from_json
from featurestore.retrieval import FeatureFrame
from featurestore.store import FeatureStore

Name = Annotated[str, Field(max_length=255)]
Names = Annotated[list[Name], Field(max_length=10_000)]
Reference = Annotated[str, Field(max_length=1000)]
Version = Annotated[int, Field(ge=1, le=MAX_VERSION)]
DeltaVersion = Annotated[int, Field(ge=0, le=MAX_INT64)]
AsOf = DeltaVersion | Annotated[str, Field(max_length=100)]
# By group name: its version, or the table version to read.
Versions = Annotated[dict[Name, Version], Field(max_length=10_000)]
AsOfByGroup = Annotated[dict[Name, AsOf], Field(max_length=10_000)]


class _Strict(BaseModel, extra="forbid"):
    """Base class that rejects unknown fields."""


class ReadGroup(_Strict):
    """Read a feature group."""

    kind: Literal["featuregroup"]
    name: Name
    version: Version | None = None
    as_of: AsOf | None = None


class ReadFeatures(_Strict):
    """Join features to labels, which are uploaded or a feature group.

    A feature is a reference, ``{"window": ...}`` as written by window_to_json, or
    ``{"on_demand": {name, sql}}``.
    """

    kind: Literal["features"]
    features: list[Reference | dict[str, Any]] = Field(min_length=1, max_length=10_000)
    labels: Name | None = None
    uploaded: bool = False
    label_time: Name | None = None
    versions: Versions | None = None
    join_key: Name | Names | dict[Name, Any] | None = None
    join: Literal["left", "inner"] = "left"
    as_of: AsOf | AsOfByGroup | None = None
    include_keys: bool = False
    created_time_filter: bool = True


class ReadSplit(_Strict):
    """Read a split of a training dataset."""

    kind: Literal["split"]
    name: Name
    version: Version
    split: Name


class Sample(_Strict):
    """Sample a fraction of the rows."""

    fraction: float
    seed: int = Field(default=0, ge=-MAX_INT64, le=MAX_INT64)
    by: Names | None = None


class Step(_Strict):
    """One step: exactly one of column selection, filter and sample."""

    select: Names | None = None
    filter: str | None = None
    sample: Sample | None = None


class Retrieval(_Strict):
    """A retrieval; with ``answer`` "schema" only the schema is returned, with "count" the count."""

    read: ReadGroup | ReadFeatures | ReadSplit = Field(discriminator="kind")
    steps: list[Step] = Field(default_factory=list, max_length=100)
    answer: Literal["rows", "schema", "count"] = "rows"
    limit: int | None = Field(default=None, ge=0, le=MAX_INT64)
    batch_rows: int = Field(default=65_536, ge=1, le=1_048_576)


def check_conditions(retrieval: Retrieval, *, max_characters: int) -> None:
    """Check the total length of all SQL of a retrieval.

    Raises:
        LimitExceeded: The SQL is too long.
    """
    texts = [step.filter for step in retrieval.steps if step.filter is not None]
    if isinstance(retrieval.read, ReadFeatures):
        texts += [_sql_of(spec) for spec in retrieval.read.features if not isinstance(spec, str)]
    check_sql(*texts, max_characters=max_characters)


def check_sql(*texts: str, max_characters: int) -> None:
    """Check the total length of SQL texts.

    Raises:
        LimitExceeded: The SQL is too long.
    """
    characters = sum(map(len, texts))
    if characters > max_characters:
        raise LimitExceeded(
            f"The conditions of the request have {characters:,} characters; the limit is "
            f"{max_characters:,}.",
            hint="join a group of the values instead of listing them",
        )


def _sql_of(feature: Mapping[str, Any]) -> str:
    on_demand = feature.get("on_demand")
    return str(on_demand.get("sql", "")) if isinstance(on_demand, dict) else ""


def build_frame(store: FeatureStore, retrieval: Retrieval, labels: object | None) -> FeatureFrame:
    """Build the lazy frame of a retrieval; no row is read."""
    check_time()
    frame = _read_frame(store, retrieval.read, labels)
    for step in retrieval.steps:
        actions = [each for each in (step.select, step.filter, step.sample) if each is not None]
        if len(actions) != 1:
            raise InvalidArgument("A step has exactly one of select, filter and sample.")
        if step.select is not None:
            frame = frame.select(*step.select)
        elif step.filter is not None:
            frame = frame.filter(step.filter)
        elif step.sample is not None:
            sample = step.sample
            frame = frame.sample(fraction=sample.fraction, seed=sample.seed, by=sample.by)
    return frame


def _read_frame(
    store: FeatureStore,
    read: ReadGroup | ReadFeatures | ReadSplit,
    labels: object | None,
) -> FeatureFrame:
    frame: FeatureFrame
    if isinstance(read, ReadGroup):
        frame = store.get_featuregroup(read.name, version=read.version, as_of=read.as_of)
    elif isinstance(read, ReadSplit):
        frame = store.get_training_dataset(read.name, version=read.version).read(read.split)
    else:
        if read.uploaded != (labels is not None):
            raise InvalidArgument("uploaded=true requires labels in the request body.")
        frame = store.get_features(
            list(map(_feature, read.features)),
            labels=labels if read.uploaded else read.labels,
            label_time=read.label_time,
            versions=read.versions,
            join_key=read.join_key,
            join=read.join,
            as_of=_as_of(read.as_of),
            include_keys=read.include_keys,
            created_time_filter=read.created_time_filter,
        )
    return frame


def _feature(spec: str | Mapping[str, Any]) -> str | WindowFeature | OnDemandFeature:
    if isinstance(spec, str):
        return spec
    try:
        data = JsonObject.from_value(spec, "features")
        if "window" in data:
            return window_from_json(data.object("window"))
        on_demand = data.object("on_demand")
        return feature(on_demand.text("name"), on_demand.text("sql"))
    except MalformedJson as error:
        raise InvalidArgument(f"Invalid feature: {error}.") from error


def _as_of(as_of: int | str | Mapping[str, int | str] | None) -> Any:
    if isinstance(as_of, int):
        raise InvalidArgument(
            f"as_of={as_of} is a Delta version of one group, not of a retrieval.",
            hint="as_of={group: version}",
        )
    return as_of
