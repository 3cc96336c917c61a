"""The state record of published views."""

from datetime import UTC, datetime

import pytest

from featurestore.errors import PublishedStateDamaged
from featurestore.serving.columns import value_prefix
from featurestore.serving.state import (
    GroupState,
    Lease,
    Origin,
    PublishedView,
    RetiredGeneration,
    ViewState,
    state_key,
)

VIEW = PublishedView("v", 1, "cache")
NOW = datetime(2024, 1, 1, 12, 0, 0, 5, tzinfo=UTC)


def test_state_record_survives_a_round_trip():
    group = GroupState(7, "table", 123, ("temp", "wind"), NOW, "ab", target=9, target_commit="cd")
    state = ViewState(
        generation=3,
        lease=Lease("host/1/ab", 4, NOW, generation=4, renewal=2),
        retired=(RetiredGeneration(1, NOW),),
        origin=Origin("/features", 5),
        server="run_id=1",
    ).with_group(("weather", 2), group)
    assert ViewState.parse(state.to_bytes(VIEW.key), VIEW) == state
    initial = ViewState().to_bytes(VIEW.key)
    assert ViewState.parse(initial, VIEW) == ViewState() == ViewState.parse(None, VIEW)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 0}', b"\xff"])
def test_damaged_state_record_raises(content):
    with pytest.raises(PublishedStateDamaged, match="state record"):
        ViewState.parse(content, VIEW)


def test_keys_differ_by_view_version_group_and_generation():
    def prefix(view="a", version=1, group="g", group_version=1, generation=1):
        return value_prefix(
            view, version, group=group, group_version=group_version, generation=generation
        )

    prefixes = {
        prefix(),
        prefix(view="b"),
        prefix(version=2),
        prefix(group="h"),
        prefix(group_version=2),
        prefix(generation=2),
        state_key("a", 1)[:8],
    }
    assert len(prefixes) == 7
