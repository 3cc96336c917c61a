"""Rows of a window job: keys and instants are the labels of one retrieval."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import InvalidJob, NoJoinKey, listing
from featurestore.jobs.inputs import PinnedInput
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.job import JobSpec, WindowJob, input_name
from featurestore.model.names import FeatureReference, format_group_reference
from featurestore.model.times import Window
from featurestore.model.window_features import WindowFeature
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.retrieval import FeatureFrame, get_features
from featurestore.retrieval.catalog import Pins, RegisteredSpecs
from featurestore.retrieval.planner import LabelSide, RetrievalOptions
from featurestore.retrieval.resolve import Feature, Specs, find_spec, resolve
from featurestore.retrieval.windows import plan_windows
from featurestore.session import Session
from featurestore.usersql import quote


def with_primary_key(session: Session, spec: JobSpec) -> JobSpec:
    """Return a window job with a primary key: its own one, or else that of its groups.

    Raises:
        FeatureGroupNotFound: The group of an aggregate does not exist.
        InvalidJob: Its groups have different keys.
    """
    if spec.kind != "window" or spec.primary_key:
        return spec
    group_specs = RegisteredSpecs(session)
    keys: dict[tuple[str, ...], str] = {}
    for each in WindowJob.from_spec(spec).windows:
        group = _spec_of(each, group_specs)
        keys[group.primary_key] = group.name
    if len(keys) > 1:
        key_texts = [f"{name} ({', '.join(key)})" for key, name in keys.items()]
        raise InvalidJob(
            f"Job {spec.name!r}: its groups have different keys: {listing(key_texts)}.",
            hint="primary_key=['the columns that identify a row of the job']",
        )
    (key,) = keys
    if not key:
        raise InvalidJob(
            f"Job {spec.name!r}: {listing(keys.values())} has no primary key.",
            hint="primary_key=['the columns that identify a row of the job']",
        )
    return replace(spec, primary_key=key)


def check_window_job(
    session: Session, spec: JobSpec, *, future_groups: Collection[str] = ()
) -> None:
    """Refuse a window job that its groups cannot compute.

    Args:
        session: The connection.
        spec: The job, with its key.
        future_groups: Groups that other jobs will create: they cannot be checked yet.

    Raises:
        FeatureGroupNotFound, FeatureNotFound: The input of an aggregate does not exist.
        InvalidArgument, InvalidSql: An aggregate is not defined for its column or its group.
        NoJoinKey: No group has the key of the rows.
    """
    if spec.kind != "window":
        return
    group_specs = RegisteredSpecs(session)
    features: list[tuple[Feature, WindowFeature]] = []
    for each in WindowJob.from_spec(spec).windows:
        group = str(each.reference.group)
        if group in future_groups and group not in group_specs:
            continue
        features.append((resolve(str(each.reference), specs=group_specs)[0], each))
    if features:
        label_side = LabelSide(_label_schema(spec, [feature.spec for feature, _ in features]))
        options = RetrievalOptions(label_time=spec.event_time)
        plan_windows(
            features, labels=label_side, options=options, source=Pins(session, group_specs).source
        )


@dataclass(frozen=True)
class WindowRows:
    """The rows of a window job, computed from pinned inputs; keys are staged in ``staging``."""

    session: Session
    spec: JobSpec
    inputs: tuple[PinnedInput, ...]
    staging: str

    def compute(self, windows: Sequence[Window]) -> Relation:
        """Return the rows of neighbouring windows, unsorted."""
        job = WindowJob.from_spec(self.spec)
        instants: list[datetime] = []
        for window in windows:
            instants += job.instants(window)
        versions: dict[str, int | datetime | str] = {}
        for pinned in self.inputs:
            reference = format_group_reference(pinned.source, pinned.version)
            versions[reference] = int(str(pinned.delta_version))
        group_specs = RegisteredSpecs(self.session)
        pins = Pins(self.session, group_specs, as_of=versions)
        features = [_at_version(each, self.inputs) for each in job.windows]
        job = replace(job, windows=tuple(features))
        times = {}
        for each in features:
            event_time = str(_spec_of(each, group_specs).event_time)
            times[each.reference] = replace(each.reference, feature=event_time)
        counts = job.presence(times)
        labels = self._labels(job, instants)
        frame = get_features(
            self.session,
            [*features, *counts],
            labels=FeatureFrame(self.session, labels),
            label_time=self.spec.event_time,
            pins=pins,
        )
        column_names = [*labels.schema.names, *[each.name for each in features]]
        has_rows = " or ".join([f"{each.name} > 0" for each in counts])
        return frame.filter(has_rows).select(*column_names).relation

    def _labels(self, job: WindowJob, instants: Sequence[datetime]) -> Relation:
        """Return every key with rows in the range of the instants, combined with every instant."""
        engine, column = self.session.engine, str(self.spec.event_time)
        keys = []
        tables = {}
        for number, pinned in enumerate(self._inputs_with_keys()):
            tables[f"fs_rows_{number}"] = self._key_rows(pinned, job, instants)
            keys.append(self._distinct_keys(f"fs_rows_{number}"))
        ends = pa.table({column: pa.array(instants, TIMESTAMP)})
        tables["fs_ends"] = engine.from_arrow(ends.to_reader())
        column_list = self._quoted([*self.spec.primary_key, column])
        labels = engine.sql(
            f"SELECT {column_list} FROM ({' UNION '.join(keys)}) AS fs_keys CROSS JOIN fs_ends",
            tables=tables,
            parameters={},
        )
        schema = _label_schema(self.spec, [_group_spec(pinned) for pinned in self.inputs])
        typed = Relation(engine.name, labels.native, schema, single_use=True)
        return engine.stage(typed, os.path.join(self.staging, "labels"))

    def _inputs_with_keys(self) -> list[PinnedInput]:
        return [
            each for each in self.inputs if _has_columns(_group_spec(each), self.spec.primary_key)
        ]

    def _key_rows(
        self, pinned: PinnedInput, job: WindowJob, instants: Sequence[datetime]
    ) -> Relation:
        """Return keys and times of the rows that any of the instants may aggregate."""
        group = _group_spec(pinned)
        columns = list(dict.fromkeys([*self.spec.primary_key, str(group.event_time)]))
        rows = self.session.engine.read_table(
            pinned.path, version=pinned.delta_version, schema=group.schema, columns=columns
        )
        if job.lookback is None:
            return rows
        time_range = TimeRange(
            str(group.event_time), instants[0] - job.lookback, instants[-1], closed="right"
        )
        return self.session.engine.within(rows, time_range)

    def _distinct_keys(self, table: str) -> str:
        column_list = self._quoted(self.spec.primary_key)
        present = " AND ".join(
            [f"{self._quoted([name])} IS NOT NULL" for name in self.spec.primary_key]
        )
        return f"SELECT DISTINCT {column_list} FROM {table} WHERE {present}"

    def _quoted(self, names: Sequence[str]) -> str:
        dialect = self.session.engine.dialect
        return ", ".join([quote(name, dialect=dialect) for name in names])


def _label_schema(spec: JobSpec, groups: Sequence[FeatureGroupSpec]) -> pa.Schema:
    """Return keys and event time of a job's rows, with types of the first group with all keys."""
    for group in groups:
        if _has_columns(group, spec.primary_key):
            fields = [group.schema.field(name) for name in spec.primary_key]
            return pa.schema([*fields, pa.field(str(spec.event_time), TIMESTAMP)])
    names = [group.name for group in groups]
    raise NoJoinKey(
        f"Job {spec.name!r}: no group of {listing(dict.fromkeys(names))} has the columns "
        f"{listing(spec.primary_key)}, which identify its rows.",
        hint="primary_key= names columns that the aggregates' groups have",
    )


def _has_columns(group: FeatureGroupSpec, key: Sequence[str]) -> bool:
    return set(key) <= set(group.schema.names)


def _group_spec(pinned: PinnedInput) -> FeatureGroupSpec:
    assert pinned.spec is not None  # the inputs of a window job are groups
    return pinned.spec


def _spec_of(feature: WindowFeature, specs: Specs) -> FeatureGroupSpec:
    reference = feature.reference
    return find_spec(
        str(reference.group), version=reference.version, specs=specs, feature=reference.feature
    )


def _at_version(feature: WindowFeature, inputs: Sequence[PinnedInput]) -> WindowFeature:
    """Return an aggregate over the pinned version of its group."""
    reference: FeatureReference = feature.reference
    if reference.version is not None:
        return feature
    versions = {each.name: each.version for each in inputs}
    return replace(feature, reference=replace(reference, version=versions[input_name(feature)]))
