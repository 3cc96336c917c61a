"""Erasure in the key versions of upsert jobs: the hashes of deleted keys and late rows.

A hash is compared with those of the primary keys of the entities. If a primary key has further
columns, their values are those of rows in the data files. A certificate contains the hashes, so that
its check needs no values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Set

import pyarrow as pa

from featurestore.arrow.values import ConversionError, from_json, to_array
from featurestore.delta.snapshot import read_snapshot
from featurestore.erasure import tables
from featurestore.erasure.areas import Scan
from featurestore.erasure.keys import KnownValue
from featurestore.erasure.tables import Table
from featurestore.errors import FeatureStoreError
from featurestore.jobs.key_versions import FOLDER, has_versions, hash_keys, versions_of_keys
from featurestore.model.erasure import ErasureFinding
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.times import utc_now
from featurestore.recovery.in_flight import in_flight
from featurestore.recovery.pins import RECLAIM


class KeyVersions:
    """The tables of key versions of all groups."""

    name = "key versions"

    def search(self, scan: Scan) -> list[ErasureFinding]:
        _add_key_hashes(scan)
        findings = []
        for table, hashes in _tables(scan):
            scan.scanned[self.name] += 1
            rows = sum(len(keys) for keys in _matching_hashes(table, hashes))
            if rows:
                findings.append(
                    ErasureFinding(self.name, table.title, f"{rows:,} hashes", "remove", rows)
                )
        return findings

    def erase(self, scan: Scan) -> None:
        engine = scan.session.engine
        for table, hashes in _tables(scan):
            path = os.path.join(table.path, FOLDER)
            keys = {key for batch in _matching_hashes(table, hashes) for key in batch}
            if not keys:
                continue
            with in_flight(
                scan.session, operation=RECLAIM, name=table.group, version=table.version
            ) as run:
                # The vacuum would remove files that a running job writes or reads.
                tables.check_no_writers(scan.session, table, except_for=(run.intent,))
                conditions = [f"key = unhex('{key.hex()}')" for key in sorted(keys)]
                for start in range(0, len(conditions), tables.KEYS_PER_DELETION):
                    condition = " OR ".join(conditions[start : start + tables.KEYS_PER_DELETION])
                    engine.delete(path, condition, commit_metadata={"operation": "erase"})
                engine.vacuum(path, keep_versions=(), retain=utc_now())
                run.registered = True


def _tables(scan: Scan) -> Iterator[tuple[Table, Set[bytes]]]:
    """Yield the groups with key versions, and the hashes of the entities' primary keys."""
    for table, spec in _groups(scan):
        hashes = scan.key_hashes.get(_key_names(scan, spec), set())
        if hashes and has_versions(table.path):
            yield table, hashes


def _groups(scan: Scan) -> Iterator[tuple[Table, FeatureGroupSpec]]:
    """Yield the groups whose primary key contains all keys of an entity."""
    for table in tables.group_tables(scan.session):
        spec = tables.group_spec(table) if table.area == tables.GROUPS else None
        if spec is not None and scan.entities.is_searchable(
            scan.entities.key_columns(spec.primary_key, owner=spec.name)
        ):
            yield table, spec


def _key_names(scan: Scan, spec: FeatureGroupSpec) -> tuple[str, ...]:
    """Return the names of a primary key; groups with the same names have the same keys."""
    columns = scan.entities.key_columns(spec.primary_key, owner=spec.name)
    return tuple(columns.get(name, name) for name in spec.primary_key)


def _add_key_hashes(scan: Scan) -> None:
    """Add the hashes of the primary keys of known entities, also of groups without versions."""
    for table, spec in _groups(scan):
        rows = {*_primary_keys(scan, spec), *scan.key_rows.get((table.group, table.version), ())}
        hashes = scan.key_hashes.setdefault(_key_names(scan, spec), set())
        types = [spec.schema.field(name).type for name in spec.primary_key]
        for row in rows:
            try:
                columns = [
                    to_array([_parse(value, dtype)], dtype)
                    for value, dtype in zip(row, types, strict=True)
                ]
            except (ConversionError, FeatureStoreError, ValueError, KeyError):
                continue  # the text is not a value of this column
            hashes.update(hash_keys(columns).drop_null().to_pylist())


def _primary_keys(scan: Scan, spec: FeatureGroupSpec) -> Iterator[tuple[str, ...]]:
    """Yield the primary keys that consist of keys of an entity only, as texts."""
    for entity in scan.entities.entities:
        values = [entity.get(name) for name in _key_names(scan, spec)]
        texts = [value.text for value in values if isinstance(value, KnownValue)]
        if len(texts) == len(values):
            yield tuple(texts)


def _parse(value: object, dtype: pa.DataType) -> object:
    """Convert the text of a key, or of the folder of a partition, to a value of its column."""
    if not isinstance(value, str):
        return value
    if pa.types.is_integer(dtype):
        return int(value)
    if pa.types.is_boolean(dtype):
        return {"true": True, "false": False}[value]
    if pa.types.is_binary(dtype):
        return bytes.fromhex(value)
    return from_json(value, dtype)


def _matching_hashes(table: Table, hashes: Set[bytes]) -> Iterator[list[bytes]]:
    path = os.path.join(table.path, FOLDER)
    for file in read_snapshot(path).files:
        for batch in tables.read_columns(file.path, path, ["key", "time"]):
            matching_rows = batch.filter(versions_of_keys(batch, hashes))
            if matching_rows.num_rows:
                yield matching_rows.column("key").to_pylist()
