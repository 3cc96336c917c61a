"""The tables of docs/formats.md are those of the files that the formats write."""

from __future__ import annotations

import pytest

from featurestore.plugins import plugin_names
from tests.formats import format_tables

NAMES = [
    pytest.param(name, marks=[pytest.mark.petastorm] if name == "petastorm" else [])
    for name in format_tables.FORMATS
]


@pytest.mark.parametrize("name", NAMES)
def test_documented_format_is_current(name: str) -> None:
    dataset_format = format_tables.installed(name)
    if dataset_format is None:
        pytest.skip(f"{name} is not installed")
    cells = format_tables.describe_format(dataset_format)
    types = [format_tables.describe_value(dataset_format, kind) for kind in format_tables.VALUES]
    hint = "python -m tests.formats.format_tables writes the tables"
    assert format_tables.documented_formats()[name] == cells, hint
    assert format_tables.documented_types()[name] == types, hint


def test_every_format_is_documented() -> None:
    names = list(plugin_names("formats"))
    assert sorted(format_tables.FORMATS) == sorted(names)
    assert list(format_tables.documented_formats()) == list(format_tables.FORMATS)
    assert list(format_tables.documented_types()) == list(format_tables.FORMATS)
