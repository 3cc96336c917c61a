"""What handles of a served store hold: a client where others have an engine and a registry."""

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


def unsupported(address: str, what: str, *, hint: str | None = None) -> UnsupportedRemotely:
    """Return the error for what only those can do who have the store's files."""
    return UnsupportedRemotely(
        f"{what} needs the files of the store, and {address} serves what can be read of it.",
        hint=hint or "connect where the store's directory or bucket can be reached",
    )


def record_as(kind: type[T], told: Mapping[str, Any]) -> T:
    """Return a record of the server as a dataclass, without what only newer servers tell.

    Raises:
        ServerUnavailable: It lacks what the dataclass needs.
    """
    known = {each.name for each in fields(cast(Any, kind))}
    given = {name: value for name, value in told.items() if name in known}
    try:
        return kind(**given)
    except TypeError as error:
        raise ServerUnavailable(
            f"The server tells less of a {kind.__name__} than this release reads: {error}.",
            hint="pip install --upgrade featurestore, on the server, too",
        ) from error


@dataclass(frozen=True)
class Recipe:
    """Rows as the server is asked for them: what is read, and what is cut from it."""

    client: Client = field(repr=False)
    read: Mapping[str, Any]
    labels: pa.Table | None = None
    steps: tuple[Mapping[str, Any], ...] = ()

    def and_then(self, **step: Any) -> Recipe:
        """Return the recipe with one more cut."""
        return replace(self, steps=(*self.steps, step))

    def answer(self, kind: str = "rows", **more: Any) -> pa.RecordBatchReader:
        """Return the answer of the server: "rows", "schema" or "count"."""
        asked = {"read": dict(self.read), "steps": list(self.steps), "answer": kind, **more}
        labels = None
        if self.labels is not None:
            # Columns depend on the labels' types alone: none of their rows is sent for them.
            sent = self.labels.slice(0, 0) if kind == "schema" else self.labels
            labels = sent.to_reader()
        return self.client.rows(asked, labels)

    def schema(self) -> pa.Schema:
        """Return the columns; no row comes or goes for it."""
        with self.answer("schema") as reader:
            return reader.schema

    def relation(self, schema: pa.Schema | None = None) -> Relation:
        """Return the rows as frames hold them."""
        return Relation(REMOTE, self, self.schema() if schema is None else schema)


class RemoteEngine:
    """Reads rows of a served store; whatever else engines do is refused with a reason."""

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
        counted = recipe.answer("count").read_all()
        return int(counted.column(0)[0].as_py())

    def stream(
        self, relation: Relation, *, batch_rows: int = 65_536, limit: int | None = None
    ) -> pa.RecordBatchReader:
        recipe: Recipe = relation.native
        return recipe.answer(batch_rows=batch_rows, limit=limit)

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
    """Stands where the registry is, which the server does not give away."""

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
    """Return the client that a session of a served store asks by."""
    return cast(RemoteEngine, session.engine).client


def remote_session(client: Client) -> Session:
    """Return what handles hold."""
    engine = cast(Engine, RemoteEngine(client))
    registry = cast(Registry, _NoRegistry(client.address))
    return Session(client.address, engine, registry)
