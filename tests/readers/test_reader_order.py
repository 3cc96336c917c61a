"""The reader order.

Every worker the same number of steps, every row once, the same batches for any worker count.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from featurestore.errors import ReaderConfigError
from featurestore.readers.order import PADDING, ReaderOrder, default_lanes, divisors, permutation
from tests.readers.order_reference import global_batches


@st.composite
def orders(
    draw: st.DrawFn, *, remainder: str | None = None, shuffle: bool | None = None
) -> ReaderOrder:
    lanes = draw(st.integers(1, 12))
    block_rows = draw(st.integers(1, 9))
    size = lanes * draw(st.integers(1, 5))
    remainder_rule = draw(st.sampled_from(["drop", "pad"])) if remainder is None else remainder
    rows = draw(st.integers(size if remainder_rule == "drop" else 0, 300))
    return ReaderOrder(
        rows=rows,
        block_rows=block_rows,
        window_rows=block_rows * draw(st.integers(1, 8)),
        global_batch_size=size,
        lanes=lanes,
        seed=draw(st.integers(-5, 2**64)),
        shuffle=draw(st.booleans()) if shuffle is None else shuffle,
        remainder=remainder_rule,  # type: ignore[arg-type]
    )


def all_batches(order: ReaderOrder, epoch: int, workers: int = 1) -> list[list[int]]:
    """Return the global batches, concatenated from the batches of the workers."""
    current = order.epoch(epoch)
    worker_batches = [
        current.batches(0, order.steps_per_epoch, worker=worker, workers=workers).tolist()
        for worker in range(workers)
    ]
    return [
        [row for batches in worker_batches for row in batches[step]]
        for step in range(order.steps_per_epoch)
    ]


@given(orders(shuffle=True), st.integers(0, 3))
@settings(max_examples=75, deadline=None)
@example(
    ReaderOrder(rows=3, block_rows=2, window_rows=2, global_batch_size=6, lanes=6, remainder="pad"),
    0,
)
@example(
    ReaderOrder(rows=101, block_rows=7, window_rows=14, global_batch_size=11, lanes=11, seed=0), 1
)
def test_order_equals_reference_definition(order: ReaderOrder, epoch: int) -> None:
    expected = global_batches(
        rows=order.rows,
        block_rows=order.block_rows,
        window_rows=order.window_rows,
        global_batch_size=order.global_batch_size,
        lanes=order.lanes,
        seed=order.seed,
        epoch=epoch,
        remainder=order.remainder,
    )
    assert all_batches(order, epoch) == expected


@given(orders(), st.integers(0, 3))
@settings(max_examples=75, deadline=None)
def test_order_gives_workers_equal_steps_of_one_shape(order: ReaderOrder, epoch: int) -> None:
    full, remainder = divmod(order.rows, order.global_batch_size)
    assert order.steps_per_epoch == full + (remainder > 0 and order.remainder == "pad")
    for workers in order.worker_counts():
        for worker in range(workers):
            actual = order.epoch(epoch).batches(
                0, order.steps_per_epoch, worker=worker, workers=workers
            )
            assert actual.shape == (order.steps_per_epoch, order.global_batch_size // workers)


@given(orders(remainder="pad"), st.integers(0, 3))
@settings(max_examples=75, deadline=None)
def test_order_pad_reads_every_row_once(order: ReaderOrder, epoch: int) -> None:
    for workers in order.worker_counts():
        rows = [
            row for batch in all_batches(order, epoch, workers) for row in batch if row != PADDING
        ]
        assert sorted(rows) == list(range(order.rows))
    *early, _ = all_batches(order, epoch) or [[]]
    assert all(PADDING not in batch for batch in early)


@given(orders(remainder="drop"), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_order_drop_omits_less_than_one_global_batch(order: ReaderOrder, epoch: int) -> None:
    rows = [row for batch in all_batches(order, epoch) for row in batch]
    assert len(set(rows)) == len(rows)
    assert PADDING not in rows
    assert 0 <= order.rows - len(rows) < order.global_batch_size


def test_order_drop_omits_different_rows_per_epoch() -> None:
    order = ReaderOrder(rows=1000, block_rows=8, window_rows=32, global_batch_size=64, lanes=16)
    left_out = [
        frozenset(range(1000)) - {row for batch in all_batches(order, epoch) for row in batch}
        for epoch in range(8)
    ]
    assert len(set(left_out)) == 8


@given(orders(), st.integers(0, 2), st.data())
@settings(max_examples=50, deadline=None)
def test_order_global_batches_independent_of_worker_count(
    order: ReaderOrder, epoch: int, data: st.DataObject
) -> None:
    expected = all_batches(order, epoch)
    for workers in order.worker_counts():
        assert all_batches(order, epoch, workers) == expected
    # The number of workers may change within an epoch, since steps are independent.
    for step in range(order.steps_per_epoch):
        workers = data.draw(st.sampled_from(order.worker_counts()))
        batches = [
            order.epoch(epoch).batch(step, worker=worker, workers=workers)
            for worker in range(workers)
        ]
        assert np.concatenate(batches).tolist() == expected[step]


@given(orders(), st.data())
@settings(max_examples=50, deadline=None)
def test_order_from_start_step_equals_tail_of_epoch(
    order: ReaderOrder, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, order.steps_per_epoch))
    stop = data.draw(st.integers(start, order.steps_per_epoch))
    workers = data.draw(st.sampled_from(order.worker_counts()))
    worker = data.draw(st.integers(0, workers - 1))
    epoch_batches = order.epoch(1).batches(0, order.steps_per_epoch, worker=worker, workers=workers)
    batches = order.epoch(1).batches(start, stop, worker=worker, workers=workers)
    assert batches.tolist() == epoch_batches[start:stop].tolist()


@given(orders(shuffle=True))
@settings(max_examples=50, deadline=None)
def test_order_windows_permute_ranges_of_canonical_rows(order: ReaderOrder) -> None:
    current = order.epoch(0)
    for lane in range(order.lanes):
        rows: list[int] = []
        for window in range(current.windows(lane)):
            starts, stops = current.window_ranges(lane, window)
            straight = [row for a, b in zip(starts, stops, strict=True) for row in range(a, b)]
            assert current.window_rows(lane, window).tolist() == [
                straight[index] for index in current.window_permutation(lane, window)
            ]
            assert len(starts) <= order.window_rows // order.block_rows + 3
            rows += straight
        low, high = order.lane_bounds(lane)
        assert rows == current.rows_at(np.arange(low, high)).tolist()


@given(orders(shuffle=False))
@settings(max_examples=40, deadline=None)
def test_order_without_shuffle_slices_canonical_order(order: ReaderOrder) -> None:
    size = order.global_batch_size
    for step, batch in enumerate(all_batches(order, 0)):
        expected = range(step * size, (step + 1) * size)
        assert batch == [row if row < order.rows else PADDING for row in expected]
    assert all_batches(order, 0) == all_batches(order, 5)


@given(st.integers(0, 2000), st.integers(0, 2**64 - 1))
@settings(max_examples=40, deadline=None)
def test_permutation_contains_every_index_once(size: int, key: int) -> None:
    assert sorted(permutation(size, key).tolist()) == list(range(size))


def test_order_differs_by_epoch_and_seed_including_zero() -> None:
    def read(seed: int, epoch: int) -> bytes:
        order = ReaderOrder(
            rows=4096, block_rows=16, window_rows=64, global_batch_size=64, lanes=8, seed=seed
        )
        return order.epoch(epoch).batches(0, order.steps_per_epoch).tobytes()

    assert len({read(seed, epoch) for seed in (0, 1, -1, 2**40) for epoch in range(4)}) == 16
    assert read(0, 0) == read(0, 0)


# Order version 1 in numbers: (order, epoch) -> the first batch and the SHA-256 of the whole epoch
# as int64. Never change a line: a new order is a new version.
GOLDEN_VECTORS: list[tuple[dict[str, Any], int, list[int], str]] = [
    (
        {"rows": 20, "block_rows": 3, "window_rows": 6, "global_batch_size": 4, "lanes": 2},
        0,
        [3, 17, 1, 0],
        "290f93a2f3297aa79bbfd3a8c15bb17de86d2cb248f35c57b4eceeab7887728b",
    ),
    (
        {"rows": 20, "block_rows": 3, "window_rows": 6, "global_batch_size": 4, "lanes": 2},
        1,
        [18, 3, 13, 12],
        "e0e48eb4869172ade44fcfb390a05914e18b677db132e88d2f89e33d8cc8e6f9",
    ),
    (
        {
            "rows": 20,
            "block_rows": 3,
            "window_rows": 6,
            "global_batch_size": 6,
            "lanes": 3,
            "seed": 7,
            "remainder": "pad",
        },
        0,
        [6, 19, 12, 16, 10, 4],
        "ad96122e46bc45129dd20f295a118b2ba7a0ab388757a12084ba9507e8f61efc",
    ),
    (
        {
            "rows": 5,
            "block_rows": 4,
            "window_rows": 4,
            "global_batch_size": 8,
            "lanes": 8,
            "remainder": "pad",
        },
        0,
        [-1, 4, -1, 0, 1, -1, 2, 3],
        "21c808fc00ebdef0e77becad2d4b44bc55a80060fe4991daaad620b16e68f7b7",
    ),
    (
        {
            "rows": 10_007,
            "block_rows": 64,
            "window_rows": 256,
            "global_batch_size": 16,
            "lanes": 16,
            "seed": -1,
        },
        3,
        [
            5632,
            9430,
            8914,
            391,
            1073,
            5444,
            1943,
            471,
            4683,
            9221,
            7864,
            1118,
            2975,
            3949,
            5426,
            1820,
        ],
        "2f14098421c38db2b41a1dffd08e461f6d588c5bc6c37df513a31e95807499c9",
    ),
    (
        {
            "rows": 100_003,
            "block_rows": 128,
            "window_rows": 1024,
            "global_batch_size": 8,
            "lanes": 1,
            "seed": 2**63,
        },
        0,
        [5864, 54159, 74545, 24084, 21622, 5776, 5761, 39294],
        "fc0df6756642c94a5cb5a04d6801fb1c4d3f626c089151692f2aff72fb723c68",
    ),
]


@pytest.mark.parametrize(("settings_", "epoch", "first", "digest"), GOLDEN_VECTORS)
def test_order_version_1_is_frozen(
    settings_: dict[str, Any], epoch: int, first: list[int], digest: str
) -> None:
    order = ReaderOrder(**settings_)
    batches = order.epoch(epoch).batches(0, order.steps_per_epoch)
    assert batches[0].tolist() == first
    assert hashlib.sha256(batches.astype("<i8").tobytes()).hexdigest() == digest


@pytest.mark.parametrize(
    ("size", "lanes"), [(1, 1), (64, 64), (1024, 64), (96, 48), (97, 1), (122, 61), (1000, 50)]
)
def test_default_lanes_are_the_largest_divisor_up_to_64(size: int, lanes: int) -> None:
    assert default_lanes(size) == lanes


@given(st.integers(1, 500))
def test_divisors_equal_brute_force(number: int) -> None:
    assert divisors(number) == [
        divisor for divisor in range(1, number + 1) if number % divisor == 0
    ]


def make(**changes: Any) -> ReaderOrder:
    return ReaderOrder(
        **{
            "rows": 100,
            "block_rows": 8,
            "window_rows": 16,
            "global_batch_size": 24,
            "lanes": 12,
            **changes,
        }
    )


def test_check_workers_invalid_count_raises_with_valid_counts() -> None:
    with pytest.raises(
        ReaderConfigError, match=r"5 workers .* 12 lanes .* 1, 2, 3, 4, 6, 12 workers"
    ) as caught:
        make().epoch(0).batch(0, worker=0, workers=5)
    assert "global_batch_size=25" in str(caught.value)
    with pytest.raises(ReaderConfigError, match=r"(?s)8 workers .*lanes=24"):
        make().check_workers(0, 8)
    with pytest.raises(ReaderConfigError, match="worker=3 is out of range for 3"):
        make().check_workers(3, 3)
    with pytest.raises(ReaderConfigError, match="0 workers"):
        make().check_workers(0, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"lanes": 7},
            r"lanes=7 does not divide global_batch_size=24. Available: 1, 2, 3, 4, 6, 8, 12, 24",
        ),
        ({"rows": 23}, r"23 rows do not fill one global batch of 24"),
        ({"window_rows": 20}, r"(?s)window_rows=20 .* 8 rows.*window_rows=16"),
        ({"remainder": "fill"}, r"remainder='fill'"),
        ({"global_batch_size": 0}, r"global_batch_size=0"),
    ],
)
def test_order_invalid_settings_raise(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ReaderConfigError, match=message):
        make(**changes)


def test_order_step_or_epoch_out_of_range_raises() -> None:
    with pytest.raises(ReaderConfigError, match="epoch of 4 steps"):
        make().epoch(0).batch(4)
    with pytest.raises(ReaderConfigError, match="epoch=-1"):
        make().epoch(-1)


def test_order_late_start_computes_one_window_per_lane() -> None:
    """One window per lane is computed for any start step."""
    order = ReaderOrder(
        rows=50_000_000, block_rows=1024, window_rows=2048, global_batch_size=1024, lanes=64
    )
    current = order.epoch(0)
    early, late = current.batch(0), current.batch(order.steps_per_epoch * 9 // 10)
    assert len(np.intersect1d(early, late)) == 0
