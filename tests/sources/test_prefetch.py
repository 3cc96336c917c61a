"""Sources are read by a background thread with a bounded buffer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from featurestore.external.reading import read_in_background


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "featurestore-source"]


def test_read_in_background_keeps_order() -> None:
    source_items: list[int] = []
    third = threading.Event()

    def items() -> Iterator[int]:
        for number in range(100):
            source_items.append(number)
            if number == 3:
                third.set()
            yield number

    buffered_items = read_in_background(items)
    assert next(buffered_items) == 0
    assert third.wait(60)  # not requested yet
    assert len(source_items) <= 5  # bounded: two in the queue, one being read
    assert list(buffered_items) == list(range(1, 100))
    assert not readers()


def test_read_in_background_raises_errors_in_order() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("the source fell over")

    buffered_items = read_in_background(items)
    assert next(buffered_items) == 1
    with pytest.raises(ValueError, match="fell over"):
        next(buffered_items)
    assert not readers()


def test_read_in_background_stops_with_its_consumer() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from range(1_000_000)
        finally:
            closed.set()

    buffered_items = read_in_background(items)
    assert next(buffered_items) == 0
    buffered_items.close()  # type: ignore[attr-defined]
    assert closed.is_set()
    assert not readers()
