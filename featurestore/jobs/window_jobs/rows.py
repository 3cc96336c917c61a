"""The rows of a window job: keys times instants as labels of one retrieval."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from featurestore.errors import InvalidJob, NoJoinKey, listing
from featurestore.jobs.inputs import PinnedInput
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.job import JobSpec
from featurestore.model.references import FeatureReference, format_group_reference
from featurestore.model.types import TIMESTAMP
from featurestore.model.window import Window
from featurestore.model.window_features import WindowFeature
from featurestore.model.window_job import WindowJob, input_name
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.retrieval import FeatureFrame, get_features
from featurestore.retrieval.catalog import Pins, RegisteredSpecs
from featurestore.retrieval.planner import LabelSide, RetrievalOptions
from featurestore.retrieval.resolve import Feature, Specs, find_spec, resolve
from featurestore.retrieval.windows import plan_windows
from featurestore.session import Session
from featurestore.usersql import quote


def with_its_key(session: Session, spec: JobSpec) -> JobSpec:
    """Return a window job with the primary key of its rows: that of its groups, unless it says one.

    Raises:
        FeatureGroupNotFound: A group that has to say the key does not exist.
        InvalidJob: Its groups have different keys.
    """
    if spec.kind != "window" or spec.primary_key:
        return spec
    known = RegisteredSpecs(session)
    keys: dict[tuple[str, ...], str] = {}
    for each in WindowJob.of(spec).windows:
        group = _spec_of(each, known)
        keys[group.primary_key] = group.name
    if len(keys) > 1:
        said = [f"{name} ({', '.join(key)})" for key, name in keys.items()]
        raise InvalidJob(
            f"Job {spec.name!r}: its groups have different keys: {listing(said)}.",
            hint="primary_key=['the columns that identify a row of the job']",
        )
    (key,) = keys
    if not key:
        raise InvalidJob(
            f"Job {spec.name!r}: {listing(keys.values())} has no primary key.",
            hint="primary_key=['the columns that identify a row of the job']",
        )
    return replace(spec, primary_key=key)


def check(session: Session, spec: JobSpec, *, coming: Collection[str] = ()) -> None:
    """Refuse a window job that its groups cannot answer, before anything is computed.

    Args:
        session: The connection.
        spec: The job, with its key.
        coming: Groups that other jobs will make: nothing is known of them yet.

    Raises:
        FeatureGroupNotFound, FeatureNotFound: An aggregate is of nothing that exists.
        InvalidArgument, InvalidSql: An aggregate has no meaning for its column or its group.
        NoJoinKey: No group has the key of the rows.
    """
    if spec.kind != "window":
        return
    known = RegisteredSpecs(session)
    asked: list[tuple[Feature, WindowFeature]] = []
    for each in WindowJob.of(spec).windows:
        group = str(each.reference.group)
        if group in coming and group not in known:
            continue
        asked.append((resolve(str(each.reference), specs=known)[0], each))
    if asked:
        left = LabelSide(_label_schema(spec, [feature.spec for feature, _ in asked]))
        options = RetrievalOptions(label_time=spec.event_time)
        plan_windows(asked, left=left, options=options, source=Pins(session, known).source)


@dataclass(frozen=True)
class WindowRows:
    """A window job at work: its inputs pinned, and where to stage the keys."""

    session: Session
    spec: JobSpec
    inputs: tuple[PinnedInput, ...]
    staging: str

    def of(self, windows: Sequence[Window]) -> Relation:
        """Return the rows of neighbouring windows, unsorted."""
        job = WindowJob.of(self.spec)
        instants: list[datetime] = []
        for window in windows:
            instants += job.instants(window)
        pinned: dict[str, int | datetime | str] = {}
        for given in self.inputs:
            reference = format_group_reference(given.source, given.version)
            pinned[reference] = int(str(given.delta_version))
        known = RegisteredSpecs(self.session)
        pins = Pins(self.session, known, as_of=pinned)
        asked = [_at_version(each, self.inputs) for each in job.windows]
        job = replace(job, windows=tuple(asked))
        times = {}
        for each in asked:
            event_time = str(_spec_of(each, known).event_time)
            times[each.reference] = replace(each.reference, feature=event_time)
        present = job.presence(times)
        labels = self._labels(job, instants)
        frame = get_features(
            self.session,
            [*asked, *present],
            labels=FeatureFrame(self.session, labels),
            label_time=self.spec.event_time,
            pins=pins,
        )
        written = [*labels.schema.names, *[each.name for each in asked]]
        has_rows = " or ".join([f"{each.name} > 0" for each in present])
        return frame.filter(has_rows).select(*written).relation

    def _labels(self, job: WindowJob, instants: Sequence[datetime]) -> Relation:
        """Return every key that may have rows at some of the instants, at each of them."""
        engine, column = self.session.engine, str(self.spec.event_time)
        keys = []
        tables = {}
        for number, given in enumerate(self._with_all_keys()):
            tables[f"fs_rows_{number}"] = self._seen(given, job, instants)
            keys.append(self._distinct_keys(f"fs_rows_{number}"))
        ends = pa.table({column: pa.array(instants, TIMESTAMP)})
        tables["fs_ends"] = engine.from_arrow(ends.to_reader())
        listed = self._quoted([*self.spec.primary_key, column])
        found = engine.sql(
            f"SELECT {listed} FROM ({' UNION '.join(keys)}) AS fs_keys CROSS JOIN fs_ends",
            tables=tables,
            parameters={},
        )
        schema = _label_schema(self.spec, [_checked(given) for given in self.inputs])
        typed = Relation(engine.name, found.native, schema, single_use=True)
        return engine.stage(typed, os.path.join(self.staging, "labels"))

    def _with_all_keys(self) -> list[PinnedInput]:
        return [each for each in self.inputs if _has(_checked(each), self.spec.primary_key)]

    def _seen(self, given: PinnedInput, job: WindowJob, instants: Sequence[datetime]) -> Relation:
        """Return keys and times of the rows that count at some instant, and perhaps of more."""
        group = _checked(given)
        columns = list(dict.fromkeys([*self.spec.primary_key, str(group.event_time)]))
        rows = self.session.engine.read_table(
            given.path, version=given.delta_version, schema=group.schema, columns=columns
        )
        if job.reach is None:
            return rows
        seen = TimeRange(
            str(group.event_time), instants[0] - job.reach, instants[-1], closed="right"
        )
        return self.session.engine.within(rows, seen)

    def _distinct_keys(self, table: str) -> str:
        listed = self._quoted(self.spec.primary_key)
        present = " AND ".join(
            [f"{self._quoted([name])} IS NOT NULL" for name in self.spec.primary_key]
        )
        return f"SELECT DISTINCT {listed} FROM {table} WHERE {present}"

    def _quoted(self, names: Sequence[str]) -> str:
        dialect = self.session.engine.dialect
        return ", ".join([quote(name, dialect=dialect) for name in names])


def _label_schema(spec: JobSpec, groups: Sequence[FeatureGroupSpec]) -> pa.Schema:
    """Return keys and event time of a job's rows, the keys as the first group with all has them."""
    for group in groups:
        if _has(group, spec.primary_key):
            fields = [group.schema.field(name) for name in spec.primary_key]
            return pa.schema([*fields, pa.field(str(spec.event_time), TIMESTAMP)])
    names = [group.name for group in groups]
    raise NoJoinKey(
        f"Job {spec.name!r}: no group of {listing(dict.fromkeys(names))} has the columns "
        f"{listing(spec.primary_key)}, which identify its rows.",
        hint="primary_key= names columns that the aggregates' groups have",
    )


def _has(group: FeatureGroupSpec, key: Sequence[str]) -> bool:
    return set(key) <= set(group.schema.names)


def _checked(given: PinnedInput) -> FeatureGroupSpec:
    assert given.spec is not None  # the inputs of a window job are groups
    return given.spec


def _spec_of(wanted: WindowFeature, known: Specs) -> FeatureGroupSpec:
    reference = wanted.reference
    return find_spec(
        str(reference.group), version=reference.version, specs=known, feature=reference.feature
    )


def _at_version(wanted: WindowFeature, inputs: Sequence[PinnedInput]) -> WindowFeature:
    """Return an aggregate of the version of its group that was pinned."""
    reference: FeatureReference = wanted.reference
    if reference.version is not None:
        return wanted
    versions = {each.name: each.version for each in inputs}
    return replace(wanted, reference=replace(reference, version=versions[input_name(wanted)]))
