"""VectorServer: reads the feature vectors of a view, here or from a served store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from featurestore.model.feature_view import FeatureViewSpec
from featurestore.serving.published import PublishedVectors
from featurestore.serving.stores import StoreClock, open_online_store
from featurestore.serving.value_reads import ServedBatch
from featurestore.serving.vector_log import LogState, VectorLog
from featurestore.serving.vectors import Entities, Form, check_dataset, dataset_form
from featurestore.session import Session

if TYPE_CHECKING:
    from featurestore.training.dataset import TrainingDataset


class VectorBackend(Protocol):
    """What a vector server reads from: an online store, or the server of a store.

    The members have the meaning of those of ``VectorServer``. All are thread-safe; a backend raises
    UnsupportedRemotely for a member that needs the online store itself.
    """

    @property
    def entity(self) -> list[str]: ...

    @property
    def entity_types(self) -> dict[str, pa.DataType | None]: ...

    @property
    def online(self) -> str: ...

    @property
    def clock(self) -> StoreClock: ...

    @property
    def log_state(self) -> LogState | None: ...

    def parse_json(self, entity: Mapping[str, Any]) -> dict[str, Any]: ...

    def get_vectors(self, entities: Entities, form: Form) -> Any: ...

    async def aget_vectors(self, entities: Entities, form: Form) -> Any: ...

    def read_batch(self, entities: Entities, at: int | None = None) -> ServedBatch: ...

    def close(self) -> None: ...


class VectorServer:
    """Reads the feature vectors of one view version from an online store; thread-safe.

    A vector has the columns of the view in their order, with the values that
    ``view.get_features(labels=[entity], label_time=now)`` returns, as of the last publication.

    >>> publication = store.publish("late_flights")
    >>> with store.get_feature_view("late_flights").server() as server:
    ...     vector = server.get_vector({"tailnum": "N10", "origin": "JFK"})
    >>> vector, vector.status
    ({'temp': 39.0, 'seats': 100}, 'found')
    """

    def __init__(self, spec: FeatureViewSpec, backend: VectorBackend) -> None:
        self._spec, self._backend = spec, backend

    @property
    def entity(self) -> list[str]:
        """The columns that an entity must have: keys and request values.

        The label time is not required: it is the time of the request, unless an entity has it.

        >>> publication = store.publish("late_flights")
        >>> with store.get_feature_view("late_flights").server() as server:
        ...     server.entity
        ['origin', 'tailnum']
        """
        return self._backend.entity

    @property
    def entity_types(self) -> dict[str, pa.DataType | None]:
        """The types of all columns that an entity may have; None: the type of the value."""
        return self._backend.entity_types

    def parse_json(self, entity: Mapping[str, Any]) -> dict[str, Any]:
        """Return an entity whose values have the JSON forms of its columns.

        Times and dates are ISO 8601 strings, decimals strings or numbers, and bytes base64.

        >>> publication = store.publish("late_flights")
        >>> with store.get_feature_view("late_flights").server() as server:
        ...     server.parse_json({"tailnum": "N10", "origin": "JFK"})
        {'tailnum': 'N10', 'origin': 'JFK'}
        """
        return self._backend.parse_json(entity)

    @property
    def online(self) -> str:
        """The name of the online store."""
        return self._backend.online

    @property
    def clock(self) -> StoreClock:
        """The clock of the online store, which decides which values are current."""
        return self._backend.clock

    @property
    def log_state(self) -> LogState | None:
        """The vectors that are logged, waiting and missing; None without ``log_vectors=``.

        >>> publication = store.publish("late_flights")
        >>> view = store.get_feature_view("late_flights")
        >>> with view.server(log_vectors="served_flights", log_sample=1.0) as server:
        ...     vector = server.get_vector({"tailnum": "N10", "origin": "JFK"})
        >>> server.log_state.written, server.log_state.missing
        (1, 0)
        """
        return self._backend.log_state

    def get_vector(self, entity: Mapping[str, Any], *, as_: Form = "dict") -> Any:
        """Return the vector of one entity.

        Args:
            entity: Its keys and request values by name; other names are ignored. Null keys match
                nothing.
            as_: "dict" (a FeatureVector, a dict with the attribute ``status``), "numpy" (a 1-D
                array) or "arrow" (a table with one row).

        Raises:
            InvalidArgument: The entity lacks a column, or a value has the wrong type.
            OnlineStoreError: The online store cannot be read.
            PublishedValueDamaged: A value differs from what was published for its key.
        """
        vectors = self.get_vectors((entity,), as_=as_)
        return vectors if as_ == "arrow" else vectors[0]

    def get_vectors(self, entities: Entities, *, as_: Form = "dict") -> Any:
        """Return the vectors of several entities, in their order, from one read.

        Returns a list of dicts, an array of shape (entities, columns) or an Arrow table; the
        arguments are those of ``get_vector``. ``entities`` is a list of dicts, or a dataframe with an
        entity in each row. An entity without values does not fail the others.
        """
        return self._backend.get_vectors(entities, as_)

    def read_batch(self, entities: Entities, *, at: int | None = None) -> ServedBatch:
        """Return the vectors of entities as a record batch, with their origin.

        ``at`` is the instant for which the values are read, in microseconds; None means now.
        """
        return self._backend.read_batch(entities, at)

    async def aget_vector(self, entity: Mapping[str, Any], *, as_: Form = "dict") -> Any:
        """Return the vector of one entity without blocking the event loop; see ``get_vector``."""
        vectors = await self.aget_vectors((entity,), as_=as_)
        return vectors if as_ == "arrow" else vectors[0]

    async def aget_vectors(self, entities: Entities, *, as_: Form = "dict") -> Any:
        """Return several vectors without blocking the event loop; see ``get_vectors``."""
        return await self._backend.aget_vectors(entities, as_)

    def close(self) -> None:
        """Close the connections to the online store, and write the logged vectors.

        May be called repeatedly.
        """
        self._backend.close()

    def __enter__(self) -> VectorServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"VectorServer({self._spec.name!r}, version={self._spec.version}, "
            f"online={self.online!r})"
        )


def open_server(
    session: Session,
    spec: FeatureViewSpec,
    *,
    online: str | None = None,
    dataset: TrainingDataset | None = None,
    log: VectorLog | None = None,
) -> VectorServer:
    """Return a server of a published view; see ``FeatureView.server``."""
    form = None
    if dataset is not None:
        check_dataset(dataset.manifest, spec.name, spec.version)
        form = dataset_form(dataset)
    store = open_online_store(session, online)
    try:
        vectors = PublishedVectors(session, spec, store, form, log=log)
    except BaseException:
        store.close()
        raise
    return VectorServer(spec, vectors)
