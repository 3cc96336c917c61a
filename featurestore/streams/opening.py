"""The source of a stream, and what can be known to fail before anything is read."""

from __future__ import annotations

from featurestore.errors import InvalidJob
from featurestore.external.opening import open_source
from featurestore.model.job import JobSpec
from featurestore.model.stream import StreamSpec
from featurestore.plugins.engine import BatchFunction
from featurestore.plugins.stream import RECORD_COLUMNS, HasStreams
from featurestore.registry import sources
from featurestore.session import Session


def streams_of(session: Session, stream: StreamSpec) -> HasStreams:
    """Return the source of a stream; nothing is connected.

    Raises:
        SourceNotFound: No source of this name is registered.
        InvalidJob: It has no topics.
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
    """Return the decoder of a stream job: its keys and times are never null."""
    assert spec.stream is not None
    times = [name for name in (spec.event_time, spec.created_time) if name is not None]
    return source.decoder(spec.stream, (*spec.primary_key, *times))


def check_stream_job(session: Session, spec: JobSpec) -> None:
    """Refuse a job that would fail whatever its topic holds; the broker is asked for the topic.

    Raises:
        SourceNotFound: Its source is not registered.
        SourceUnavailable: No broker answers.
        SourceTableNotFound: There is no such topic.
        InvalidJob: The format of its values cannot hold a column.
    """
    assert spec.stream is not None
    source = streams_of(session, spec.stream)
    decoder_of(source, spec)
    taken = [name for name in spec.stream.columns.names if name in RECORD_COLUMNS]
    if taken:
        raise InvalidJob(
            f"Job {spec.name!r}: a column cannot be called {taken[0]!r}, which is a column of its "
            "quarantine table.",
            hint="give it another name",
        )
    connection = source.stream()
    try:
        connection.topic(spec.stream.topic)
    finally:
        connection.close()
