"""Order version 1 as docs/reader-order.md defines it, row by row in plain Python."""

from __future__ import annotations

M = 2**64
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x %= M
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % M
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % M
    return x ^ (x >> 31)


def permutation(size: int, key: int) -> list[int]:
    return sorted(range(size), key=lambda i: mix(key + (i + 1) * GOLDEN))


def key(purpose: int, seed: int, epoch: int, lane: int = 0, window: int = 0) -> int:
    result = mix(purpose * GOLDEN)
    for value in (seed, epoch, lane, window):
        result = mix(result + mix(value + GOLDEN))
    return result


def lanes_of_epoch(
    *, rows: int, block_rows: int, window_rows: int, lanes: int, seed: int, epoch: int
) -> list[list[int]]:
    """The rows of every lane in reading order."""
    blocks = [
        list(range(start, min(rows, start + block_rows))) for start in range(0, rows, block_rows)
    ]
    positions = [
        row for block in permutation(len(blocks), key(101, seed, epoch)) for row in blocks[block]
    ]
    result = []
    for lane in range(lanes):
        lane_rows = positions[lane * rows // lanes : (lane + 1) * rows // lanes]
        windows = [
            lane_rows[start : start + window_rows]
            for start in range(0, len(lane_rows), window_rows)
        ]
        result.append(
            [
                window[index]
                for number, window in enumerate(windows)
                for index in permutation(len(window), key(102, seed, epoch, lane, number))
            ]
        )
    return result


def global_batches(
    *, global_batch_size: int, remainder: str, rows: int, lanes: int, **options: int
) -> list[list[int]]:
    """All global batches of an epoch; -1 is padding."""
    b = global_batch_size // lanes
    steps = rows // global_batch_size if remainder == "drop" else -(-rows // global_batch_size)
    streams = lanes_of_epoch(rows=rows, lanes=lanes, **options)
    padded = [stream + [-1] * (steps * b) for stream in streams]
    return [
        [row for stream in padded for row in stream[step * b : (step + 1) * b]]
        for step in range(steps)
    ]
