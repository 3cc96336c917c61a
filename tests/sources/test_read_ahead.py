"""Sources are read by a background thread with a bounded buffer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from featurestore.external.reading import read_in_background


def readers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "featurestore-source"]


def test_read_in_background_keeps_order() -> None:
    made: list[int] = []
    third = threading.Event()

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            if number == 3:
                third.set()
            yield number

    ahead = read_in_background(items)
    assert next(ahead) == 0
    assert third.wait(60)  # not requested yet
    assert len(made) <= 5  # bounded: two in the queue, one being read
    assert list(ahead) == list(range(1, 100))
    assert not readers()


def test_read_in_background_raises_errors_in_order() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("the source fell over")

    ahead = read_in_background(items)
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="fell over"):
        next(ahead)
    assert not readers()


def test_read_in_background_stops_with_its_consumer() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from range(1_000_000)
        finally:
            closed.set()

    ahead = read_in_background(items)
    assert next(ahead) == 0
    ahead.close()  # type: ignore[attr-defined]
    assert closed.is_set()
    assert not readers()
