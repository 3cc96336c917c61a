"""The primary key of a dbt table: what the project declares, in the columns of the table."""

from __future__ import annotations

from collections.abc import Sequence

from featurestore.arrow.types import can_be_key
from featurestore.dbt.expectations import UTILITY_PACKAGES, DbtColumns
from featurestore.dbt.manifest import DbtNode
from featurestore.errors import InvalidDbtProject, did_you_mean, listing

_EXAMPLE = "meta: {featurestore: {primary_key: [customer_id]}}"
_NO_KEY = "has no key: no primary_key constraint, and no column with the tests unique and not_null"
_NO_TABLE = ("ephemeral", "inline", "table_function", "test")
# The materialization of dbt-duckdb that writes a file.
_EXTERNAL = "external"


class NotImportable(Exception):
    """A node has no table, no key, or several possible keys; ``hint`` is a setting that it needs.

    The message continues the name of the node.
    """

    def __init__(self, reason: str, *, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


def check_importable(node: DbtNode) -> None:
    """Check by the manifest alone that a node has a table and a key.

    The key of a node with settings is checked with its settings.

    Raises:
        NotImportable: It has none.
    """
    table = "config: {materialized: table}"
    if node.materialized in _NO_TABLE:
        raise NotImportable(f"is {node.materialized}: it has no table", hint=table)
    if node.materialized == _EXTERNAL:
        raise NotImportable(
            "is external: its rows are in a file outside of the database, which "
            "create_external_featuregroup reads from a source of that folder",
            hint=table,
        )
    has_snapshot_key = node.snapshot is not None and node.snapshot.unique_key
    if node.settings is None and not (
        node.constraint_key or has_snapshot_key or any(tested_keys(node))
    ):
        raise no_key_error()


def no_key_error() -> NotImportable:
    """Return the error for a table for which the project declares no key."""
    return NotImportable(_NO_KEY, hint=f"{_EXAMPLE}, or meta: {{featurestore: false}}")


def read_key(
    node: DbtNode, columns: DbtColumns, *, times: Sequence[str | None], notes: list[str]
) -> tuple[str, ...]:
    """Return the columns that identify an entity; ``times`` are not part of the key.

    Raises:
        NotImportable: No key is declared, or several.
        InvalidDbtProject: A column of the key does not exist.
    """
    settings = node.settings
    if settings is not None and "primary_key" in settings.data:
        value = settings.data["primary_key"]
        names = (value,) if isinstance(value, str) else settings.texts("primary_key")
        return find_columns(node, columns, names, origin="meta.featurestore.primary_key")
    keys = set()
    for candidate in declared_keys(node, columns, notes):
        entity_columns = tuple(name for name in candidate if name not in times)
        if entity_columns:
            keys.add(entity_columns)
    if not keys:
        raise no_key_error()
    types = {name: columns.schema.field(name).type for key in keys for name in key}
    unsuitable = {name for name, dtype in types.items() if not can_be_key(dtype)}
    if all(unsuitable.intersection(key) for key in keys):
        name = sorted(unsuitable)[0]
        raise NotImportable(f"has the key {name!r} of type {types[name]}", hint=_EXAMPLE)
    keys = {key for key in keys if not unsuitable.intersection(key)}
    if len(keys) > 1:
        texts = sorted(", ".join(key) for key in keys)
        raise NotImportable(
            f"has several possible keys: {listing(texts)}",
            hint=_EXAMPLE.replace("[customer_id]", f"[{texts[0]}]"),
        )
    return keys.pop()


def declared_keys(node: DbtNode, columns: DbtColumns, notes: list[str]) -> list[tuple[str, ...]]:
    """Return the keys that the constraint, the snapshot or else the tests declare."""
    if node.constraint_key:
        names = node.constraint_key
        return [find_columns(node, columns, names, origin="the primary_key constraint")]
    if node.snapshot is not None and node.snapshot.unique_key:
        # A key may be SQL, of which dbt stores no column.
        if all(columns.find(name) for name in node.snapshot.unique_key):
            return [find_columns(node, columns, node.snapshot.unique_key, origin="unique_key")]
        notes.append("its unique_key is SQL, not a column")
    unique_columns, combinations = tested_keys(node)
    keys: list[tuple[str, ...]] = [
        (column,) for name in unique_columns if (column := columns.find(name)) is not None
    ]
    return keys or [
        find_columns(node, columns, names, origin=f"test {test_name!r}")
        for test_name, names in combinations
    ]


def tested_keys(node: DbtNode) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the columns with the tests unique and not_null, and the unique combinations.

    A combination has the name of its test. Tests of some rows only are left out.
    """
    unique, present, combinations = [], set(), []
    for test in node.tests:
        if not test.covers_all_rows:
            continue
        if test.namespace is None and test.test_type == "unique" and test.column:
            unique.append(test.column)
        elif test.namespace is None and test.test_type == "not_null" and test.column:
            present.add(test.column.lower())
        elif (
            test.test_type == "unique_combination_of_columns" and test.namespace in UTILITY_PACKAGES
        ):
            names = test.arguments.get("combination_of_columns")
            if isinstance(names, list) and all(isinstance(name, str) for name in names):
                combinations.append((test.name, names))
    return [name for name in unique if name.lower() in present], combinations


def find_columns(
    node: DbtNode, columns: DbtColumns, names: Sequence[str], *, origin: str
) -> tuple[str, ...]:
    """Return the columns of a table that a setting, a constraint or a test names."""
    table_columns = []
    for name in names:
        column = columns.find(name.strip('"`'))
        if column is None:
            raise InvalidDbtProject(
                f"{node}: {origin} has {name!r}, which is not a column of its table. "
                f"Available: {listing(columns.schema.names, limit=30)}.",
                hint=did_you_mean(name, columns.schema.names),
            )
        table_columns.append(column)
    return tuple(table_columns)
