"""Renaming of dataframe columns before a write, and of a feature in a group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from featurestore.arrow.column_names import check_feature_names
from featurestore.conversion import rename_all
from featurestore.delta import commits
from featurestore.errors import FeatureNotFound, InvalidArgument, did_you_mean, listing
from featurestore.featuregroups.frames import read
from featurestore.featuregroups.table import OpenGroup, open_stored
from featurestore.featuregroups.write import create
from featurestore.featuregroups.write_request import WriteRequest
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.group_options import GroupOptions
from featurestore.model.names import check_rename, resolve_renames
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session

# Expectation arguments that contain column names.
_COLUMN_ARGUMENTS = ("column", "column_A", "column_B", "column_list", "column_set")


def rename_frame_columns(df: object, rename: Mapping[str, str] | str | None) -> object:
    """Return a copy of a dataframe argument with renamed columns.

    Raises:
        InvalidArgument: A name is not a column, or the dataframe is a ``FeatureFrame``.

    >>> rename_frame_columns([{"Country Name": "Peru", "id": 1}], "snake_case")
    {'country_name': ['Peru'], 'id': [1]}
    """
    rename_option = check_rename(rename)
    if rename_option is None:
        return df
    if isinstance(df, FeatureFrame):
        raise InvalidArgument(
            "rename= does not support a FeatureFrame, only dataframes of other libraries.",
            hint="read_source(name, rename={'Country Name': 'country_name'}) for a source",
        )

    def new_names(names: list[Any]) -> list[str]:
        texts = list(map(str, names))
        renames = resolve_renames(rename_option, texts, owner="the dataframe")
        return [renames.get(text, name) for text, name in zip(texts, names, strict=True)]

    renamed: object = rename_all(df, new_names)
    return renamed


def rename_feature(session: Session, name: str, old: str, new: str) -> FeatureGroupSpec:
    """Create the next version of a group with a renamed column, and return its definition.

    The new name is applied to keys, times, partitions, expectations and descriptions. All rows are
    copied in one commit, which records the copied Delta version as its input. The history of the
    previous version is retained.

    Raises:
        FeatureNotFound: The group has no such column.
        InvalidName: The new name is invalid or already exists.
    """
    group = open_stored(session, name, to="rename columns; sql= renames them")
    spec = group.spec
    columns = spec.schema.names
    if old not in columns:
        raise FeatureNotFound(
            f"Feature group {spec.name!r} version {spec.version} has no feature {old!r}. "
            f"Available: {listing(columns, limit=20)}.",
            hint=did_you_mean(old, columns, write="{!r}"),
        )
    renamed = [new if column == old else column for column in columns]
    check_feature_names(renamed)
    if new == old:
        raise InvalidArgument(f"The feature is already named {old!r}.", hint="use another name")
    source = {
        "featuregroup": spec.name,
        "version": spec.version,
        "delta_version": group.delta_version,
    }
    # The rows were already checked when they were first written.
    request = WriteRequest(
        spec.name,
        version=spec.version + 1,
        options=_renamed_declaration(group, old, new),
        validation="off",
        inputs=(source,),
        has_checked_values=True,
    )
    frame = read(session, spec.name, version=spec.version, as_of=group.delta_version)
    new_spec, _ = create(session, _rename_feature_column(session, frame, old, new), request)
    return new_spec


def _rename_feature_column(
    session: Session, frame: FeatureFrame, old: str, new: str
) -> FeatureFrame:
    """Return a lazy frame with a renamed column."""
    columns = {}
    for column in frame.columns:
        columns[new if column == old else column] = column
    schema = pa.schema(
        [frame.schema.field(source).with_name(name) for name, source in columns.items()]
    )
    engine = session.engine
    return FeatureFrame(session, lambda: engine.select(frame.relation, columns), schema=schema)


def _renamed_declaration(group: OpenGroup, old: str, new: str) -> GroupOptions:
    """Return the declaration of a group with a renamed column."""
    spec, meta = group.spec, commits.meta_of(group.state)

    def new_name(column: str | None) -> str | None:
        return new if column == old else column

    expectations = tuple(
        _rename_in_expectation(expectation, old, new) for expectation in spec.expectations
    )
    descriptions = {str(new_name(column)): text for column, text in meta.features.items()}
    return GroupOptions(
        primary_key=_replace_name(spec.primary_key, old, new),
        event_time=new_name(spec.event_time),
        created_time=new_name(spec.created_time),
        partition_by=_replace_name(spec.partition_by, old, new),
        ttl=spec.ttl,
        expectations=expectations,
        validation=spec.validation,
        statistics=spec.statistics,
        description=meta.description,
        descriptions=descriptions,
        tags=dict(meta.tags),
        job=spec.job,
        event_time_tolerance=spec.event_time_tolerance,
        compact=spec.compact,
        iceberg=spec.iceberg,
    )


def _replace_name(columns: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if column == old else column for column in columns)


def _rename_in_expectation(expectation: Mapping[str, Any], old: str, new: str) -> Mapping[str, Any]:
    """Return an expectation with a renamed column, or raise InvalidArgument for conditions."""
    kwargs = dict(expectation["kwargs"])
    for argument in _COLUMN_ARGUMENTS:
        value = kwargs.get(argument)
        if value == old:
            kwargs[argument] = new
        elif isinstance(value, list):
            kwargs[argument] = list(_replace_name(tuple(value), old, new))
    # A condition is an expression, in which the name cannot be replaced safely.
    condition = kwargs.get("row_condition")
    if condition is not None and re.search(rf"\b{re.escape(old)}\b", str(condition)):
        raise InvalidArgument(
            f"The row_condition of expectation {expectation['type']} refers to {old!r}: "
            f"{condition!r}.",
            hint="create the next version with create_featuregroup(...) and a rewritten condition",
        )
    return {**expectation, "kwargs": kwargs}
