"""Writes to a served store: rows are sent as an Arrow stream and committed by the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from featurestore import ingest
from featurestore.arrow.lists import to_plain_lists
from featurestore.featuregroups.definition import convert_reader, declared_types
from featurestore.featuregroups.renaming import rename_frame_columns
from featurestore.model.featuregroup import Commit
from featurestore.model.names import check_name
from featurestore.model.times import format_duration
from featurestore.store.featuregroups import FeatureGroupCalls
from featurestore.store.remote_handles import client_of, parse_commit, unsupported_error

if TYPE_CHECKING:
    from featurestore.featuregroups import FeatureGroup


class RemoteWriteCalls(FeatureGroupCalls):
    """Methods that write feature groups in a served store."""

    def create_featuregroup(self, df: object, name: str, **declared: Any) -> FeatureGroup:
        return self._create(df, name, {**declared, "may_exist": False})

    def get_or_create_featuregroup(self, df: object, name: str, **declared: Any) -> FeatureGroup:
        return self._create(df, name, {**declared, "may_exist": True})

    def _create(self, df: object, name: str, declared: Mapping[str, Any]) -> FeatureGroup:
        """Send the definition and the rows of a group to the server, and return its handle."""
        options = dict(declared)
        df = rename_frame_columns(df, options.pop("rename", None))
        types = declared_types(options.pop("dtypes", None), options.pop("decimal_type", None))
        # The arguments are sent as JSON, which has neither durations nor tuples.
        for argument in ("ttl", "event_time_tolerance"):
            if isinstance(options.get(argument), timedelta):
                options[argument] = format_duration(options[argument])
        for argument in ("primary_key", "partition_by"):
            if argument in options and not isinstance(options[argument], str):
                options[argument] = list(options[argument])
        expectations = options.get("expectations")
        if expectations is not None and not _is_json(expectations):
            raise unsupported_error(
                self.location,
                "A Great Expectations object",
                hint='expectations=[{"type": "expect_column_values_to_not_be_null", '
                '"kwargs": {"column": "x"}}]',
            )
        if expectations is not None:
            options["expectations"] = [to_plain_lists(each, levels=4) for each in expectations]
        path = f"/featuregroups/{check_name(name)}"
        # Declared types are applied before the rows are sent, so that hints contain code for the
        # caller's library.
        df, language = ingest.peek_language(df)
        rows = convert_reader(ingest.to_reader(df), types, name=name, library=language)
        record = client_of(self._session).send(path, options, rows)
        return self.featuregroup(record["name"], version=record["version"])

    def insert_into_featuregroup(
        self,
        df: object,
        name: str,
        *,
        version: int | None = None,
        mode: Literal["append", "upsert", "overwrite"] = "append",
        schema_change: Literal["add"] | None = None,
        on_duplicates: Literal["error", "last"] = "error",
        transaction: tuple[str, int] | None = None,
        validation: str | None = None,
        rename: Mapping[str, str] | str | None = None,
    ) -> Commit:
        group = self.featuregroup(name, version=version)
        return group.insert(
            rename_frame_columns(df, rename),
            mode=mode,
            schema_change=schema_change,
            on_duplicates=on_duplicates,
            transaction=transaction,
            validation=validation,
        )

    def delete_from_featuregroup(
        self, name: str, where: str, *, version: int | None = None
    ) -> Commit:
        record = self._change(name, version, "deletions", where=where)
        return parse_commit(record)

    def add_featuregroup_tag(
        self, name: str, key: str, value: str, *, version: int | None = None
    ) -> None:
        self._change(name, version, "tags", key=key, value=value)

    def remove_featuregroup_tag(self, name: str, key: str, *, version: int | None = None) -> None:
        self._change(name, version, "tags", key=key, value=None)

    def _change(self, name: str, version: int | None, resource: str, **values: Any) -> Any:
        group = self.featuregroup(name, version=version)
        path = f"/featuregroups/{group.name}/{group.version}/{resource}"
        return client_of(self._session).send(path, values)


def _is_json(expectations: object) -> bool:
    if not isinstance(expectations, Sequence) or isinstance(expectations, str):
        return False
    return all(isinstance(expectation, Mapping) for expectation in expectations)
