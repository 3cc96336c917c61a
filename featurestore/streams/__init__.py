"""Streams: write the records of topics into feature groups exactly once."""

from featurestore.streams.loop import Progress, StreamTarget, consume
from featurestore.streams.opening import (
    check_stream_definition,
    check_stream_job,
    check_topic,
)

__all__ = [
    "Progress",
    "StreamTarget",
    "check_stream_definition",
    "check_stream_job",
    "check_topic",
    "consume",
]
