"""Streams: write the records of topics into feature groups exactly once."""

from featurestore.streams.loop import Progress, StreamTarget, consume
from featurestore.streams.opening import check_stream_job

__all__ = ["Progress", "StreamTarget", "check_stream_job", "consume"]
