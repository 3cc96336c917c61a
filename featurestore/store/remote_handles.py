"""Handles of a served store: the frame and the feature group."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from featurestore.featuregroups import FeatureGroup
from featurestore.model.featuregroup import Commit
from featurestore.model.statistics import Statistics
from featurestore.model.times import utc_now
from featurestore.retrieval import FeatureFrame
from featurestore.store.remote_session import Recipe, unsupported
from featurestore.store.remote_writes import commit_of, insert
from featurestore.usersql import fix_clock, predicate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from featurestore.plugins.remote import Client
    from featurestore.session import Session

_MOST_COMMITS = 1000


class RemoteFrame(FeatureFrame):
    """A frame whose rows a server computes; each reading is a new request."""

    @classmethod
    def from_recipe(cls, session: Session, recipe: Recipe) -> RemoteFrame:
        """Return the frame of a recipe; the server checks the recipe now."""
        return cls(session, recipe.relation())

    def filter(self, sql: str) -> FeatureFrame:
        clocked_sql = fix_clock(sql, now=utc_now())
        predicate(clocked_sql, schema=self.schema, dialect=self._session.engine.dialect)
        # The server parses the caller's SQL by the same rules.
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
        sampled_recipe = recipe.and_then(sample={"fraction": fraction, "seed": seed, "by": names})
        sampled_recipe.schema()  # the server checks the fraction
        return RemoteFrame(self._session, sampled_recipe.relation(self.schema))

    def native(self) -> Any:
        raise unsupported(self._session.location, "A DuckDB relation", hint="frame.to_arrow()")


class RemoteFeatureGroup(FeatureGroup):
    """One version of a feature group of a served store."""

    def __init__(self, session: Session, client: Client, name: str, version: int) -> None:
        super().__init__(session, name, version)
        self._client = client

    @property
    def _address(self) -> str:
        return f"/featuregroups/{self._name}/{self._version}"

    @property
    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] = self._client.get(self._address)
        return record

    @cached_property
    def _columns(self) -> pa.Schema:
        return self._recipe().schema()

    @property
    def schema(self) -> pa.Schema:
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

    def _details(self) -> dict[str, Any]:
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
        return list(map(commit_of, page["items"]))

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
            raise unsupported(self._session.location, "Statistics of an older version")
        return Statistics.from_json(self._client.get(f"{self._address}/statistics"))

    def _recipe(self, as_of: datetime | str | int | None = None) -> Recipe:
        timestamp = as_of.isoformat() if isinstance(as_of, datetime) else as_of
        read = {
            "kind": "featuregroup",
            "name": self._name,
            "version": self._version,
            "as_of": timestamp,
        }
        return Recipe(self._client, read)
