"""Open the source of a stream, and check a stream job before anything is read."""

from __future__ import annotations

from featurestore.arrow.fitting import widens
from featurestore.errors import DataWarning, InvalidJob
from featurestore.external.reading import open_source
from featurestore.featuregroups.table import open_group
from featurestore.model.arguments import warn_caller
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.job import JobSpec
from featurestore.model.stream import StreamSpec
from featurestore.plugins.engine import BatchFunction
from featurestore.plugins.source import RECORD_COLUMNS, DecoderRequest, HasStreams
from featurestore.registry import featuregroups, sources
from featurestore.session import Session


def streams_of(session: Session, stream: StreamSpec) -> HasStreams:
    """Return the source of a stream, without a connection.

    Raises:
        SourceNotFound: No source of this name is registered.
        InvalidJob: The source has no topics.
    """
    with session.registry.reading() as connection:
        registered = sources.get(connection, stream.source)
    source = open_source(session, registered)
    if not isinstance(source, HasStreams):
        raise InvalidJob(
            f"Source {stream.source!r} is of kind {registered.kind!r}, which has no topics.",
            hint="featurestore.add_source('events', 'kafka://broker:9092')",
        )
    return source


def decoder_of(source: HasStreams, spec: JobSpec) -> BatchFunction:
    """Return the decoder of a stream job; its keys and times are never null."""
    assert spec.stream is not None
    times = tuple(name for name in (spec.event_time, spec.created_time) if name is not None)
    # Readable rows can only be quarantined for these reasons.
    keep_values = bool(spec.expectations) or spec.stream.on_duplicates == "quarantine"
    return source.decoder(
        spec.stream, DecoderRequest(spec.primary_key, times, spec.partition_by, keep_values)
    )


def differing_columns(stream: StreamSpec, group: FeatureGroupSpec) -> list[str]:
    """Describe the differences that need a new version of a group: columns removed or changed.

    New columns need none, nor does a type that widens to that of the group.
    """
    declared = {field.name: field.type for field in stream.columns}
    differences = []
    for field in group.schema:
        kind = declared.get(field.name)
        if kind is None:
            differences.append(f"{field.name!r} is missing")
        elif not widens(kind, field.type):
            differences.append(f"{field.name!r} is {kind} instead of {field.type}")
    return differences


def check_stream_job(session: Session, spec: JobSpec) -> None:
    """Refuse a job that cannot run; the broker is queried for the topic.

    Raises:
        SourceNotFound: The source is not registered.
        SourceUnavailable: No broker responds.
        SourceTableNotFound: The topic does not exist.
        InvalidJob: The format of its values does not support the type of a column.
    """
    assert spec.stream is not None
    source = streams_of(session, spec.stream)
    decoder_of(source, spec)
    reserved = [name for name in spec.stream.columns.names if name in RECORD_COLUMNS]
    if reserved:
        raise InvalidJob(
            f"Job {spec.name!r}: the column name {reserved[0]!r} is reserved for its quarantine table.",
            hint="rename the column",
        )
    connection = source.stream()
    try:
        connection.topic(spec.stream.topic)
    finally:
        connection.close()
    _warn_of_next_version(session, spec)


def _warn_of_next_version(session: Session, spec: JobSpec) -> None:
    """Warn if the columns of a job need a new version of its group."""
    assert spec.stream is not None
    with session.registry.reading() as connection:
        registered = featuregroups.find(connection, spec.target)
    if registered is None:
        return
    group = open_group(session, spec.target).spec
    differences = differing_columns(spec.stream, group)
    if differences:
        warn_caller(
            f"job {spec.name!r} differs from feature group {group.name!r} version {group.version}: "
            f"{'; '.join(differences)}. Its next run creates version {group.version + 1}, and reads "
            "the topic from its first record",
            DataWarning,
        )
