"""Malformed uploads are refused as a whole with a reason, for each role."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from starlette.testclient import TestClient

import featurestore
from featurestore.plugins.remote import RETRIEVAL
from featurestore.registry.audit_log import Actor
from featurestore.server.access import changes
from featurestore.store import FeatureStore
from tests.server.private_groups import client_of, token_of

ROOT = Actor("root", "test")
NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
# User: role on the store, role on the group; and the scope of the token.
ROLES = {
    "rea": ("reader", None, "admin"),
    "wil": ("writer", None, "admin"),
    "old": ("writer", None, "read"),
    "own": ("none", "writer", "admin"),
    "vis": ("none", "reader", "admin"),
    "non": ("none", None, "admin"),
}
WRITERS = {"wil", "own"}
_STAMP = pa.timestamp("us", "UTC")


def rows(**columns: Any) -> pa.Table:
    """Return a valid row with some columns replaced or added."""
    table = {
        "who": pa.array(["z"]),
        "seen": pa.array([NOON], _STAMP),
        "pay": pa.array([1.5]),
        **columns,
    }
    return pa.table({name: column for name, column in table.items() if column is not None})


def _nested(depth: int) -> pa.Array:
    dtype: pa.DataType = pa.int64()
    value: Any = 1
    for _ in range(depth):
        dtype, value = pa.struct([("x", dtype)]), {"x": value}
    return pa.array([value], dtype)


def _of_bytes(content: bytes) -> pa.Array:
    """Return a string column with invalid UTF-8."""
    offsets = pa.py_buffer(np.array([0, len(content)], np.int32))
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(content)])


def _repeated() -> pa.Table:
    table = rows()
    return pa.Table.from_arrays([*table.columns, table["pay"]], [*table.column_names, "pay"])


UPLOADS: dict[str, pa.Table] = {
    "text for a number": rows(pay=pa.array(["much"])),
    "number for a text": rows(who=pa.array([1])),
    "text for a time": rows(seen=pa.array(["noon"])),
    "time without a zone": rows(seen=pa.array([datetime(2024, 3, 1)], pa.timestamp("us"))),
    "time after the last year": rows(seen=pa.array([2**62], _STAMP)),
    "seconds beyond all years": rows(seen=pa.array([2**62], pa.timestamp("s", "UTC"))),
    "column too many": rows(more=pa.array([1])),
    "column too few": rows(pay=None),
    "key missing": rows(who=None),
    "key null": rows(who=pa.array([None], pa.string())),
    "time null": rows(seen=pa.array([None], _STAMP)),
    "column twice": _repeated(),
    "key twice": pa.concat_tables([rows(), rows()]),
    "columns of one name but for case": rows(Pay=pa.array([1.0])),
    "column without a name": rows(**{"": pa.array([1])}),
    "column with quotes": rows(**{"a\"; drop table x; --'": pa.array([1])}),
    "column with lines": rows(**{"a\r\nb\x00": pa.array([1])}),
    "column of 5,000 letters": rows(**{"a" * 5000: pa.array([1])}),
    "columns by the thousand": rows(**{f"c{number}": pa.array([1]) for number in range(3000)}),
    "no rows": rows().slice(0, 0),
    "no columns": pa.table({}),
    "nulls without a type": rows(pay=pa.nulls(1)),
    "unsigned beyond signed": rows(pay=pa.array([2**64 - 1], pa.uint64())),
    "decimal of 76 digits": rows(pay=pa.array([10**70], pa.decimal256(76, 0))),
    "not a number": rows(pay=pa.array([float("nan")])),
    "struct of depth 60": rows(pay=_nested(60)),
    "list of lists": rows(pay=pa.array([[[1.0]]])),
    "map": rows(pay=pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))),
    "union": rows(pay=pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1.0])])),
    "dictionary": rows(who=pa.array(["z"]).dictionary_encode()),
    "duration": rows(pay=pa.array([1], pa.duration("us"))),
    "text that is not UTF-8": rows(who=_of_bytes(b"\xff\xfe")),
    "text with a null byte": rows(who=pa.array(["a\x00b"])),
    "text of 3 MB": rows(who=pa.array(["x" * 3_000_000])),
}
LINES: dict[str, dict[str, Any]] = {
    "unknown mode": {"mode": "replace"},
    "unknown argument": {"where": "true"},
    "drop of columns": {"schema_change": "drop"},
    "new columns": {"schema_change": "add"},
    "transaction beyond 64 bits": {"transaction": ["a", 10**30]},
    "transaction of a job": {"transaction": ["job/doubled/0/1", 1]},
    "policy of no name": {"validation": "never"},
    "overwrite": {"mode": "overwrite"},
}
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no line": b"ARROW1" * 100,
    "no JSON": b"{{{\n",
    "deep JSON": b"[" * 50_000 + b"\n",
    "JSON of another kind": b'["mode"]\n',
    "numbers without end": b'{"transaction": ["a", ' + b"9" * 5000 + b"]}\n",
    "no rows after the line": b"{}\n",
    "no Arrow after the line": b"{}\n" + b"\xff" * 1000,
}


def body_of(line: dict[str, Any], table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return json.dumps(line).encode() + b"\n" + sink.getvalue().to_pybytes()


def bodies(line: dict[str, Any]) -> dict[str, bytes]:
    """Return the bodies of all uploads; ``line`` is the header line of a valid one."""
    uploads = {name: body_of(line, table) for name, table in UPLOADS.items()}
    uploads["cut short"] = body_of(line, rows())[:-200]
    if "mode" in line:
        uploads.update(
            {name: body_of({**line, **changes}, rows()) for name, changes in LINES.items()}
        )
    return uploads | BODIES


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    folder = tmp_path_factory.mktemp("attacked")
    with featurestore.connect(folder / "store") as store:
        store.create_featuregroup(rows(), "visits", primary_key="who", event_time="seen")
        for name, (role, on_group, _) in ROLES.items():
            changes.add_user(store.session, ROOT, name, role=role)
            if on_group is not None:
                changes.set_group_role(store.session, ROOT, "visits", name, on_group)
        yield store


@pytest.fixture(scope="module")
def client(attacked: FeatureStore) -> Iterator[TestClient]:
    with client_of(attacked) as client:
        yield client


def state_of(store: FeatureStore) -> tuple[Any, ...]:
    """Return the groups with their versions, and the files in the staging folder."""
    groups = []
    for group in store.get_featuregroups():
        groups.append((group.name, group.version, group.delta_version))
    staged = Path(store.location, "_staging")
    return groups, sorted(staged.iterdir()) if staged.exists() else []


@pytest.mark.filterwarnings("ignore")  # warnings about accepted values
@pytest.mark.parametrize("user", list(ROLES))
def test_uploads_are_atomic_or_refused(
    client: TestClient, attacked: FeatureStore, user: str
) -> None:
    headers = token_of(attacked, user, scope=ROLES[user][2])
    headers["Content-Type"] = RETRIEVAL
    insert, create = {"mode": "append"}, {"primary_key": ["who"], "event_time": "seen"}
    write_count = refusal_count = 0
    untouched = state_of(attacked)
    for route, line in (("visits/1/rows", insert), ("attack", create)):
        writes = user == "wil" or (user == "own" and route != "attack")
        for name, body in bodies(line).items():
            before = state_of(attacked) if writes else untouched
            address = f"/api/v1/featuregroups/{route}"
            response = client.post(address, content=body, headers=headers)
            actual = (user, route, name, response.status_code, response.text[:400])
            assert response.status_code < 500, actual
            assert attacked.location not in response.text, actual
            if not writes:
                assert response.status_code in (403, 404), actual
            if response.status_code == 200:
                write_count += 1
                continue
            refusal_count += 1
            assert response.json()["detail"], actual
            assert not writes or state_of(attacked) == before, actual
    assert user in WRITERS or state_of(attacked) == untouched
    for page in (
        "/groups/visits/1/rows",
        "/groups/visits/1/validation",
        "/groups/visits/1/statistics",
    ):
        assert client.get(page, headers=headers).status_code < 500, page
    assert refusal_count >= 60
    assert bool(write_count) == (user in WRITERS)
