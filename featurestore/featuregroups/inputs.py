"""Inputs of the rows that a caller writes: declared inputs, and those of frames of the store.

Jobs record the inputs that they read. The rows of ``create_featuregroup`` are computed by the
caller's code, so their inputs are declared, or known because the dataframe comes from the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from featurestore.errors import InvalidArgument
from featurestore.featuregroups.handle import FeatureGroup
from featurestore.featuregroups.table import open_group
from featurestore.model.names import format_group_reference, parse_group_reference
from featurestore.registry import sources
from featurestore.retrieval import FeatureFrame
from featurestore.retrieval.conversions import existing_inputs, recorded_inputs
from featurestore.session import Session

# "weather", "weather@v2", "source:shop", a handle, or a frame of the store.
InputReference: TypeAlias = str | FeatureGroup | FeatureFrame
Inputs: TypeAlias = InputReference | Sequence[InputReference]
_SOURCE_PREFIX = "source:"


def find_inputs(session: Session, declared: Inputs, df: object) -> tuple[Mapping[str, Any], ...]:
    """Return the lineage inputs of rows: the declared ones, then those of the dataframe.

    Raises:
        FeatureGroupNotFound: A declared group does not exist.
        SourceNotFound: A declared source is not registered.
        InvalidArgument: A declared input is not a reference, a handle or a frame.
    """
    inputs: list[Mapping[str, Any]] = []
    for reference in _as_references(declared):
        inputs += _resolve(session, reference)
    inputs += df.inputs if isinstance(df, FeatureFrame) else existing_inputs(session, df)
    # The first input of a group wins: a declared handle pins the latest Delta version.
    return tuple({_identity(each): each for each in reversed(inputs)}.values())[::-1]


def input_texts(declared: Inputs, df: object, *, location: str) -> list[str]:
    """Return declared and recorded inputs as references for a request to a server."""
    texts = []
    for reference in _as_references(declared):
        if isinstance(reference, FeatureFrame):
            texts += _group_texts(reference.inputs)
        elif isinstance(reference, FeatureGroup):
            texts.append(format_group_reference(reference.name, reference.version))
        else:
            texts.append(reference)
    recorded = df.inputs if isinstance(df, FeatureFrame) else recorded_inputs(df, location)
    return list(dict.fromkeys([*texts, *_group_texts(recorded)]))


def _as_references(declared: Inputs) -> list[InputReference]:
    if isinstance(declared, InputReference):
        return [declared]
    references = list(declared) if isinstance(declared, Iterable) else [declared]
    for reference in references:
        if not isinstance(reference, InputReference):
            raise InvalidArgument(
                f"inputs= contains {reference!r}, which is not a feature group, a frame of the "
                "store or a source.",
                hint="inputs=['weather', 'planes@v2', 'source:shop']",
            )
    return references


def _resolve(session: Session, reference: InputReference) -> list[Mapping[str, Any]]:
    """Return the lineage inputs of one reference, with groups pinned to their Delta version."""
    if isinstance(reference, FeatureFrame):
        return list(reference.inputs)
    if isinstance(reference, FeatureGroup):
        group = open_group(session, reference.name, reference.version)
    elif reference.startswith(_SOURCE_PREFIX):
        with session.registry.reading() as connection:
            sources.get(connection, reference.removeprefix(_SOURCE_PREFIX))
        return [{"source": reference}]
    else:
        group = open_group(session, *parse_group_reference(reference))
    return [
        {
            "featuregroup": group.spec.name,
            "version": group.spec.version,
            "delta_version": group.delta_version,
        }
    ]


def _identity(lineage_input: Mapping[str, Any]) -> tuple[object, object]:
    source = lineage_input.get("source") or lineage_input.get("featuregroup")
    return source, lineage_input.get("version")


def _group_texts(inputs: Iterable[Mapping[str, Any]]) -> list[str]:
    return [
        format_group_reference(each["featuregroup"], each["version"])
        for each in inputs
        if "featuregroup" in each
    ]
