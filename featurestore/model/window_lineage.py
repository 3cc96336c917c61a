"""What an aggregate over a window is made of: group, column, function, window and condition."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from featurestore.model.durations import format_duration
from featurestore.model.json_object import MAX_INT64, JsonObject, MalformedJson
from featurestore.model.printable import printable_line
from featurestore.model.references import format_group_reference
from featurestore.model.window_features import WindowFeature
from featurestore.model.window_json import micros


@dataclass(frozen=True)
class WindowLineage:
    """Where the column ``name`` of a plan, a view, a dataset or a group comes from."""

    name: str
    group: str
    version: int | None
    column: str
    function: str
    over_us: int | None
    offset_us: int
    where: str | None

    def __str__(self) -> str:
        group = format_group_reference(self.group, self.version)
        over = None
        if self.over_us is not None:
            over = timedelta(microseconds=self.over_us)
        offset = timedelta(microseconds=self.offset_us)
        window = window_text(over, offset, time="t")
        text = f"{self.function}({self.column}) of {group} over {window}"
        if self.where is not None:
            text += f" where {self.where}"
        return printable_line(f"{self.name} = {text}")

    @classmethod
    def from_feature(cls, feature: WindowFeature, *, version: int | None) -> WindowLineage:
        """Return the lineage of an aggregate over a version of its group."""
        return cls(
            name=feature.name,
            group=str(feature.reference.group),
            version=version,
            column=feature.reference.feature,
            function=feature.function,
            over_us=micros(feature.over),
            offset_us=micros(feature.offset) or 0,
            where=feature.where,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of one aggregate, without its group."""
        return {
            "name": self.name,
            "column": self.column,
            "function": self.function,
            "over_us": self.over_us,
            "offset_us": self.offset_us,
            "where": self.where,
        }


def window_text(over: timedelta | None, offset: timedelta, *, time: str) -> str:
    """Return a window as an interval.

    >>> window_text(timedelta(days=7), timedelta(0), time="asked_at")
    '(asked_at - 7d, asked_at]'
    >>> window_text(None, timedelta(days=1), time="t")
    '(the first row, t - 1d]'
    """
    end, start = time, "the first row"
    if offset:
        end = f"{time} - {format_duration(offset)}"
    if over is not None:
        start = f"{time} - {format_duration(over + offset)}"
    return f"({start}, {end}]"


def windows_of_plan(plan: Mapping[str, Any], *, columns: Collection[str]) -> list[WindowLineage]:
    """Return the aggregates among the columns of a plan's result, by the plan's JSON.

    What is not well formed is left out: manifests may come from elsewhere.
    """
    lineages = [each for each in _windows_of(plan) if each.name in columns]
    return lineages


def windows_of_inputs(inputs: Collection[object]) -> list[WindowLineage]:
    """Return the aggregates that the inputs of a commit or a run state."""
    lineages = []
    for each in inputs:
        if isinstance(each, Mapping) and isinstance(each.get("windows"), list | tuple):
            group = each.get("source"), each.get("version")
            lineages += list(_read_all(*group, each["windows"]))
    return lineages


def _windows_of(plan: Mapping[str, Any]) -> Iterator[WindowLineage]:
    left_plan = plan.get("left_plan")
    if isinstance(left_plan, Mapping):
        yield from _windows_of(left_plan)
    for join in plan.get("windows") or ():
        if isinstance(join, Mapping) and isinstance(join.get("source"), Mapping):
            source = join["source"]
            yield from _read_all(
                source.get("featuregroup"), source.get("version"), join.get("outputs") or ()
            )


def _read_all(group: object, version: object, listed: Any) -> Iterator[WindowLineage]:
    for each in listed:
        try:
            data = JsonObject.from_value({**each, "group": group, "version": version})
            yield _source_read(data)
        except (MalformedJson, TypeError):
            continue


def _source_read(data: JsonObject) -> WindowLineage:
    over, version = None, None
    if data.get("over_us") is not None:
        over = data.number("over_us", maximum=MAX_INT64)
    if data.get("version") is not None:
        version = data.number("version", minimum=1)
    return WindowLineage(
        name=data.text("name"),
        group=data.text("group"),
        version=version,
        column=data.text("column"),
        function=data.text("function"),
        over_us=over,
        offset_us=data.number("offset_us"),
        where=data.optional_text("where"),
    )
