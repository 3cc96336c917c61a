"""Retrievals as a remote client writes them: what to read, what to cut from it, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from featurestore.errors import InvalidArgument, LimitExceeded
from featurestore.model.counts import MAX_INT64, MAX_VERSION
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.model.on_demand import OnDemandFeature, feature
from featurestore.model.time_limits import check_time
from featurestore.model.window_features import WindowFeature
from featurestore.model.window_json import window_from_json
from featurestore.retrieval import FeatureFrame
from featurestore.store import FeatureStore

Name = Annotated[str, Field(max_length=255)]
Names = Annotated[list[Name], Field(max_length=10_000)]
Reference = Annotated[str, Field(max_length=1000)]
Version = Annotated[int, Field(ge=1, le=MAX_VERSION)]
DeltaVersion = Annotated[int, Field(ge=0, le=MAX_INT64)]
AsOf = DeltaVersion | Annotated[str, Field(max_length=100)]
# By name of a group: its version, or what it is read as of.
Versions = Annotated[dict[Name, Version], Field(max_length=10_000)]
Moments = Annotated[dict[Name, AsOf], Field(max_length=10_000)]


class _Strict(BaseModel, extra="forbid"):
    """An object without other entries than these."""


class ReadGroup(_Strict):
    """The data of a feature group."""

    kind: Literal["featuregroup"]
    name: Name
    version: Version | None = None
    as_of: AsOf | None = None


class ReadFeatures(_Strict):
    """Features joined to labels: those that were uploaded, or the group of a name.

    A feature is a reference, ``{"window": what window_to_json writes}``, or ``{"on_demand": {name,
    sql}}``.
    """

    kind: Literal["features"]
    features: list[Reference | dict[str, Any]] = Field(min_length=1, max_length=10_000)
    labels: Name | None = None
    uploaded: bool = False
    label_time: Name | None = None
    versions: Versions | None = None
    join_key: Name | Names | dict[Name, Any] | None = None
    join: Literal["left", "inner"] = "left"
    as_of: AsOf | Moments | None = None
    include_keys: bool = False
    created_time_filter: bool = True


class ReadSplit(_Strict):
    """A split of a training dataset."""

    kind: Literal["split"]
    name: Name
    version: Version
    split: Name


class Sample(_Strict):
    """A share of the rows."""

    fraction: float
    seed: int = Field(default=0, ge=-MAX_INT64, le=MAX_INT64)
    by: Names | None = None


class Step(_Strict):
    """One cut: columns, a condition, or a sample; exactly one of them is given."""

    select: Names | None = None
    filter: str | None = None
    sample: Sample | None = None


class Retrieval(_Strict):
    """What a client asks for; ``answer`` "schema" gives no rows, "count" their number."""

    read: ReadGroup | ReadFeatures | ReadSplit = Field(discriminator="kind")
    steps: list[Step] = Field(default_factory=list, max_length=100)
    answer: Literal["rows", "schema", "count"] = "rows"
    limit: int | None = Field(default=None, ge=0, le=MAX_INT64)
    batch_rows: int = Field(default=65_536, ge=1, le=1_048_576)


def check_conditions(asked: Retrieval, *, most: int) -> None:
    """Refuse a retrieval whose SQL, all of it together, has more characters than it may.

    Raises:
        LimitExceeded: Names the bound.
    """
    texts = [step.filter for step in asked.steps if step.filter is not None]
    if isinstance(asked.read, ReadFeatures):
        texts += [_sql_of(each) for each in asked.read.features if not isinstance(each, str)]
    check_sql(*texts, most=most)


def check_sql(*texts: str, most: int) -> None:
    """Refuse texts of SQL that have more characters together than one request may have.

    Raises:
        LimitExceeded: Names the bound.
    """
    characters = sum(map(len, texts))
    if characters > most:
        raise LimitExceeded(
            f"The conditions of the request have {characters:,} characters; the bound is {most:,}.",
            hint="join a group of the values instead of listing them",
        )


def _sql_of(feature: Mapping[str, Any]) -> str:
    on_demand = feature.get("on_demand")
    return str(on_demand.get("sql", "")) if isinstance(on_demand, dict) else ""


def frame_of(store: FeatureStore, asked: Retrieval, labels: object | None) -> FeatureFrame:
    """Return the lazy frame that a client asks for; no row is read."""
    check_time()
    frame = _read(store, asked.read, labels)
    for step in asked.steps:
        given = [each for each in (step.select, step.filter, step.sample) if each is not None]
        if len(given) != 1:
            raise InvalidArgument("A step is one of select, filter and sample.")
        if step.select is not None:
            frame = frame.select(*step.select)
        elif step.filter is not None:
            frame = frame.filter(step.filter)
        elif step.sample is not None:
            sample = step.sample
            frame = frame.sample(fraction=sample.fraction, seed=sample.seed, by=sample.by)
    return frame


def _read(
    store: FeatureStore,
    read: ReadGroup | ReadFeatures | ReadSplit,
    labels: object | None,
) -> FeatureFrame:
    found: FeatureFrame
    if isinstance(read, ReadGroup):
        found = store.get_featuregroup(read.name, version=read.version, as_of=read.as_of)
    elif isinstance(read, ReadSplit):
        found = store.get_training_dataset(read.name, version=read.version).read(read.split)
    else:
        if read.uploaded != (labels is not None):
            raise InvalidArgument("The labels that were announced did not come.")
        found = store.get_features(
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
    return found


def _feature(given: str | Mapping[str, Any]) -> str | WindowFeature | OnDemandFeature:
    if isinstance(given, str):
        return given
    try:
        data = JsonObject.from_value(given, "features")
        if "window" in data:
            return window_from_json(data.object("window"))
        on_demand = data.object("on_demand")
        return feature(on_demand.text("name"), on_demand.text("sql"))
    except MalformedJson as error:
        raise InvalidArgument(f"This is no feature: {error}.") from error


def _as_of(given: int | str | Mapping[str, int | str] | None) -> Any:
    if isinstance(given, int):
        raise InvalidArgument(
            f"as_of={given} is a Delta version of one group, not of a retrieval.",
            hint="as_of={group: version}",
        )
    return given
