"""Resumable training data readers with equal step counts and exactly-once reads on any workers."""

from featurestore.readers.columns import Ragged
from featurestore.readers.opening import open_reader, resume
from featurestore.readers.reader import Reader

__all__ = ["Ragged", "Reader", "open_reader", "resume"]
