"""The session of a served store: a client in the role of the engine and the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from featurestore.errors import ServerUnavailable, UnsupportedRemotely
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.remote import Client
from featurestore.registry import Registry
from featurestore.session import Session

if TYPE_CHECKING:
    import pyarrow as pa

REMOTE = "remote"
T = TypeVar("T")


def unsupported(address: str, feature: str, *, hint: str | None = None) -> UnsupportedRemotely:
    """Return the error for a feature that needs the store's files."""
    return UnsupportedRemotely(
        f"{feature} needs the files of the store, and {address} serves what can be read of it.",
        hint=hint or "connect where the store's directory or bucket can be reached",
    )


def record_as(kind: type[T], record: Mapping[str, Any]) -> T:
    """Return a record of the server as a dataclass; unknown fields of newer servers are ignored.

    Raises:
        ServerUnavailable: A field of the dataclass is missing.
    """
    field_names = {each.name for each in fields(cast(Any, kind))}
    known_values = {name: value for name, value in record.items() if name in field_names}
    try:
        return kind(**known_values)
    except TypeError as error:
        raise ServerUnavailable(
            f"The server's {kind.__name__} has fewer fields than this release reads: {error}.",
            hint="pip install --upgrade featurestore, on the server, too",
        ) from error


@dataclass(frozen=True)
class Recipe:
    """A request for rows: the data to read, and the steps to apply."""

    client: Client = field(repr=False)
    read: Mapping[str, Any]
    labels: pa.Table | None = None
    steps: tuple[Mapping[str, Any], ...] = ()

    def and_then(self, **step: Any) -> Recipe:
        """Return the recipe with one more step."""
        return replace(self, steps=(*self.steps, step))

    def fetch(self, kind: str = "rows", **more: Any) -> pa.RecordBatchReader:
        """Return the server's response: "rows", "schema" or "count"."""
        request = {"read": dict(self.read), "steps": list(self.steps), "answer": kind, **more}
        labels = None
        if self.labels is not None:
            # The schema depends only on the labels' types, so no rows are sent for it.
            sent_labels = self.labels.slice(0, 0) if kind == "schema" else self.labels
            labels = sent_labels.to_reader()
        return self.client.rows(request, labels)

    def schema(self) -> pa.Schema:
        """Return the columns without transferring rows."""
        with self.fetch("schema") as reader:
            return reader.schema

    def relation(self, schema: pa.Schema | None = None) -> Relation:
        """Return the rows as a relation."""
        return Relation(REMOTE, self, self.schema() if schema is None else schema)


class RemoteEngine:
    """The engine of a served store: it reads rows; other calls raise UnsupportedRemotely."""

    name = REMOTE
    dialect = "duckdb"
    is_distributed = False

    def __init__(self, client: Client) -> None:
        self.client = client

    def select(self, relation: Relation, columns: Mapping[str, str]) -> Relation:
        import pyarrow as pa

        recipe: Recipe = relation.native
        schema = pa.schema([relation.schema.field(name) for name in columns])
        return recipe.and_then(select=list(columns.values())).relation(schema)

    def filter(self, relation: Relation, predicate: str) -> Relation:
        recipe: Recipe = relation.native
        return recipe.and_then(filter=predicate).relation(relation.schema)

    def count(self, relation: Relation) -> int:
        recipe: Recipe = relation.native
        count_table = recipe.fetch("count").read_all()
        return int(count_table.column(0)[0].as_py())

    def stream(
        self, relation: Relation, *, batch_rows: int = 65_536, limit: int | None = None
    ) -> pa.RecordBatchReader:
        recipe: Recipe = relation.native
        return recipe.fetch(batch_rows=batch_rows, limit=limit)

    def adopt(self, frame: object) -> None:
        """No frame is one of this engine: labels are sent."""

    def release(self, relation: Relation) -> None:
        """Nothing is kept."""

    def to_spark(self, relation: Relation) -> NoReturn:
        raise unsupported(self.client.address, "A Spark DataFrame", hint="frame.to_arrow()")

    def close(self) -> None:
        self.client.close()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise unsupported(self.client.address, "This")


class _NoRegistry:
    """The registry of a served store, which clients cannot access."""

    def __init__(self, address: str) -> None:
        self._address = address

    def reading(self) -> NoReturn:
        raise unsupported(self._address, "This")

    transaction = upgrading = reading

    def check_writable(self) -> NoReturn:
        raise unsupported(self._address, "Writing")

    def close(self) -> None:
        """Nothing is open."""


def client_of(session: Session) -> Client:
    """Return the client of a session of a served store."""
    return cast(RemoteEngine, session.engine).client


def remote_session(client: Client) -> Session:
    """Return the session of a client."""
    engine = cast(Engine, RemoteEngine(client))
    registry = cast(Registry, _NoRegistry(client.address))
    return Session(client.address, engine, registry)
