"""Session and handles for a served store: engine, frame and feature group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from featurestore import ingest
from featurestore.errors import ServerUnavailable, UnsupportedRemotely
from featurestore.featuregroups import FeatureGroup
from featurestore.model.featuregroup import Commit
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.statistics import Statistics
from featurestore.model.times import parse_version_or_moment, utc_now
from featurestore.plugins.engine import Engine, Relation
from featurestore.plugins.remote import Client
from featurestore.registry import Registry
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.usersql import fix_clock, predicate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from featurestore.plugins.remote import Client
    from featurestore.session import Session

REMOTE = "remote"
T = TypeVar("T")


def unsupported_error(
    address: str, feature: str, *, hint: str | None = None
) -> UnsupportedRemotely:
    """Return the error for a feature that requires local access to the store's files."""
    return UnsupportedRemotely(
        f"{feature} needs the files of the store, which {address} does not serve.",
        hint=hint or "connect from a machine that can access the store's directory or bucket",
    )


def parse_record(record_type: type[T], record: JsonMapping) -> T:
    """Convert a server record to a dataclass; ignore unknown fields from newer servers.

    Raises:
        ServerUnavailable: A field of the dataclass is missing.
    """
    field_names = {field.name for field in fields(cast(Any, record_type))}
    known_values = {name: value for name, value in record.items() if name in field_names}
    try:
        return record_type(**known_values)
    except TypeError as error:
        raise ServerUnavailable(
            f"The server's {record_type.__name__} lacks fields that this release requires: {error}.",
            hint="pip install --upgrade featurestore, also on the server",
        ) from error


@dataclass(frozen=True)
class Recipe:
    """A request for rows: the data to read and the steps to apply to it."""

    client: Client = field(repr=False)
    read: JsonMapping
    labels: pa.Table | None = None
    steps: tuple[JsonMapping, ...] = ()

    def with_step(self, **step: object) -> Recipe:
        """Return a copy of the recipe with one more step."""
        return replace(self, steps=(*self.steps, step))

    def fetch(self, answer: str = "rows", **more: object) -> pa.RecordBatchReader:
        """Return the response of the server: "rows", "schema" or "count"."""
        request = {"read": dict(self.read), "steps": list(self.steps), "answer": answer, **more}
        labels = None
        if self.labels is not None:
            # The schema depends only on the label types, so no rows are sent for it.
            sent_labels = self.labels.slice(0, 0) if answer == "schema" else self.labels
            labels = sent_labels.to_reader()
        return self.client.rows(request, labels)

    def schema(self) -> pa.Schema:
        """Return the schema without transferring rows."""
        with self.fetch("schema") as reader:
            return reader.schema

    def relation(self, schema: pa.Schema | None = None) -> Relation:
        """Return the rows as a relation."""
        return Relation(REMOTE, self, self.schema() if schema is None else schema)


class RemoteEngine:
    """The engine of a served store: it only reads rows; other methods raise UnsupportedRemotely."""

    name = REMOTE
    dialect = "duckdb"
    is_distributed = False

    def __init__(self, client: Client) -> None:
        self.client = client

    def select(self, relation: Relation, columns: Mapping[str, str]) -> Relation:
        import pyarrow as pa

        recipe: Recipe = relation.native
        schema = pa.schema([relation.schema.field(name) for name in columns])
        return recipe.with_step(select=list(columns.values())).relation(schema)

    def filter(self, relation: Relation, predicate: str) -> Relation:
        recipe: Recipe = relation.native
        return recipe.with_step(filter=predicate).relation(relation.schema)

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
        """Return None: no frame belongs to this engine, so labels are sent to the server."""

    def release(self, relation: Relation) -> None:
        """Do nothing: no data is cached."""

    def to_spark(self, relation: Relation) -> NoReturn:
        raise unsupported_error(self.client.address, "A Spark DataFrame", hint="frame.to_arrow()")

    def close(self) -> None:
        self.client.close()

    def __getattr__(self, name: str) -> NoReturn:
        # copy and pickle look up special methods, which must be missing instead of unsupported.
        if name.startswith("__"):
            raise AttributeError(name)
        raise unsupported_error(self.client.address, "This operation")


class _UnavailableRegistry:
    """A placeholder for the registry of a served store, which clients cannot access."""

    def __init__(self, address: str) -> None:
        self._address = address

    def reading(self) -> NoReturn:
        raise unsupported_error(self._address, "This operation")

    transaction = upgrade_transaction = reading

    def check_writable(self) -> NoReturn:
        raise unsupported_error(self._address, "Writing")

    def close(self) -> None:
        """Do nothing: no connection is open."""


def client_of(session: Session) -> Client:
    """Return the HTTP client in the session of a served store."""
    return cast(RemoteEngine, session.engine).client


def remote_session(client: Client) -> Session:
    """Return a session that uses a client."""
    # Both objects implement only the methods that a remote store uses; all other calls raise an
    # error with a hint.
    engine = cast(Engine, RemoteEngine(client))
    registry = cast(Registry, _UnavailableRegistry(client.address))
    return Session(client.address, engine, registry)


# The maximum page size of the server.
_MOST_COMMITS = 1000


