"""Comparison of a declared feature group with the stored one; all callers use this one.

Creation under an existing name, ``get_or_create_featuregroup``, projects in git, dbt imports and jobs
declare a group that may exist. The comparison finds each difference, and its effect: metadata and the
schema change in place, other differences need the next version, because rows are never rewritten.
What a caller does with a difference is not part of the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.fitting import can_widen
from featurestore.delta import commits
from featurestore.errors import DefinitionMismatch
from featurestore.featuregroups.definition import build_spec
from featurestore.featuregroups.table import OpenGroup
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.group_options import DeclaredTypes, GroupOptions
from featurestore.model.json_object import JsonMapping
from featurestore.model.times import format_duration
from featurestore.model.validation import describe

# "metadata" changes in one commit without rows, "schema" adds or widens columns, and "version" needs
# the next version. A narrower decimal "fits": writes have widened the stored column.
Effect = Literal["fits", "metadata", "schema", "version"]
_EFFECTS: dict[str, Effect] = {
    "primary_key": "version",
    "event_time": "version",
    "created_time": "version",
    "partition_by": "version",
    "ttl": "metadata",
    "expectations": "metadata",
    "validation": "metadata",
    "statistics": "metadata",
    "event_time_tolerance": "metadata",
    "compact": "metadata",
    "iceberg": "version",
    "external": "version",
}
# The fields that can change without another version of the group.
CHANGEABLE_FIELDS = tuple(name for name, effect in _EFFECTS.items() if effect == "metadata")
# The fields with the names of columns, which differ only between versions of a group.
COLUMN_FIELDS = ("primary_key", "event_time", "created_time", "partition_by")
# The fields that ``get_or_create_featuregroup`` compares. Others, such as the validation policy, can
# differ without a change of the stored rows.
_ROW_FIELDS = (*COLUMN_FIELDS, "ttl", "expectations")


@dataclass(frozen=True)
class DefinitionDifference:
    """A difference of one field or column.

    ``conflict`` names the stored and the declared value, ``changes`` say what becomes of the stored
    one. ``column`` is the declared column of a change of the schema.
    """

    subject: str
    effect: Effect
    conflict: str
    changes: tuple[str, ...] = ()
    column: pa.Field | None = None


@dataclass(frozen=True)
class DefinitionComparison:
    """The differences between a stored and a declared definition of a group."""

    stored: FeatureGroupSpec
    declared: FeatureGroupSpec
    differences: tuple[DefinitionDifference, ...]

    @property
    def conflicts(self) -> list[str]:
        """The differences that need the next version."""
        return [
            difference.conflict for difference in self.differences if difference.effect == "version"
        ]

    @property
    def changed_columns(self) -> list[pa.Field]:
        """The new columns, and those that become wider."""
        return [
            difference.column for difference in self.differences if difference.effect == "schema"
        ]

    @property
    def added_columns(self) -> tuple[pa.Field, ...]:
        """The new columns."""
        names = self.stored.schema.names
        return tuple(column for column in self.changed_columns if column.name not in names)

    def describe_columns(self) -> list[str]:
        """Describe the new columns, then those that become wider."""
        changes = [
            line
            for difference in self.differences
            if difference.effect == "schema"
            for line in difference.changes
        ]
        return sorted(changes, key=lambda line: not line.startswith("new column"))

    def evolve(self, names: Iterable[str] = CHANGEABLE_FIELDS) -> FeatureGroupSpec:
        """Return the stored definition with the declared fields and columns that change in place."""
        fields = {name: getattr(self.declared, name) for name in names}
        evolved = replace(self.stored, **fields)
        if not self.changed_columns:
            return evolved
        evolved = evolved.with_wider_decimals(pa.schema(self.changed_columns))
        return evolved.with_columns(self.added_columns)


def compare_definitions(
    stored: FeatureGroupSpec, declared: FeatureGroupSpec, types: DeclaredTypes
) -> DefinitionComparison:
    """Compare a declared definition with the stored one, in its fields and its columns.

    ``types`` are the types that the caller declared: other decimals may differ, because the types of
    a dataframe depend on its values.
    """
    differences = compare_fields(stored, declared, _EFFECTS)
    differences += _compare_columns(stored, declared.schema, types)
    return DefinitionComparison(stored, declared, tuple(differences))


def compare_fields(
    stored: FeatureGroupSpec, declared: FeatureGroupSpec | GroupOptions, names: Iterable[str]
) -> list[DefinitionDifference]:
    """Return the differences of some fields of two definitions."""
    differences = []
    for name in names:
        before, now = getattr(stored, name), getattr(declared, name)
        if before == now:
            continue
        old, new = format_value(before), format_value(now)
        changes: Sequence[str] = [f"{name}: {old} becomes {new}"]
        if name == "expectations":
            changes = _describe_expectations(before, now)
        conflict = f"{name}: stored {old}, declared {new}"
        differences.append(DefinitionDifference(name, _EFFECTS[name], conflict, tuple(changes)))
    return differences


def _compare_columns(
    stored: FeatureGroupSpec, declared_schema: pa.Schema, declared: DeclaredTypes
) -> Iterator[DefinitionDifference]:
    """Yield missing, retyped and new columns."""
    new_columns = {column.name: column for column in declared_schema}
    # The columns of an external group are those of its source.
    is_fixed = stored.external is not None
    for column in stored.schema:
        subject, declared_column = f"column {column.name!r}", new_columns.pop(column.name, None)
        if declared_column is None:
            text = f"{subject} ({column.type}) is missing"
            yield DefinitionDifference(subject, "version", text)
            continue
        dtype = declared_column.type
        if dtype == column.type or _is_undeclared_decimal(dtype, column, declared):
            continue
        effect: Effect = "version"
        if _widens(dtype, column.type) and not is_fixed:
            effect = "fits"
        elif _widens(column.type, dtype) and not is_fixed:
            effect = "schema"
        conflict = f"{subject}: stored {column.type}, declared {dtype}"
        change = f"column {column.name}: {column.type} becomes {dtype}"
        yield DefinitionDifference(subject, effect, conflict, (change,), declared_column)
    effect = "version" if is_fixed else "schema"
    for name, column in new_columns.items():
        subject, change = f"column {name!r}", f"new column {name} ({column.type})"
        yield DefinitionDifference(subject, effect, f"{subject} is new", (change,), column)


def _widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    return pat.is_decimal(narrow) and pat.is_decimal(wide) and can_widen(narrow, wide)


def _is_undeclared_decimal(
    dtype: pa.DataType, stored_column: pa.Field, declared: DeclaredTypes
) -> bool:
    """Return True if both types are decimals and the caller declared no type for the column."""
    # Later writes may have widened the stored type, so it may differ from the type of this
    # dataframe.
    if declared.decimal is not None or stored_column.name in declared.columns:
        return False
    return pat.is_decimal(dtype) and pat.is_decimal(stored_column.type)


def check_same_definition(
    options: GroupOptions, stored_spec: FeatureGroupSpec, *, batch_schema: pa.Schema
) -> None:
    """Reject a declaration that differs from the stored definition.

    The dataframe must have exactly the columns of the group. Tags, descriptions and the validation
    policy are not compared.

    Raises:
        DefinitionMismatch: The definitions differ; the message lists every difference.
    """
    declared_spec = build_spec(
        options, name=stored_spec.name, version=stored_spec.version, schema=batch_schema
    )
    ignored = set(_EFFECTS) - {*_ROW_FIELDS, *(["external"] if options.external else [])}
    comparison = compare_definitions(stored_spec, declared_spec, options.types)
    differences = [
        difference for difference in comparison.differences if difference.subject not in ignored
    ]
    if differences:
        hint = "create_featuregroup(...) creates the next version"
        if all(difference.subject in ("ttl", "expectations") for difference in differences):
            hint = f"update_featuregroup({stored_spec.name!r}, ...) changes the existing version"
        conflicts = "; ".join(difference.conflict for difference in differences)
        raise DefinitionMismatch(
            f"Feature group {stored_spec.name!r} version {stored_spec.version} has a different "
            f"definition: {conflicts}.",
            hint=hint,
        )


def format_value(value: object) -> str:
    """Format a value of a definition for messages."""
    if isinstance(value, timedelta):
        return repr(format_duration(value))
    if isinstance(value, tuple):
        return repr(list(value))
    return repr(value)


# -- metadata -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredDefinition:
    """The parts of a group that can change in place: fields of its spec, descriptions and tags."""

    spec: FeatureGroupSpec
    meta: commits.Meta

    def with_fields(self, declared: FeatureGroupSpec, names: Iterable[str]) -> StoredDefinition:
        """Return the definition with some fields of another spec."""
        fields = {name: getattr(declared, name) for name in names}
        return replace(self, spec=replace(self.spec, **fields))


def read_definition(group: OpenGroup) -> StoredDefinition:
    """Return the definition of an open group."""
    return StoredDefinition(group.spec, commits.meta_of(group.state))


def describe_changes(before: StoredDefinition, now: StoredDefinition) -> list[str]:
    """Describe the differences between two definitions of a group, for plans and histories."""
    differences = compare_fields(before.spec, now.spec, CHANGEABLE_FIELDS)
    changes = [line for difference in differences for line in difference.changes]
    if before.meta.description != now.meta.description:
        changes.append("another description")
    if dict(before.meta.features) != dict(now.meta.features):
        changes.append("other descriptions of features")
    old_tags, new_tags = dict(before.meta.tags), dict(now.meta.tags)
    if old_tags != new_tags:
        changes.append(f"tags: {old_tags} becomes {new_tags}")
    return changes


def _describe_expectations(before: Sequence[JsonMapping], now: Sequence[JsonMapping]) -> list[str]:
    """Describe which expectations were added, changed and removed."""
    earlier, later = _expectations_by_text(before), _expectations_by_text(now)
    changes = [f"expectation {text} is new" for text in later if text not in earlier]
    for text, expectation in later.items():
        if text in earlier and earlier[text] != expectation:
            changes.append(f"expectation {text} has another feature, severity or description")
    changes += [f"expectation {text} was removed" for text in earlier if text not in later]
    # Only the order or the number of equal expectations differs.
    return changes or ["expectations in another order"]


def _expectations_by_text(expectations: Sequence[JsonMapping]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for expectation in expectations:
        # A history is also shown to users who may not know the name of a compared feature.
        kwargs = {key: value for key, value in expectation["kwargs"].items() if key != "feature"}
        text = describe({**expectation, "kwargs": kwargs})
        texts[text] = texts.get(text, "") + json.dumps(
            dict(expectation), sort_keys=True, default=str
        )
    return texts
