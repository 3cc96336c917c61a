"""The REST interface under random requests as each role: no 5xx, no wrong success, memory bounded."""

from __future__ import annotations

import json
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
import schemathesis.specs.openapi.schemas  # imported before other threads parse: CPython's gh-106905
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

import featurestore
from featurestore.plugins.remote import RETRIEVAL
from featurestore.server import ServerSettings, create_app
from featurestore.store import FeatureStore
from tests.server.private_groups import USERS, fill, token_of

pytestmark = pytest.mark.soak
# Over all roles; `FEATURESTORE_FUZZ_SECONDS=60 make soak` for less.
SECONDS = float(os.environ.get("FEATURESTORE_FUZZ_SECONDS", "600"))
MEMORY = 1 << 20  # KiB
OBJECT_NAMES = ("visits", "salaries", "of_visits", "model_visits", "raise_pay", "watch_pay")
ODD = st.sampled_from(
    [*OBJECT_NAMES, "", "a" * 5000, "\x00", "../x", "2" * 40, "-1", "9" * 19, "null", "é"]
)
STREAMED = (
    "/api/v1/rows",
    "/api/v1/featuregroups/{name}",
    "/api/v1/featuregroups/{name}/{version}/rows",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ODD | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ODD, inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def fuzzed_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    folder = tmp_path_factory.mktemp("fuzzed")
    with featurestore.connect(folder / "store") as store:
        fill(store, folder)
        yield store


@pytest.mark.parametrize("role", [*USERS, "a stranger"])
def test_random_requests_cause_no_server_error(fuzzed_store: FeatureStore, role: str) -> None:
    app = create_app(fuzzed_store, ServerSettings(auth=True, query_seconds=5.0, seconds=10.0))
    headers = {"Host": "localhost"} | ({} if role == "a stranger" else token_of(fuzzed_store, role))
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app, headers=headers)
    for path in STREAMED:  # of which no description can make requests: see _try_retrievals
        schema = schema.exclude(path=path, method="POST")
    operations = [result.ok() for result in schema.get_all_operations()]
    statuses: Counter[int] = Counter()
    memory_before, end = _memory(), time.monotonic() + SECONDS / (len(USERS) + 1)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        while time.monotonic() < end:
            for operation in operations:
                _try(operation, client, headers, statuses, end=end)
            _try_retrievals(client, headers, statuses, end=end)
    print(role, dict(sorted(statuses.items())), f"{(_memory() - memory_before) >> 10} MiB more")
    assert not [status for status in statuses if status >= 500 and status != 503]
    if role == "a stranger":
        assert set(statuses) <= {400, 401, 404, 405, 408, 413, 414, 422}
    assert _memory() - memory_before < MEMORY


def _try(
    operation: Any,
    client: TestClient,
    headers: dict[str, str],
    statuses: Counter[int],
    *,
    end: float,
) -> None:
    """Send requests for one operation, generated from its description."""

    @settings(
        max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy())
    def check(case: schemathesis.Case) -> None:
        if time.monotonic() < end:
            response = case.call(headers=headers, timeout=300)
            statuses[response.status_code] += 1
            assert response.status_code < 500 or response.status_code == 503, case.as_curl_command()

    check()


def _try_retrievals(
    client: TestClient, headers: dict[str, str], statuses: Counter[int], *, end: float
) -> None:
    """Send retrievals and writes: a line of JSON, then bytes that may be an Arrow stream."""
    kinds = st.sampled_from(["featuregroup", "features", "split", "other"])
    reads = st.fixed_dictionaries(
        {"kind": kinds},
        optional={
            "name": ODD, "version": JSON, "as_of": JSON, "split": ODD, "labels": JSON,
            "features": st.lists(ODD | st.just("visits.pay"), max_size=4) | JSON,
            "label_time": JSON, "versions": JSON, "join_key": JSON, "uploaded": st.booleans(),
        },
    )  # fmt: skip
    steps = st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "filter": st.sampled_from(["pay > 1", "1 = 1 or", "(" * 900, "who in ('a')"]) | ODD,
                "select": st.lists(ODD, max_size=3),
                "sample": JSON,
            },
        ),
        max_size=3,
    )
    requests = st.fixed_dictionaries(
        {"read": reads | JSON}, optional={"steps": steps | JSON, "limit": JSON, "answer": ODD}
    )
    paths = st.sampled_from(
        [
            "rows",
            "featuregroups/visits/1/rows",
            "featuregroups/new",
            "featuregroups/salaries/1/rows",
        ]
    )

    @settings(
        max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(path=paths, line=requests | JSON, tail=st.binary(max_size=200))
    def check(path: str, line: Any, tail: bytes) -> None:
        if time.monotonic() < end:
            body = json.dumps(line).encode() + b"\n" + tail
            request_headers = {**headers, "Content-Type": RETRIEVAL}
            response = client.post(f"/api/v1/{path}", content=body, headers=request_headers)
            statuses[response.status_code] += 1
            assert response.status_code < 500 or response.status_code == 503, (
                path,
                line,
                response.text,
            )

    check()


def _memory() -> int:
    """Return the peak memory of this process in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
