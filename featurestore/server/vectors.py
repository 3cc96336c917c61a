"""Online serving by REST: feature vectors, predictions, and their Prometheus metrics."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from featurestore.arrow.batches import ipc_chunks
from featurestore.arrow.schemas import type_to_json
from featurestore.errors import FeatureStoreError, OnlineStoreUnavailable
from featurestore.experiments.models import Model, catalog
from featurestore.experiments.models.scoring import ModelServer
from featurestore.model.arguments import MAX_VERSION
from featurestore.model.names import parse_group_reference
from featurestore.plugins.remote import ARROW, METADATA
from featurestore.registry.artifacts import feature_views
from featurestore.server.guard import FullStore, Settings, Store
from featurestore.server.rest import REFUSALS, Name, Record, to_json_value
from featurestore.server.routes import Router
from featurestore.serving.server import VectorServer
from featurestore.serving.vectors import MAX_ENTITIES
from featurestore.store import FeatureStore
from featurestore.views import FeatureView

api = Router(tags=["serving"], responses=REFUSALS)
# Seconds; a read of an online store takes a tenth of a millisecond.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_MAX_OPEN = 64
_OnlineName = Annotated[str, Field(max_length=63)]
_OnlineQuery = Annotated[str | None, Query(max_length=63)]
_DatasetReference = Annotated[str, Field(max_length=100)]
_DatasetQuery = Annotated[str | None, Query(max_length=100)]
_Version = Annotated[int, Field(ge=1, le=MAX_VERSION)]


class Predict(BaseModel, extra="forbid"):
    """Entities of a request: objects with the keys and request values of a view.

    Times and dates are ISO 8601 strings, decimals strings, and bytes base64.
    """

    entities: list[Record] = Field(min_length=1, max_length=MAX_ENTITIES)
    version: _Version | None = None
    online: _OnlineName | None = None


class VectorSource(BaseModel, extra="forbid"):
    """A version of a view, and an online store.

    ``dataset`` is a training dataset of the view, as "name" or "name@v1": vectors have its model
    inputs.
    """

    version: _Version | None = None
    online: _OnlineName | None = None
    dataset: _DatasetReference | None = None


class ReadVectors(Predict, VectorSource, extra="forbid"):
    """Entities of a request for vectors; it may have none."""

    entities: list[Record] = Field(max_length=MAX_ENTITIES)


class VectorMetrics:
    """Counts of served vectors and their latencies; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._vectors: Counter[tuple[str, str]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()

    def add(self, view: str, statuses: Iterable[str], seconds: float) -> None:
        """Count one request."""
        with self._lock:
            self._requests[view] += 1
            self._seconds[view] += seconds  # type: ignore[assignment]
            for limit in _BUCKETS:
                self._buckets[view, limit] += seconds <= limit
            for status in statuses:
                self._vectors[view, status] += 1

    def lines(self, is_visible: Callable[[str], bool]) -> list[str]:
        """Return the metrics of visible views in the Prometheus text format."""
        name = "featurestore_vector_seconds"
        lines = [f"# TYPE {name} histogram"]
        with self._lock:
            views = [view for view in sorted(self._requests) if is_visible(view)]
            for view in views:
                for limit in _BUCKETS:
                    count = self._buckets[view, limit]
                    lines.append(f'{name}_bucket{{view="{view}",le="{limit}"}} {count}')
                requests = self._requests[view]
                lines.append(f'{name}_bucket{{view="{view}",le="+Inf"}} {requests}')
                lines.append(f'{name}_sum{{view="{view}"}} {self._seconds[view]}')
                lines.append(f'{name}_count{{view="{view}"}} {requests}')
            lines.append("# TYPE featurestore_vectors_total counter")
            for (view, status), count in sorted(self._vectors.items()):
                if view in views:
                    lines.append(
                        f'featurestore_vectors_total{{view="{view}",status="{status}"}} {count}'
                    )
        return lines


class OpenServers:
    """The servers of views and models that requests have used, and their metrics."""

    def __init__(self) -> None:
        self.metrics = VectorMetrics()
        self._lock = threading.Lock()
        self._servers: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def find(self, key: tuple[Any, ...], open_server: Callable[[], Any]) -> Any:
        """Return an open server, or open it; the least recently used one is closed."""
        with self._lock:
            server = self._servers.get(key)
            if server is not None:
                self._servers.move_to_end(key)
                return server
        # Without the lock: the online store may not respond, while others do.
        new_server, surplus = open_server(), []
        with self._lock:
            server = self._servers.setdefault(key, new_server)
            self._servers.move_to_end(key)
            if len(self._servers) > _MAX_OPEN:
                surplus.append(self._servers.popitem(last=False)[1])
        # Another thread may have opened the same server.
        if server is not new_server:
            surplus.append(new_server)
        for unused in surplus:
            unused.close()
        return server

    def views(self) -> list[tuple[FeatureView, str | None]]:
        """Return the views that are served, with their online stores."""
        with self._lock:
            views = {(key[1], key[2]): None for key in self._servers if key[0] == "view"}
        return list(views)


def prometheus_lines(request: Request, store: FeatureStore) -> list[str]:
    """Return the metrics of served views that a visitor may see, with the lag of their groups."""
    servers: OpenServers = request.app.state.vector_servers
    with store.session.registry.reading() as connection:
        visible = set(feature_views.names(connection))
    lines = servers.metrics.lines(visible.__contains__)
    lines.append("# TYPE featurestore_online_lag_seconds gauge")
    unreachable: set[str | None] = set()
    for view, online in servers.views():
        if view.name not in visible or online in unreachable:
            continue
        try:
            lags = view.online_lag(online=online)
        except OnlineStoreUnavailable:
            # A read waits for seconds, which must not add up over all views.
            unreachable.add(online)
            continue
        except FeatureStoreError:  # it was deleted in the meantime
            continue
        for lag in lags:
            seconds = 0.0 if lag.behind is None else lag.behind.total_seconds()
            labels = (
                f'view="{view.name}",version="{view.version}",featuregroup="{lag.featuregroup}"'
            )
            lines.append(f"featurestore_online_lag_seconds{{{labels}}} {seconds}")
    return lines


def find_view(store: Store, name: Name) -> None:
    """Raise FeatureViewNotFound if a visitor may read no version of a view."""
    store.get_feature_view(name)


def find_model(store: Store, name: Name) -> None:
    """Raise ModelNotFound if a visitor may read no version of a model."""
    catalog.get(store.session, name, None)


@api.get("/featureviews/{name}", dependencies=[Depends(find_view)])
def get_view(store: Store, name: Name, version: _Version | None = None) -> Record:
    """Return the definition of a feature view."""
    return store.get_feature_view(name, version=version).spec.to_json()


@api.get("/featureviews/{name}/vectors", dependencies=[Depends(find_view)])
def get_entity(
    request: Request,
    store: Store,
    full_store: FullStore,
    name: Name,
    version: _Version | None = None,
    online: _OnlineQuery = None,
    dataset: _DatasetQuery = None,
) -> Record:
    """Return the columns that entities of a published view have, with their types."""
    body = VectorSource(version=version, online=online, dataset=dataset)
    _, server = _find_server(request, store, full_store, name, body)
    types = {
        column: None if entity_type is None else type_to_json(entity_type)
        for column, entity_type in server.entity_types.items()
    }
    return {"online": server.online, "entity": server.entity, "types": types}


def _find_server(
    request: Request, store: FeatureStore, full_store: FeatureStore, name: str, body: VectorSource
) -> tuple[FeatureView, VectorServer]:
    """Return the requested view and its server, which is shared by all visitors.

    Raises:
        FeatureViewNotFound, TrainingDatasetNotFound: The visitor may not read the view or dataset.
    """
    view = FeatureView(full_store.session, store.get_feature_view(name, version=body.version).spec)
    dataset, content_hash = None, None
    if body.dataset is not None:
        dataset_name, version = parse_group_reference(body.dataset)
        visible = store.get_training_dataset(dataset_name, version=version)
        dataset = full_store.get_training_dataset(visible.name, version=visible.version)
        content_hash = dataset.manifest.content_hash
    servers: OpenServers = request.app.state.vector_servers
    server: VectorServer = servers.find(
        ("view", view, body.online, content_hash),
        lambda: view.server(online=body.online, dataset=dataset),
    )
    return view, server


# The dependencies run before the body is validated, whose errors would reveal private names.
@api.post("/featureviews/{name}/vectors", dependencies=[Depends(find_view)])
def read_vectors(
    request: Request, store: Store, full_store: FullStore, name: Name, body: ReadVectors
) -> Response:
    """Return the feature vectors of entities of a published view, as JSON or an Arrow stream.

    JSON has ``vectors`` and their ``statuses`` ("found", "stale" or "missing").
    """
    servers: OpenServers = request.app.state.vector_servers
    started = time.perf_counter()
    view, server = _find_server(request, store, full_store, name, body)
    entities = [server.parse_json(entity) for entity in body.entities]
    if ARROW in request.headers.get("accept", ""):
        served = server.read_batch(entities)
        servers.metrics.add(name, served.statuses, time.perf_counter() - started)
        origin = {
            "view": view.name,
            "version": view.version,
            "groups": served.groups,
            "statuses": [
                [status and status.value for status in statuses] for statuses in served.row_statuses
            ],
        }
        batch = served.batch.replace_schema_metadata({METADATA: json.dumps(origin)})
        return Response(b"".join(ipc_chunks(batch.schema, [batch])), media_type=ARROW)
    vectors = server.get_vectors(entities)
    statuses = [vector.status for vector in vectors]
    servers.metrics.add(name, statuses, time.perf_counter() - started)
    return JSONResponse(
        {
            "view": view.name,
            "version": view.version,
            "vectors": to_json_value(vectors),
            "statuses": statuses,
        }
    )


@api.post("/models/{name}/predict", dependencies=[Depends(find_model)])
def predict(
    request: Request,
    store: Store,
    full_store: FullStore,
    settings: Settings,
    name: Name,
    body: Predict,
) -> Response:
    """Return the predictions of a registered model for entities of its published view.

    They are JSON or an Arrow stream, whose schema has the versions and statuses as metadata.
    """
    # The lookups fail if the visitor may not read the model, its dataset or its view.
    spec = catalog.get(store.session, name, body.version)
    view = Model(store.session, spec).dataset.manifest.view
    if view is not None:
        store.get_feature_view(view["name"], version=view["version"])
    model = Model(full_store.session, spec)
    servers: OpenServers = request.app.state.vector_servers
    started = time.perf_counter()
    server: ModelServer = servers.find(
        ("model", model.name, model.version, model.spec.to_bytes(), body.online),
        lambda: ModelServer(model, online=body.online, trust=settings.trust_models),
    )
    entities = [server.vectors.parse_json(entity) for entity in body.entities]
    predictions = server.predict(entities)
    seconds = time.perf_counter() - started
    servers.metrics.add(predictions.view, predictions.statuses, seconds)
    origin = to_json_value(predictions.origin)
    if ARROW in request.headers.get("accept", ""):
        table = predictions.table.replace_schema_metadata({METADATA: json.dumps(origin)})
        return Response(b"".join(ipc_chunks(table.schema, table.to_batches())), media_type=ARROW)
    return JSONResponse({**origin, "rows": to_json_value(predictions.rows)})
