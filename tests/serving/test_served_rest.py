"""Vectors and predictions by REST equal those of the library, with the same access rules."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from sklearn.linear_model import LinearRegression
from starlette.testclient import TestClient

import featurestore
from featurestore import experiments
from featurestore import transform as t
from featurestore.errors import (
    FeatureViewNotFound,
    InvalidArgument,
    NotPublished,
    UnsupportedRemotely,
    UnsupportedType,
    UntrustedModel,
)
from featurestore.experiments import catalog
from featurestore.experiments.run import Run
from featurestore.model.run_record import RunDataset, RunRecord
from featurestore.server import ServerSettings, create_app
from featurestore.store import FeatureStore
from tests.server.browser import listening
from tests.serving.test_vector_server import KEYS, NO_KEYS

START = datetime(2024, 1, 1, tzinfo=UTC)


class Total:
    """A model that predicts the sum of its inputs."""

    def predict(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.nansum(x, axis=1)


@pytest.fixture(scope="module", params=["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FeatureStore]:
    """A store with a published view and a model that was trained from it, on each engine."""
    if request.param == "spark":
        request.getfixturevalue("spark")
    location = tmp_path_factory.mktemp("served") / "store"
    with featurestore.connect(location, engine=request.param) as store:
        days = [START + timedelta(days=day) for day in range(3)]
        weather = {"day": days, "known": days, "temp": [1.0, 2.0, 4.0]}
        store.create_featuregroup(
            pa.table(weather), "weather", primary_key="day", event_time="known"
        )
        shops = {"shop": [1, 2], "size": [10.0, 20.0], "plan": [b"a", None]}
        store.create_featuregroup(pa.table(shops), "shops", primary_key="shop")
        labels = {"shop": [1, 2], "day": days[:2], "asked": days[1:], "good": [1.0, 0.0]}
        store.create_featuregroup(
            pa.table(labels), "labels", primary_key=["shop", "day"], event_time="asked"
        )
        per = featurestore.feature("per", "temp / size")
        view = store.create_feature_view(
            "sales", features=["weather.temp", "shops.size", per], labels="labels", label="good"
        )
        chains = {"temp": t.impute(0.0) | t.standardize()}
        dataset = view.create_training_dataset("sales", progress=False)
        view.create_training_dataset("scaled", transformations=chains, progress=False)
        linear = LinearRegression().fit([[1.0, 2.0, 3.0], [2.0, 1.0, 0.0]], [1.0, 0.0])
        for name, file, model in (
            ("total", "model.pkl", Total()),
            ("linear", "model.joblib", linear),
        ):
            record = RunRecord(
                id=f"20240301-120000-{name}",
                name=name,
                kind="launch",
                state="finished",
                created="2024-03-01T12:00:00+00:00",
                dataset=RunDataset(
                    dataset.name, dataset.version, dataset.manifest.content_hash, dataset.path
                ),
            )
            catalog.save(store.session, record)
            artifacts = Path(Run(store.session, record).path) / "artifacts"
            os.makedirs(artifacts)
            joblib.dump(model, artifacts / file)
            experiments.register_model(record.id, name, trust=True, store=store)
        store.publish("sales")
        yield store


def test_vectors_by_rest(served: FeatureStore) -> None:
    client = TestClient(create_app(served), base_url="http://localhost")
    address = "/api/v1/featureviews/sales/vectors"
    entities = [
        {"shop": 1, "day": "2024-01-02T00:00:00+00:00"},
        {"shop": 2, "day": "2030-01-01T00:00:00+00:00"},
    ]
    response = client.post(address, json={"entities": entities}).json()
    assert response == {
        "view": "sales",
        "version": 1,
        "vectors": [
            {"temp": 2.0, "size": 10.0, "per": 0.2},
            {"temp": None, "size": 20.0, "per": None},
        ],
        "statuses": ["found", "missing"],
    }
    stream = client.post(
        address,
        json={"entities": entities},
        headers={"accept": "application/vnd.apache.arrow.stream"},
    )
    assert pa.ipc.open_stream(stream.content).read_all().to_pylist() == response["vectors"]
    metrics = client.get("/metrics").text
    assert 'featurestore_vectors_total{view="sales",status="missing"} 2' in metrics
    assert 'featurestore_vector_seconds_count{view="sales"} 2' in metrics
    assert (
        'featurestore_online_lag_seconds{view="sales",version="1",featuregroup="shops@v1"} 0.0'
        in metrics
    )
    for body, status, words in (
        ({"entities": [{"shop": 1}]}, 400, "no 'day'"),
        ({"entities": [{"shop": "x", "day": None}]}, 400, "'shop': 'x' is not a value"),
        ({"entities": [{"shop": 1, "day": "soon"}]}, 400, "'day': 'soon' is not a value"),
        ({"entities": entities * 10_000}, 422, "entities"),
        ({"entities": entities, "online": "cache"}, 404, "'cache'"),
        ({"entities": entities, "version": 7}, 404, "version"),
    ):
        refused = client.post(address, json=body)
        assert (refused.status_code, words in refused.json()["detail"]) == (status, True)


# The embedded online store is read alike on each engine.
def test_key_without_equal_is_missing_or_refused_by_rest(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    """Also if the key is an input of on-demand features and of the dataset."""
    keys = pa.array([1, 7], pa.int8())
    small = pa.table({"k": keys, "a": [1.0, 7.0]})
    empty_store.create_featuregroup(small, "small", primary_key="k")
    labels = pa.table({"k": keys, "n": [1, 300], "good": [0, 1]})
    empty_store.create_featuregroup(labels, "labels", primary_key=["k", "n"])
    large = pa.table({"n": [1, 300], "b": [10.0, 20.0]})
    empty_store.create_featuregroup(large, "large", primary_key="n")
    same = pa.table({"j": [1, 300], "c": [100.0, 200.0]})
    empty_store.create_featuregroup(same, "same", primary_key="j")
    computed = [
        featurestore.feature("next", "k + 1"),
        featurestore.feature("known", "coalesce(k, -5) * n"),
        featurestore.feature("half", "n / 2"),
        {"features": ["same.c"], "join_key": {"next": "j"}},
    ]
    features_by_view: dict[str, list[Any]] = {"plain": [], "computed": computed}
    client = TestClient(create_app(empty_store), base_url="http://localhost")
    for name, features in features_by_view.items():
        view = empty_store.create_feature_view(
            name, features=["small.a", "large.b", *features], labels="labels", label="good"
        )
        empty_store.publish(name)
        bodies: list[dict[str, Any]] = [{}]
        if not features:
            view.create_training_dataset(name, features=["k"], progress=False)
            bodies.append({"dataset": name})
        address = f"/api/v1/featureviews/{name}/vectors"
        for body in bodies:
            first, last = {"k": 1, "n": 1}, {"k": 7, "n": 300}
            expected = client.post(address, json={"entities": [first, last], **body}).json()
            by_key = ("k", "a", "next", "known", "c")
            nulls = {column: None for column in expected["vectors"][0] if column in by_key}
            for number in (300, -129, 2**63, 2**64, 10**90, 300.0, 1e300):
                # The group of the other key is not affected.
                middle = {**expected["vectors"][1], **nulls}
                with subtests.test(name, **body, key=number):
                    entities = [first, {"k": number, "n": 300}, last]
                    response = client.post(address, json={"entities": entities, **body})
                    assert response.status_code == 200, response.text
                    served = response.json()
                    first_status, last_status = expected["statuses"]
                    assert served["statuses"] == [first_status, "missing", last_status]
                    before, after = expected["vectors"]
                    assert served["vectors"] == [before, middle, after]
                    stream = client.post(
                        address,
                        json={"entities": entities, **body},
                        headers={"accept": "application/vnd.apache.arrow.stream"},
                    )
                    table = pa.ipc.open_stream(stream.content).read_all()
                    assert table.to_pylist() == served["vectors"]
            for key in (1.7, 7.5, "7", True, [7], "x"):
                with subtests.test(name, **body, key=key):
                    entities = [first, {"k": key, "n": 1}]
                    refused = client.post(address, json={"entities": entities, **body})
                    assert refused.status_code == 400
                    error = refused.json()
                    assert error["title"] == "InvalidArgument"
                    assert f"'k': {key!r} is not a value of the type int8" in error["detail"]


@pytest.mark.parametrize("model", ["total", "linear"])
def test_predictions_by_rest_equal_scores(served: FeatureStore, model: str) -> None:
    """A pickle and a joblib file."""
    address = f"/api/v1/models/{model}/predict"
    day = START + timedelta(days=1)
    body = {"entities": [{"shop": shop, "day": day.isoformat()} for shop in (1, 2)]}
    client = TestClient(create_app(served), base_url="http://localhost")
    assert "runs code" in client.post(address, json=body).json()["detail"]
    trusting = create_app(served, ServerSettings(trust_models=True))
    response = TestClient(trusting, base_url="http://localhost").post(address, json=body).json()
    stream = TestClient(trusting, base_url="http://localhost").post(
        address, json=body, headers={"accept": "application/vnd.apache.arrow.stream"}
    )
    table = pa.ipc.open_stream(stream.content).read_all()
    assert table.to_pylist() == response["rows"]
    assert json.loads(table.schema.metadata[b"featurestore"]).items() <= response.items()
    labels = pa.table({"shop": [1, 2], "day": [day, day], "asked": [day, day]})
    scored = served.score(model, labels=labels, label_time=datetime.now(UTC), trust=True)
    assert [row["prediction"] for row in response.pop("rows")] == scored.to_arrow()[
        "prediction"
    ].to_pylist()
    with pytest.raises(UntrustedModel):
        experiments.get_model(model, store=served).server()
    server = experiments.get_model(model, store=served).server(trust=True)
    predictions = server.predict([{"shop": 1, "day": day}])
    assert server.predict(pa.table({"shop": [1], "day": [day]})).rows == predictions.rows
    with pytest.raises(InvalidArgument, match="at least one entity"):
        server.predict([])
    server.close()
    assert (predictions.view, predictions.view_version) == ("sales", 1)
    assert response == {
        "model": model,
        "model_version": 1,
        "view": "sales",
        "view_version": 1,
        "statuses": ["found", "found"],
        "delta_versions": {"weather@v1": 1, "shops@v1": 1},
    }


# The library of a model does not depend on the engine, and its import takes seconds.
@pytest.mark.parametrize("served", ["duckdb"], indirect=True)
@pytest.mark.tensorflow
def test_tensorflow_models_predict_by_rest(served: FeatureStore) -> None:
    """A Keras file, which needs no trust, and a SavedModel, which runs code."""
    keras, tf = pytest.importorskip("keras"), pytest.importorskip("tensorflow")
    names = ("temp", "size", "per")
    inputs = {name: keras.Input((1,), name=name) for name in names}
    joined = keras.layers.Concatenate()(list(inputs.values()))
    network = keras.Model(inputs, keras.layers.Dense(1)(joined))

    class Weighted(tf.Module):  # type: ignore[misc]
        @tf.function(
            input_signature=[tf.TensorSpec((None,), tf.float32, name=name) for name in names]
        )
        def __call__(self, temp: Any, size: Any, per: Any) -> Any:
            return {"answer": 2.0 * temp + size - per}

    weighted = Weighted()
    day = START + timedelta(days=1)
    body = {"entities": [{"shop": shop, "day": day.isoformat()} for shop in (1, 2)]}
    labels = pa.table({"shop": [1, 2], "day": [day, day], "asked": [day, day]})
    columns = {"temp": [2.0, 2.0], "size": [10.0, 20.0], "per": [0.2, 0.1]}
    arrays = {name: np.array(values, np.float32)[:, None] for name, values in columns.items()}
    sums = 2.0 * arrays["temp"][:, 0] + arrays["size"][:, 0] - arrays["per"][:, 0]
    run = experiments.get_run("20240301-120000-total", store=served)
    artifacts = Path(run.path, "artifacts")
    network.save(artifacts / "dense.keras")
    tf.saved_model.save(
        weighted, str(artifacts / "weighted"), {"serving_default": weighted.__call__}
    )
    for file, trust, expected in (
        ("dense.keras", False, network.predict(arrays, verbose=0)[:, 0]),
        ("weighted", True, sums),
    ):
        model = experiments.register_model(
            run, file[:5], artifact=f"artifacts/{file}", trust=trust, store=served
        )
        app = create_app(served, ServerSettings(trust_models=trust))
        client = TestClient(app, base_url="http://localhost")
        response = client.post(f"/api/v1/models/{model.name}/predict", json=body).json()
        predictions = [row["prediction"] for row in response["rows"]]
        np.testing.assert_allclose(predictions, expected, rtol=1e-6)
        now = datetime.now(UTC)
        scored = served.score(model, labels=labels, label_time=now, trust=trust).to_arrow()
        assert predictions == scored["prediction"].to_pylist()
        assert (response["view"], response["view_version"], response["model_version"]) == (
            "sales",
            1,
            1,
        )
        assert response["delta_versions"] == {"weather@v1": 1, "shops@v1": 1}


def test_remote_entities_are_converted_like_local_ones(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    views = {}
    for number, (kind, (keys, _)) in enumerate(KEYS.items()):
        rows = pa.table({"k": pa.array(keys, kind), "v": [1, 2]})
        empty_store.create_featuregroup(rows, f"g{number}", primary_key="k")
        empty_store.create_feature_view(f"v{number}", features=[f"g{number}.v"])
        empty_store.publish(f"v{number}")
        views[f"v{number}"] = kind
    numbers = [300.0, 2**63, 10**30, Decimal(10**30), Decimal("1e70"), np.uint64(2**64 - 1)]
    with listening(empty_store, ServerSettings()) as address:
        remote = featurestore.connect(address)
        for view, kind in views.items():
            (first, _), equal_values = KEYS[kind]
            with (
                empty_store.get_feature_view(view).server() as local,
                remote.get_feature_view(view).server() as server,
            ):
                assert server.log_state is None
                for value in (*equal_values, pa.scalar(first, kind), *NO_KEYS, *numbers, None):
                    with subtests.test(str(kind), value=repr(value)):
                        try:
                            expected = local.get_vector({"k": value})
                        except InvalidArgument:
                            # JSON has texts for these, which other types may also have.
                            texts = str | bytes | date | np.datetime64 | Decimal
                            if not isinstance(value, texts):
                                with pytest.raises((InvalidArgument, UnsupportedType)):
                                    server.get_vector({"k": value})
                            continue
                        vector = server.get_vector({"k": value})
                        assert (vector, vector.status) == (expected, expected.status)


def test_remote_server_equals_local_server(served: FeatureStore) -> None:
    entities = [
        {"shop": 1, "day": START + timedelta(days=1)},
        {"shop": np.int64(2), "day": START + timedelta(days=9)},
        {"shop": None, "day": None},
    ]
    view = served.get_feature_view("sales")
    served.create_feature_view("unpublished", features=["shops.size"])
    with (
        listening(served, ServerSettings()) as address,
        featurestore.connect(address) as remote,
        view.server() as local,
    ):
        with pytest.raises(NotPublished, match=r"store\.publish\('unpublished'"):
            remote.get_feature_view("unpublished").server()
        with pytest.raises(FeatureViewNotFound):
            remote.get_feature_view("sale")
        remote_view = remote.get_feature_view("sales")
        assert (remote_view.features, remote_view.label) == (view.features, view.label)
        with remote_view.server() as server:
            assert (server.entity, server.entity_types) == (local.entity, local.entity_types)
            vectors, expected = server.get_vectors(entities), local.get_vectors(entities)
            assert repr(vectors) == repr(expected)
            assert [vector.groups for vector in vectors] == [vector.groups for vector in expected]
            assert [vector.status for vector in vectors] == ["found", "missing", "missing"]
            assert server.get_vectors(entities, as_="arrow") == local.get_vectors(
                entities, as_="arrow"
            )
            np.testing.assert_equal(
                server.get_vector(entities[0], as_="numpy"),
                local.get_vector(entities[0], as_="numpy"),
            )
            assert asyncio.run(server.aget_vector(entities[0])) == expected[0]
            assert server.get_vectors(pa.Table.from_pylist(entities)) == expected
            for form in ("dict", "numpy", "arrow"):
                assert len(server.get_vectors([], as_=form)) == 0
            with pytest.raises(InvalidArgument, match=r"10,001 entities.*\n.*entities\[:10000\]"):
                server.get_vectors(entities[:1] * 10_001)
            malformed: list[Any] = [{"shop": 1}, {"shop": "x", "day": None}, "x"]
            for entity in malformed:
                with pytest.raises(InvalidArgument) as local_error:
                    local.get_vector(entity)
                with pytest.raises(InvalidArgument) as remote_error:
                    server.get_vector(entity)
                assert remote_error.value.message == local_error.value.message
        dataset = remote.get_training_dataset("scaled")
        inputs = served.get_training_dataset("scaled")
        with remote_view.server(dataset=dataset) as scaled, view.server(dataset=inputs) as expected:
            assert scaled.entity_types == expected.entity_types
            assert repr(scaled.get_vectors(entities)) == repr(expected.get_vectors(entities))
            table = scaled.get_vectors(entities, as_="arrow")
            assert table == expected.get_vectors(entities, as_="arrow")
        with pytest.raises(UnsupportedRemotely, match="log_vectors") as refused:
            remote_view.server(log_vectors="log")
        assert refused.value.hint == "view.server()"
        with pytest.raises(UnsupportedRemotely):
            remote_view.verify_online()
        with pytest.raises(UnsupportedRemotely, match="models need the files") as refused:
            experiments.get_model("total", store=remote)
        assert f"{address}/api/v1/models/NAME/predict" in str(refused.value.hint)
