"""Erasure in the texts of the registry: descriptions, tags, errors, reports, the audit log.

All text columns of all tables are searched. In free texts and reports, a value is replaced by
``[erased]``. Values in definitions, such as the SQL of a job, are only listed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.erasure.areas import Scan
from featurestore.erasure.certificates import ACTION
from featurestore.erasure.keys import ERASED, Entities, canonical_text
from featurestore.errors import InvalidArgument
from featurestore.model.erasure import ErasureFinding
from featurestore.registry import search_documents, tables

# Free texts, in which a value can be replaced without a change of meaning for the library.
_FREE_TEXTS = {
    ("featuregroups", "description"),
    ("features", "description"),
    ("tags", "value"),
    ("training_datasets", "description"),
    ("runs", "error"),
    ("runs", "hint"),
    ("monitor_acceptances", "note"),
    ("outbox", "message"),
    ("outbox", "error"),
    ("audit_log", "subject"),
    ("search_documents", "text"),
}
# JSON with values of rows, such as the examples of failing rows.
_REPORTS = {
    ("validation_reports", "report"),
    ("monitor_results", "report"),
    ("audit_log", "detail"),
}
# Hashes and random texts, which contain no values.
_SECRETS = {"hash", "password"}
_BATCH = 500
# The members of a report with rows, and with values of rows, such as the largest one of a column.
_SAMPLES, _OBSERVED = "samples", "observed"


class RegistryTexts:
    """The texts of the registry."""

    name = "registry"

    def search(self, scan: Scan) -> list[ErasureFinding]:
        findings = []
        with scan.session.registry.reading() as connection:
            for table in tables.metadata.sorted_tables:
                for column in table.columns:
                    if not isinstance(column.type, sa.String) or column.name in _SECRETS:
                        continue
                    scan.scanned[self.name] += 1
                    rows = sum(1 for _ in _matching_cells(connection, scan, table, column))
                    if rows:
                        item = f"{table.name}.{column.name}"
                        is_text = (table.name, column.name) in _FREE_TEXTS | _REPORTS
                        findings.append(
                            ErasureFinding(
                                self.name,
                                item,
                                f"{rows:,} texts",
                                "rewrite" if is_text else "list",
                                rows,
                            )
                        )
        return findings

    def erase(self, scan: Scan) -> None:
        with scan.session.registry.transaction() as connection:
            for name, column_name in sorted(_FREE_TEXTS | _REPORTS):
                table = tables.metadata.tables[name]
                column = table.c[column_name]
                for key, text in list(_matching_cells(connection, scan, table, column)):
                    _rewrite(connection, scan, table, column, key, text)


def _matching_cells(
    connection: Connection, scan: Scan, table: sa.Table, column: sa.Column[Any]
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the primary keys and texts of rows whose column contains a key value."""
    has_members = (table.name, column.name) in _REPORTS
    names = [key_column.name for key_column in table.primary_key]
    query = sa.select(*table.primary_key, column.label("erased_text")).where(column.is_not(None))
    if column is tables.audit_log.c.detail:
        # Certificates have no values. A changed one, such as by the name of the admin, would break
        # the chain of all certificates.
        query = query.where(tables.audit_log.c.action != ACTION)
    result = connection.execute(query)
    while rows := result.fetchmany(_BATCH):
        texts = [str(row.erased_text) for row in rows]
        # One search of all texts is faster than one search of each.
        joined = "\0".join(texts).encode("utf-8", "surrogatepass")
        if not has_members and not scan.entities.occurs_in(joined):
            continue
        for row, text in zip(rows, texts, strict=True):
            if _has_value(scan, text, has_members=has_members):
                yield dict(zip(names, row, strict=False)), text


def _has_value(scan: Scan, text: str, *, has_members: bool) -> bool:
    if not has_members:
        return scan.entities.occurs_in(text.encode("utf-8", "surrogatepass"))
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    texts = "\0".join(_values_of(data)).encode("utf-8", "surrogatepass")
    return scan.entities.occurs_in(texts) or any(
        _is_row_of(scan.entities, row, owner=_owner_of(data)) for row in _samples_of(data)
    )


def _values_of(value: Any, *, is_observed: bool = False) -> Iterator[str]:
    """Yield the strings in a report, and observed whole numbers; other numbers are counts."""
    if isinstance(value, str) or (is_observed and isinstance(value, int)):
        yield str(value)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _values_of(item, is_observed=is_observed or name == _OBSERVED)
    elif isinstance(value, list):
        for item in value:
            yield from _values_of(item, is_observed=is_observed)


def _samples_of(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the sampled rows in a report."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name == _SAMPLES and isinstance(item, list):
                yield from (row for row in item if isinstance(row, Mapping))
            else:
                yield from _samples_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from _samples_of(item)


def _rewrite(
    connection: Connection,
    scan: Scan,
    table: sa.Table,
    column: sa.Column[Any],
    key: Mapping[str, Any],
    text: str,
) -> None:
    cleaned = scan.entities.remove_from(text)
    if (table.name, column.name) in _REPORTS:
        with suppress(ValueError, RecursionError):
            report = json.loads(text)
            cleaned = json.dumps(
                _clean_report(scan.entities, report, owner=_owner_of(report)), ensure_ascii=False
            )
    if table is tables.search_documents:
        condition = table.c.id == key["id"]
        document = connection.execute(sa.select(table).where(condition)).one()
        texts = {document.field: [cleaned]}
        search_documents.replace(connection, document.kind, document.name, document.version, texts)
        return
    # A text that another transaction has changed meanwhile is searched again by the next erasure.
    condition = sa.and_(column == text, *[table.c[name] == value for name, value in key.items()])
    connection.execute(table.update().where(condition).values({column.name: cleaned}))


def _owner_of(report: Any) -> str:
    """Return the feature group or training dataset that a report names."""
    return str(report.get("name", "")) if isinstance(report, Mapping) else ""


def _clean_report(entities: Entities, value: Any, *, owner: str, is_observed: bool = False) -> Any:
    """Return a report without key values: in texts, observed numbers, and keys of sampled rows."""
    if isinstance(value, str):
        return entities.remove_from(value)
    if is_observed and isinstance(value, int):
        text = entities.remove_from(str(value))
        return value if text == str(value) else text
    if isinstance(value, list):
        return [
            _clean_report(entities, item, owner=owner, is_observed=is_observed) for item in value
        ]
    if not isinstance(value, Mapping):
        return value
    cleaned = {}
    for name, item in value.items():
        if name == _SAMPLES and isinstance(item, list):
            # All columns of the row of an entity are erased.
            item = [
                dict.fromkeys(row, ERASED)
                if isinstance(row, Mapping) and _is_row_of(entities, row, owner=owner)
                else row
                for row in item
            ]
        cleaned[name] = _clean_report(
            entities, item, owner=owner, is_observed=is_observed or name == _OBSERVED
        )
    return cleaned


def _is_row_of(entities: Entities, row: Mapping[str, Any], *, owner: str) -> bool:
    """Return whether a sampled row of a feature group or training dataset belongs to an entity."""
    columns = entities.key_columns(list(row), owner=owner)
    texts = {}
    for name in columns:
        with suppress(InvalidArgument):  # numbers with fractions and lists are no keys
            texts[name] = canonical_text(row[name])
    return entities.match_texts(texts, columns)