class RemoteFrame(FeatureFrame):
    """A frame whose rows are computed by a server; each read sends a new request."""

    @classmethod
    def from_recipe(cls, session: Session, recipe: Recipe) -> RemoteFrame:
        """Return a frame for a recipe; the server validates the recipe immediately."""
        # Requesting the schema makes the server check the recipe.
        return cls(session, recipe.relation())

    @property
    def inputs(self) -> tuple[JsonMapping, ...]:
        read = self.relation.native.read
        if read.get("kind") != "featuregroup":
            return ()
        return ({"featuregroup": read["name"], "version": read["version"]},)

    def filter(self, sql: str) -> FeatureFrame:
        # The frame may be read later, so the current time is determined now.
        clocked_sql = fix_clock(sql, now=utc_now())
        predicate(clocked_sql, schema=self.schema, dialect=self._session.engine.dialect)
        # The server parses the SQL of the caller by the same rules.
        relation = self.relation
        return RemoteFrame(self._session, self._session.engine.filter(relation, clocked_sql))

    def select(self, *columns: str) -> FeatureFrame:
        selected_frame = super().select(*columns)
        return RemoteFrame(self._session, selected_frame.relation)

    def sample(
        self, *, fraction: float, seed: int = 0, by: str | Sequence[str] | None = None
    ) -> FeatureFrame:
        recipe: Recipe = self.relation.native
        names = None if by is None else self._column_names([by])
        sampled_recipe = recipe.with_step(sample={"fraction": fraction, "seed": seed, "by": names})
        sampled_recipe.schema()  # the server checks the fraction
        return RemoteFrame(self._session, sampled_recipe.relation(self.schema))

    def native(self) -> Any:
        raise unsupported_error(
            self._session.location, "A DuckDB relation", hint="frame.to_arrow()"
        )


class RemoteFeatureGroup(FeatureGroup):
    """A version of a feature group in a served store."""

    def __init__(self, session: Session, client: Client, name: str, version: int) -> None:
        super().__init__(session, name, version)
        self._client = client

    @property
    def _address(self) -> str:
        return f"/featuregroups/{self._name}/{self._version}"

    @property
    def _record(self) -> JsonDict:
        record: JsonDict = self._client.get(self._address)
        return record

    @cached_property
    def _columns(self) -> pa.Schema:
        return self._recipe().schema()

    @property
    def schema(self) -> pa.Schema:
        # The schema of a handle is requested once, because each insert needs it.
        return self._columns

    @property
    def primary_key(self) -> tuple[str, ...]:
        return tuple(self._record["primary_key"])

    @property
    def event_time(self) -> str | None:
        column: str | None = self._record["event_time"]
        return column

    @property
    def created_time(self) -> str | None:
        column: str | None = self._record["created_time"]
        return column

    @property
    def delta_version(self) -> int:
        return int(self._record["delta_version"])

    @property
    def description(self) -> str:
        return str(self._record["description"])

    @property
    def descriptions(self) -> dict[str, str]:
        columns = self._record["columns"]
        return {
            column["name"]: column["description"] for column in columns if column["description"]
        }

    @property
    def tags(self) -> dict[str, str]:
        return dict(self._record["tags"])

    def _details(self) -> JsonDict:
        return self._record

    def _summary(self) -> dict[str, object]:
        record = self._record
        columns = record["columns"]
        names = ("name", "version", "delta_version", "rows")
        summary = {name: record[name] for name in names}
        summary["features"] = sum(column["role"] == "feature" for column in columns)
        for name in ("primary_key", "event_time", "description"):
            summary[name] = record[name]
        return summary

    def read(self, *, as_of: datetime | str | int | None = None) -> FeatureFrame:
        return RemoteFrame.from_recipe(self._session, self._recipe(as_of))

    def history(self, *, limit: int = 100, before: int | None = None) -> list[Commit]:
        path = f"{self._address}/commits"
        page = self._client.get(path, limit=min(limit, _MOST_COMMITS), before=before)
        return list(map(parse_commit, page["items"]))

    def insert(
        self,
        df: object,
        *,
        mode: str = "append",
        schema_change: str | None = None,
        on_duplicates: str = "error",
        transaction: tuple[str, int] | None = None,
        validation: str | None = None,
    ) -> Commit:
        options = {
            "mode": mode,
            "schema_change": schema_change,
            "on_duplicates": on_duplicates,
            "transaction": transaction,
            "validation": validation,
        }
        return insert(self._session, df, self, options)

    def statistics(self, *, delta_version: datetime | str | int | None = None) -> Statistics:
        if delta_version is not None:
            raise unsupported_error(self._session.location, "Statistics of an older version")
        return Statistics.from_json(self._client.get(f"{self._address}/statistics"))

    def _recipe(self, as_of: datetime | str | int | None = None) -> Recipe:
        """Return the request for the rows of the group."""
        timestamp = times_to_strings(as_of, "as_of")
        read = {
            "kind": "featuregroup",
            "name": self._name,
            "version": self._version,
            "as_of": timestamp,
        }
        return Recipe(self._client, read)


def parse_commit(record: JsonMapping) -> Commit:
    """Convert a server record to a commit."""
    timestamp = datetime.fromisoformat(record["timestamp"])
    changes = tuple(record.get("changes", ()))  # servers of earlier releases send none
    return parse_record(Commit, {**record, "timestamp": timestamp, "changes": changes})


def insert(session: Session, df: object, group: FeatureGroup, options: JsonMapping) -> Commit:
    """Send rows to a group; untyped columns get the group's types, as in a local write."""
    rows = ingest.to_reader(df, like=group.schema)
    path = f"/featuregroups/{group.name}/{group.version}/rows"
    return parse_commit(client_of(session).send(path, options, rows))


def times_to_strings(value: Any, argument: str) -> Any:
    """Convert times to ISO strings, including times in a mapping; versions and texts remain."""
    if isinstance(value, Mapping):
        return {
            str(name): times_to_strings(item, f"{argument}[{name!r}]")
            for name, item in value.items()
        }
    if value is None or isinstance(value, str):
        return value
    parsed = parse_version_or_moment(value, argument=argument)
    return parsed if isinstance(parsed, int) else parsed.isoformat()
