"""Erasure in the key versions of upsert jobs: the hashes of deleted keys and late rows.

A hash is found only if the values of the complete primary key are known, so a check of a
certificate does not search them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import compute as pc

from featurestore.arrow.values import ConversionError, from_json, to_scalar
from featurestore.delta.snapshot import read_snapshot
from featurestore.erasure.areas import Scan
from featurestore.erasure.keys import KnownValue
from featurestore.erasure.tables import GROUPS, Table, group_spec, group_tables, read_columns
from featurestore.errors import FeatureStoreError
from featurestore.jobs.key_versions import FOLDER, has_versions, hash_keys
from featurestore.model.erasure import ErasureFinding
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.times import utc_now
from featurestore.recovery.in_flight import in_flight
from featurestore.recovery.pins import RECLAIM


@dataclass(frozen=True)
class KeyHashes:
    """The primary keys of entities in a group, as values of its types."""

    spec: FeatureGroupSpec
    rows: Sequence[Sequence[object]]

    def matches(self, batch: pa.RecordBatch) -> pa.Array:
        """Return which versions have the hash of a key, or of a key and their time."""
        is_match = pa.array([False] * batch.num_rows)
        for row in self.rows:
            keys = []
            for name, value in zip(self.spec.primary_key, row, strict=True):
                scalar = to_scalar(value, self.spec.schema.field(name).type)
                keys.append(pa.repeat(scalar, batch.num_rows))
            for hashes in (hash_keys(keys), hash_keys([*keys, batch.column("time")])):
                is_match = pc.or_(is_match, pc.equal(batch.column("key"), hashes).fill_null(False))
        return is_match


class KeyVersions:
    """The tables of key versions of all groups."""

    name = "key versions"

    def search(self, scan: Scan) -> list[ErasureFinding]:
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
                scan.session, kind=RECLAIM, name=table.group, version=table.version
            ) as run:
                for key in sorted(keys):
                    condition = f"key = unhex('{key.hex()}')"
                    engine.delete(path, condition, commit_metadata={"operation": "erase"})
                engine.vacuum(path, keep_versions=(), retain=utc_now())
                run.registered = True


def _tables(scan: Scan) -> Iterator[tuple[Table, KeyHashes]]:
    """Yield the groups with key versions for which an entity has a complete primary key."""
    for table in group_tables(scan.session):
        if table.area != GROUPS or not has_versions(table.path):
            continue
        spec = group_spec(table)
        rows = [] if spec is None else list(_primary_keys(scan, spec))
        if spec is not None and rows:
            yield table, KeyHashes(spec, rows)


def _primary_keys(scan: Scan, spec: FeatureGroupSpec) -> Iterator[list[object]]:
    columns = scan.entities.key_columns(spec.primary_key, owner=spec.name)
    if set(columns) != set(spec.primary_key):
        return
    for entity in scan.entities.entities:
        row: list[object] = []
        for name in spec.primary_key:
            value = entity.get(columns[name])
            if isinstance(value, KnownValue):
                try:
                    row.append(_parse(value.text, spec.schema.field(name).type))
                except (ConversionError, FeatureStoreError, ValueError, KeyError):
                    break
        if len(row) == len(spec.primary_key):
            yield row


def _parse(text: str, kind: pa.DataType) -> object:
    """Convert the text of a key to a value of its column."""
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[text]
    if pa.types.is_binary(kind):
        return bytes.fromhex(text)
    return from_json(text, kind)


def _matching_hashes(table: Table, hashes: KeyHashes) -> Iterator[list[bytes]]:
    path = os.path.join(table.path, FOLDER)
    for file in read_snapshot(path).files:
        for batch in read_columns(file.path, path, ["key", "time"]):
            matching_rows = batch.filter(hashes.matches(batch))
            if matching_rows.num_rows:
                yield matching_rows.column("key").to_pylist()
