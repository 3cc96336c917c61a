"""Texts with lone surrogates, which neither a file nor a database can store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import featurestore
from featurestore.errors import InvalidArgument
from featurestore.model.arguments import check_encodable

TEXTS = st.text(st.characters(exclude_categories=()), max_size=5)
VALUES = st.recursive(
    TEXTS | st.none() | st.integers(),
    lambda values: st.lists(values, max_size=2) | st.dictionaries(TEXTS, values, max_size=2),
    max_leaves=4,
)


@given(VALUES)
def test_texts_are_refused_if_utf8_cannot_encode_them(value: object) -> None:
    try:
        repr_of(value).encode()
    except UnicodeEncodeError:
        with pytest.raises(InvalidArgument, match="UTF-8"):
            check_encodable("tags", value)
    else:
        assert check_encodable("tags", value) is value


def repr_of(value: object) -> str:
    """Return all strings of a value."""
    if isinstance(value, dict):
        return "".join(repr_of(part) for item in value.items() for part in item)
    if isinstance(value, list):
        return "".join(map(repr_of, value))
    return value if isinstance(value, str) else ""


def test_calls_refuse_lone_surrogates_before_they_write(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    text = "a\ud800"
    with featurestore.connect(tmp_path / "store") as store:
        rows = [{"x": 1}]
        store.create_featuregroup(rows, "visits")
        calls: dict[str, Callable[[], object]] = {
            "tags": lambda: store.create_featuregroup(rows, "b", tags={"a": text}),
            "description": lambda: store.create_featuregroup(rows, "b", description=text),
            "descriptions": lambda: store.create_featuregroup(rows, "b", descriptions={"x": text}),
            "key": lambda: store.add_featuregroup_tag("visits", text, "b"),
            "value": lambda: store.add_featuregroup_tag("visits", "b", text),
            "change": lambda: store.update_featuregroup("visits", description=text),
            "view": lambda: store.create_feature_view("v", features=["visits.x"], description=text),
            "uri": lambda: store.add_source("s", f"sqlite:///{text}.db"),
            "channel": lambda: store.add_alert_channel("c", text),
        }
        before = sorted(path for path in tmp_path.rglob("*") if "registry" not in path.name)
        for name, call in calls.items():
            with subtests.test(name), pytest.raises(InvalidArgument, match=r"a.ud800.*UTF-8"):
                call()
        assert sorted(path for path in tmp_path.rglob("*") if "registry" not in path.name) == before
        assert [group.name for group in store.get_featuregroups()] == ["visits"]
