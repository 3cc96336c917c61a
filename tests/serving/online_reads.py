"""Reads published values as a server does, and compares them with the retrieval."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from typing import Any

from featurestore.model.times import to_micros
from featurestore.plugins.online import OnlineStore
from featurestore.retrieval.catalog import RegisteredSpecs
from featurestore.serving.columns import value_prefix
from featurestore.serving.layout import ValueLayout, ValueStatus
from featurestore.serving.state import PublishedView, ViewState
from featurestore.serving.stores import open_online_store
from featurestore.store import FeatureStore
from featurestore.views import FeatureView


def read_state(online: OnlineStore, view: FeatureView) -> ViewState:
    """Return the state record of a view."""
    published = PublishedView(view.name, view.version, online.config.name)
    return ViewState.parse(online.read([published.key])[0], published)


def wait_until_written(
    store: FeatureStore,
    view: FeatureView,
    is_running: Callable[[], bool],
    *,
    online: str | None = None,
) -> bool:
    """Wait until a publication of another thread or process begins to write values.

    Returns False if the publisher has ended before this could be seen; the test tries again.
    """
    with closing(open_online_store(store.session, online)) as server:
        while is_running():
            state = read_state(server, view)
            is_full = state.lease is not None and state.lease.generation is not None
            if is_full or any(group.target is not None for group in state.groups.values()):
                return True
            time.sleep(0.002)
    return False


def read_values(
    store: FeatureStore,
    view: FeatureView,
    keys: list[tuple[Any, ...]],
    instants: list[datetime],
    *,
    online: str | None = None,
) -> list[list[tuple[Any, ...]]]:
    """Return the published columns of a view with one group, for keys at each instant."""
    (feature, *_) = view.spec.features
    spec = RegisteredSpecs(store._session)[feature.group][feature.version]
    layout = ValueLayout.for_group(spec, [feature.column for feature in view.spec.features])
    with closing(open_online_store(store._session, online)) as server:
        prefix = value_prefix(
            view.name,
            view.version,
            group=feature.group,
            group_version=feature.version,
            generation=read_state(server, view).generation,
        )
        values = server.read([prefix + (layout.encode_key(key) or b"") for key in keys])
    nulls = (None,) * len(layout.schema)
    results = []
    for instant in map(to_micros, instants):
        rows = [layout.decode(value, instant) for value in values]
        results.append([nulls if isinstance(row, ValueStatus) else row for row in rows])
    return results


def retrieve_values(
    view: FeatureView, keys: list[tuple[Any, ...]], names: list[str], instants: list[datetime]
) -> list[list[tuple[Any, ...]]]:
    """Return the same values by the retrieval of the view."""
    labels = [
        {**dict(zip(names, key, strict=True)), "label_at": instant}
        for instant in instants
        for key in keys
    ]
    columns = [feature.name for feature in view.spec.features]
    frame = view.get_features(labels=labels, label_time="label_at")
    # Not to_arrow(), which would also explain why labels have no values.
    rows = frame.session.engine.stream(frame.relation).read_all().to_pylist()
    values = [tuple(row[name] for name in columns) for row in rows]
    return [values[start : start + len(keys)] for start in range(0, len(values), len(keys))]
