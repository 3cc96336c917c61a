"""The REST API returns and refuses the same as the library."""

from __future__ import annotations

import json

import schemathesis
import schemathesis.specs.openapi.schemas  # imported before other threads parse: CPython's gh-106905
from hypothesis import given, settings
from starlette.testclient import TestClient

import featurestore
from featurestore import experiments
from featurestore.featuregroups.handle import group_details
from featurestore.server import create_app
from featurestore.server.rest import to_json_value
from featurestore.store import FeatureStore


def test_rest_groups_equal_library_details(client: TestClient, served_store: FeatureStore) -> None:
    group = served_store.featuregroup("visits", version=1)
    address = "/api/v1/featuregroups/visits/1"
    assert client.get(address).json() == to_json_value(group_details(group))
    commits = client.get(f"{address}/commits").json()["items"]
    assert commits == [to_json_value(vars(commit)) for commit in group.history()]
    assert client.get(f"{address}/statistics").json() == to_json_value(group.statistics().to_json())
    report = served_store.verify_featuregroup("visits", version=1).to_json()
    assert client.post(f"{address}/verify").json() == to_json_value(report)
    rows = client.get(f"{address}/rows", params={"limit": 2}).json()
    assert rows["columns"] == group.schema.names
    assert len(rows["rows"]) == 2
    latest = client.get("/api/v1/featuregroups/visits").json()
    assert (latest["version"], latest["versions"]) == (2, [2, 1])


def test_rest_datasets_and_jobs_equal_library_details(
    client: TestClient, served_store: FeatureStore
) -> None:
    dataset = served_store.get_training_dataset("sells", version=1)
    document = client.get("/api/v1/training-datasets/sells/1").json()
    assert document["content_hash"] == dataset.manifest.content_hash
    assert client.post("/api/v1/training-datasets/sells/1/verify").json()["ok"]
    runs = client.get("/api/v1/jobs/doubled/runs").json()["items"]
    assert {run["state"] for run in runs} == {"done"}
    assert "log" not in runs[0]
    assert client.get("/api/v1/jobs/doubled").json()["definition"]["name"] == "doubled"


def test_rest_runs_and_models_equal_library_details(
    client: TestClient, served_store: FeatureStore
) -> None:
    runs = experiments.get_runs("seller", store=served_store)
    document = client.get("/api/v1/experiments?name=seller&dataset=sells").json()["items"]
    assert [item["run"] for item in document] == [run.id for run in runs]
    run = client.get(f"/api/v1/experiments/{runs[-1].id}").json()
    assert run["reported"]["loss"] == {"1": 0.1, "2": 0.05, "3": 0.1 / 3}
    model = experiments.get_model("seller", store=served_store)
    assert client.get("/api/v1/models/seller/2").json() == to_json_value(model.to_json())
    assert len(client.get("/api/v1/models").json()["items"]) == 2


def test_rest_lists_are_paged(client: TestClient) -> None:
    references: list[str] = []
    offset: int | None = 0
    while offset is not None:
        page = client.get("/api/v1/features", params={"limit": 2, "offset": offset}).json()
        references += [item["reference"] for item in page["items"]]
        offset = page["next"]
    assert len(references) == len(set(references)) == 7
    assert "doubled.twice" in references


def test_rest_errors_are_problem_objects_with_hint(client: TestClient) -> None:
    response = client.get("/api/v1/featuregroups/visit")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["title"] == "FeatureGroupNotFound"
    assert "visits" in document["hint"]
    assert client.get("/api/v1/featuregroups/visits/1/rows?delta_version=99").status_code == 404
    assert client.get("/api/v1/jobs?limit=x").status_code == 422


def test_rest_matching_etag_returns_304(client: TestClient) -> None:
    first = client.get("/api/v1/featuregroups/visits/1")
    again = client.get(
        "/api/v1/featuregroups/visits/1", headers={"If-None-Match": first.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]


def test_rest_matches_openapi_description(served_store: FeatureStore) -> None:
    """Schemathesis generates requests from the OpenAPI description and checks the responses."""
    app = create_app(served_store)
    schema = schemathesis.openapi.from_asgi(
        "/api/v1/openapi.json", app, headers={"Host": "localhost"}
    )
    # Streamed bodies are not described in OpenAPI; see test_remote_client.
    schema = schema.exclude(path=["/api/v1/rows"]).exclude(tag="writes")
    operations = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        operations += 1

        @settings(max_examples=15, deadline=None)
        @given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            # Response times are not checked, since the machine may be busy.
            case.call_and_validate(headers={"Host": "localhost"}, timeout=300)

        check()
    assert operations >= 15


def test_rest_nan_and_bytes_are_written_as_text(tmp_path: object) -> None:
    with featurestore.connect(f"{tmp_path}/odd") as store:
        store.create_featuregroup([{"x": float("nan"), "b": b"\x00\xff"}], "odd")
        client = TestClient(create_app(store), base_url="http://localhost")
        text = client.get("/api/v1/featuregroups/odd/1/rows").text
        assert json.loads(text)["rows"] == [["NaN", "AP8="]]
