"""Readers of training datasets: equal steps, exactly once, any worker count, resume at any step."""

from featurestore.readers.columns import Ragged
from featurestore.readers.reader import Reader, open_reader, resume

__all__ = ["Ragged", "Reader", "open_reader", "resume"]
