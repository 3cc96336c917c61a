"""Creation under the name of an existing group: reuse of equal groups, and notices to the caller.

A notebook cell that is run again must not create a version of the same rows, and a caller who
creates another version must know it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from featurestore.errors import UnsupportedType
from featurestore.featuregroups.frames import read_quarantine
from featurestore.featuregroups.table import OpenGroup
from featurestore.hashing import row_hash, tie_hash
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.group_options import GroupOptions
from featurestore.model.job import JobSpec, MonitorWork, WindowedWork
from featurestore.model.names import parse_group_reference
from featurestore.plugins.engine import Relation
from featurestore.registry.artifacts import feature_views
from featurestore.session import Session

_LISTED = 3
# (number of rows, two sums of row hashes modulo 2**64)
ContentHash = tuple[int, int, int]


@dataclass(frozen=True)
class Notices:
    """Notices of a request to a server, which returns them to its client.

    ``visible`` is the session whose registry shows only what the visitor may see.
    """

    visible: Session
    texts: list[str] = field(default_factory=list)


_notices: ContextVar[Notices | None] = ContextVar("notices", default=None)


@contextmanager
def collect_notices(visible: Session) -> Iterator[list[str]]:
    """Collect notices for the duration of a block instead of printing them."""
    notices = Notices(visible)
    token = _notices.set(notices)
    try:
        yield notices.texts
    finally:
        _notices.reset(token)


def notify(text: str) -> None:
    """Print a line for the caller, or collect it."""
    notices = _notices.get()
    if notices is not None:
        notices.texts.append(text)
        return
    # The group exists already, so a closed standard output must not raise an error.
    with suppress(OSError, ValueError):
        sys.stdout.write(f"{text}\n")


def contains_rows(
    session: Session,
    group: OpenGroup,
    rows: Relation,
    *,
    quarantined: Relation | None,
    row_count: int | None,
) -> bool:
    """Return True if a group contains exactly the rows of a write, in any order.

    ``row_count`` is the number of rows if it is known. Quarantined rows are compared with the
    quarantine of the group.
    """
    spec = group.spec
    if spec.external is not None:
        return True  # the definition determines the rows
    if row_count is not None and quarantined is None and group.state.rows not in (None, row_count):
        return False
    stored_rows = session.engine.read_table(
        group.path, version=group.delta_version, schema=spec.schema
    )
    if not _have_equal_rows(session, rows, stored_rows, spec.schema.names):
        return False
    if quarantined is None:
        return True
    quarantine = read_quarantine(session, spec.name, version=spec.version).relation
    return _have_equal_rows(session, quarantined, quarantine, spec.schema.names)


def _have_equal_rows(
    session: Session, rows: Relation, group_rows: Relation, columns: Sequence[str]
) -> bool:
    selection = {name: name for name in columns}
    accumulator = _ContentHasher()
    try:
        row_hash(pa.schema([group_rows.schema.field(name) for name in columns]).empty_table())
    except UnsupportedType:
        return False  # types without a hash cannot be compared
    engine = session.engine
    content = engine.aggregate(engine.select(rows, selection), accumulator)
    return content == engine.aggregate(engine.select(group_rows, selection), accumulator)


class _ContentHasher:
    """An accumulator that hashes a multiset of rows."""

    threads = 1

    def start(self) -> ContentHash:
        return 0, 0, 0

    def update(self, state: ContentHash, batch: pa.RecordBatch) -> ContentHash:
        if not batch.num_rows:
            return state
        # The two hashes are independent; the second distinguishes 0.0 and -0.0.
        sums = [int(np.add.reduce(hashes)) for hashes in (row_hash(batch), tie_hash(batch))]
        return self.merge(state, (batch.num_rows, sums[0], sums[1]))

    def merge(self, first: ContentHash, second: ContentHash) -> ContentHash:
        rows, row_sum, tie_sum = (a + b for a, b in zip(first, second, strict=True))
        return rows, row_sum % 2**64, tie_sum % 2**64

    def finish(self, state: ContentHash) -> ContentHash:
        return state


def reuse_notice(group: OpenGroup, declared: GroupOptions) -> str:
    """Return the notice that an equal group exists."""
    spec = group.spec
    notice = (
        f"Feature group {spec.name!r} version {spec.version} already has this definition and these "
        "rows; nothing was written."
    )
    if declared.description or declared.descriptions or declared.tags:
        notice += " Its descriptions and tags are unchanged: update_featuregroup sets them."
    return notice


def version_notice(
    session: Session, spec: FeatureGroupSpec, existing: OpenGroup, differences: Sequence[str]
) -> str:
    """Return the notice that another version of an existing group was created."""
    created = f"Created version {spec.version} of feature group {spec.name!r}"
    if differences:
        notice = f"{created}, which differs from version {existing.spec.version}: "
        notice += f"{'; '.join(differences)}."
        return " ".join([notice, *_describe_readers(session, existing.spec)])
    return (
        f"{created}: the definition of version {existing.spec.version}, but other rows. "
        f"insert_into_featuregroup(df, {spec.name!r}) adds rows to a version, "
        f"get_or_create_featuregroup(df, {spec.name!r}) returns it as it is."
    )


def _describe_readers(session: Session, spec: FeatureGroupSpec) -> list[str]:
    """Describe the jobs that follow the latest version, and the views that keep the previous."""
    # A new group has no jobs.
    from featurestore.registry import jobs

    notices = _notices.get()
    registry = (session if notices is None else notices.visible).registry
    with registry.reading() as connection:
        followers = [
            f"job {job.spec.name!r}"
            for job in jobs.list_all(connection)
            if _reads_latest(job.spec, spec.name)
        ]
        views = [
            f"{view.name!r} version {view.version}"
            for view in feature_views.views_reading(connection, spec.name, spec.version)
        ]
    sentences = []
    if followers:
        sentences.append(f"Follow the latest version: {_shorten(followers)}.")
    if views:
        sentences.append(f"Keep version {spec.version}: feature view {_shorten(views)}.")
    return sentences


def _reads_latest(job: JobSpec, group: str) -> bool:
    """Return True if a job reads or monitors a group without a fixed version."""
    references = list(job.inputs.values())
    if isinstance(job.work, MonitorWork):
        references.append(job.work.watched.featuregroup)
    # Paths and sources are inputs, too.
    groups = [text for text in references if "/" not in text and ":" not in text]
    return (group, None) in map(parse_group_reference, groups) or (
        isinstance(job.work, WindowedWork) and job.target == group
    )


def _shorten(texts: Sequence[str]) -> str:
    more = len(texts) - _LISTED
    return ", ".join(texts[:_LISTED]) + (f" and {more} more" if more > 0 else "")
