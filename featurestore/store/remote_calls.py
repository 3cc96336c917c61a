"""Methods of a served store: writes of feature groups, and vectors of feature views.

Rows to write are sent as an Arrow stream and committed by the server. Vectors are read by the
server, with one request for each call.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import pyarrow as pa

from featurestore import ingest
from featurestore.arrow.frames import array_from_values
from featurestore.arrow.lists import to_plain_lists
from featurestore.arrow.schemas import type_from_json
from featurestore.arrow.unstorable import is_missing
from featurestore.erasure.keys import KnownValue, parse_entities
from featurestore.erasure.run import parse_certificate_json
from featurestore.errors import InvalidArgument
from featurestore.featuregroups.definition import convert_reader
from featurestore.featuregroups.existing import notify
from featurestore.featuregroups.renaming import rename_frame_columns
from featurestore.featuregroups.write_request import input_texts
from featurestore.model.erasure import ErasureCheck, ErasureReport
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.featuregroup import Commit
from featurestore.model.group_options import declared_types
from featurestore.model.names import (
    check_name,
    format_group_reference,
    refuse_name_before_data,
)
from featurestore.model.times import format_duration
from featurestore.plugins.remote import METADATA, Client
from featurestore.retrieval.resolve import is_whole_number
from featurestore.serving import vectors as serving_vectors
from featurestore.serving.layout import ValueStatus
from featurestore.serving.server import VectorServer
from featurestore.serving.vectors import MAX_ENTITIES, Entities, FeatureVector, Form
from featurestore.store.connected import StoreBase
from featurestore.store.erasure import ErasureCalls
from featurestore.store.featuregroups import FeatureGroupCalls
from featurestore.store.remote_handles import client_of, parse_commit, unsupported_error
from featurestore.views import FeatureView

if TYPE_CHECKING:
    from featurestore.featuregroups import FeatureGroup
    from featurestore.training.dataset import TrainingDataset

# More than those of any decimal type.
_MAX_DIGITS = 100


class RemoteWriteCalls(FeatureGroupCalls):
    """Methods that write feature groups in a served store."""

    def create_featuregroup(self, df: object, name: str, **declared: Any) -> FeatureGroup:
        refuse_name_before_data(df, name, call="create_featuregroup")
        return self._create(df, name, {**declared, "may_exist": False})

    def get_or_create_featuregroup(self, df: object, name: str, **declared: Any) -> FeatureGroup:
        refuse_name_before_data(df, name, call="get_or_create_featuregroup")
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
            options["expectations"] = [
                to_plain_lists(expectation, levels=4) for expectation in expectations
            ]
        inputs = input_texts(options.pop("inputs", ()), df, location=self._session.location)
        options["inputs"] = inputs
        path = f"/featuregroups/{check_name(name)}"
        # Declared types are applied before the rows are sent.
        rows = convert_reader(ingest.to_reader(df), types, name=name)
        record = client_of(self._session).send(path, options, rows)
        for text in record.get("notices", ()):
            notify(text)
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
        refuse_name_before_data(df, name, call="insert_into_featuregroup")
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

    def _change(self, name: str, version: int | None, resource: str, **values: object) -> Any:
        group = self.featuregroup(name, version=version)
        path = f"/featuregroups/{group.name}/{group.version}/{resource}"
        return client_of(self._session).send(path, values)


def _is_json(expectations: object) -> bool:
    if not isinstance(expectations, Sequence) or isinstance(expectations, str):
        return False
    return all(isinstance(expectation, Mapping) for expectation in expectations)


class RemoteFeatureViewCalls(StoreBase):
    """Methods for feature views in a served store."""

    def get_feature_view(self, name: str, *, version: int | None = None) -> FeatureView:
        client = client_of(self._session)
        record = client.get(f"/featureviews/{check_name(name)}", version=version)
        return RemoteFeatureView(self._session, FeatureViewSpec.from_json(record))


class RemoteFeatureView(FeatureView):
    """A feature view of a served store, with the methods that need only its definition."""

    def server(
        self,
        *,
        online: str | None = None,
        dataset: TrainingDataset | None = None,
        log_vectors: str | None = None,
        log_sample: float = 0.01,
    ) -> VectorServer:
        client, reference = client_of(self._session), None
        if log_vectors is not None:
            raise unsupported_error(client.address, "server(log_vectors=)", hint="view.server()")
        if dataset is not None:
            serving_vectors.check_dataset(dataset.manifest, self.name, self.version)
            reference = format_group_reference(dataset.name, dataset.version)
        vectors = RemoteVectors(client, self._spec, online=online, dataset=reference)
        return VectorServer(self._spec, vectors)

    def verify_online(self, **_: object) -> NoReturn:
        raise unsupported_error(self._session.location, "verify_online()")

    def online_lag(self, **_: object) -> NoReturn:
        raise unsupported_error(self._session.location, "online_lag()")


class RemoteVectors:
    """Reads vectors by REST, with one request for each call; thread-safe."""

    def __init__(
        self, client: Client, spec: FeatureViewSpec, *, online: str | None, dataset: str | None
    ) -> None:
        self._client, self._spec, self._dataset = client, spec, dataset
        self._path = f"/featureviews/{spec.name}/vectors"
        record = client.get(self._path, version=spec.version, online=online, dataset=dataset)
        self._online, self._columns = str(record["online"]), list(record["entity"])
        self._types = {
            name: None if json_type is None else type_from_json(json_type)
            for name, json_type in record["types"].items()
        }

    @property
    def entity(self) -> list[str]:
        return list(self._columns)

    @property
    def entity_types(self) -> dict[str, pa.DataType | None]:
        return dict(self._types)

    @property
    def online(self) -> str:
        return self._online

    @property
    def log_state(self) -> None:
        """None: the server logs no vectors."""

    @property
    def clock(self) -> NoReturn:
        raise unsupported_error(self._client.address, "The clock of an online store")

    def parse_json(self, entity: Mapping[str, Any]) -> NoReturn:
        raise unsupported_error(self._client.address, "parse_json()", hint="server.get_vectors()")

    def get_vectors(self, entities: Entities, form: Form) -> Any:
        serving_vectors.check_form(form)
        rows = serving_vectors.entity_rows(entities)
        if len(rows) > MAX_ENTITIES:
            raise InvalidArgument(
                f"{len(rows):,} entities are more than the {MAX_ENTITIES:,} of one request.",
                hint=f"get_vectors(entities[:{MAX_ENTITIES}])",
            )
        for row in rows:
            serving_vectors.check_entity(row, self._columns)
        request = {
            "entities": [_entity_to_json(dict(row)) for row in rows],
            "version": self._spec.version,
            "online": self._online,
            "dataset": self._dataset,
        }
        table = self._client.table(self._path, request)
        origin = json.loads(table.schema.metadata[METADATA.encode()])
        table = table.replace_schema_metadata(None)
        if form != "dict":
            columns = [column.combine_chunks() for column in table.columns]
            return serving_vectors.convert_batch(
                pa.RecordBatch.from_arrays(columns, schema=table.schema), form
            )
        groups = [(name, version) for name, version in origin["groups"]]
        statuses = [
            [None if status is None else ValueStatus(status) for status in row]
            for row in origin["statuses"]
        ]
        return [
            FeatureVector(row, row_statuses, groups)
            for row, row_statuses in zip(table.to_pylist(), statuses, strict=True)
        ]

    async def aget_vectors(self, entities: Entities, form: Form) -> Any:
        return await asyncio.to_thread(self.get_vectors, entities, form)

    def read_batch(self, entities: Entities, at: int | None = None) -> NoReturn:
        raise unsupported_error(self._client.address, "read_batch()", hint="server.get_vectors()")

    def close(self) -> None:
        """Do nothing: connections are closed after each request."""


def _entity_to_json(value: Any) -> Any:
    """Convert a value of an entity to JSON, in the form that the server parses."""
    if is_missing(value) and not isinstance(value, float):
        return None
    if isinstance(value, Mapping):
        return {str(name): _entity_to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_entity_to_json(item) for item in value]
    if isinstance(value, np.generic | pa.Scalar | bytearray | memoryview):
        (cell,) = array_from_values([value], name="entity").to_pylist()
        return _entity_to_json(cell)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        # A whole number may be the key of an integer column, which has no text form.
        is_whole = is_whole_number(value) and value.adjusted() < _MAX_DIGITS
        return int(value) if is_whole else str(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


class RemoteErasureCalls(ErasureCalls):
    """Methods for the erasure of entities in a served store, for admins."""

    def erase(
        self,
        subject: Mapping[str, object] | Sequence[Mapping[str, object]],
        *,
        columns: Mapping[str, str] | None = None,
        datasets: Literal["export", "keep"] = "export",
        dry_run: bool = True,
    ) -> ErasureReport:
        entities = parse_entities(subject, columns)
        request = {
            "subject": [
                {key: value.text for key, value in entity.items() if isinstance(value, KnownValue)}
                for entity in entities.entities
            ],
            "columns": dict(columns or {}),
            "datasets": datasets,
            "dry_run": dry_run,
        }
        return ErasureReport.from_json(client_of(self._session).send("/erasures", request))

    def verify_erasure(self, certificate: Mapping[str, object] | str | bytes) -> ErasureCheck:
        request = {"certificate": parse_certificate_json(certificate)}
        return ErasureCheck.from_json(client_of(self._session).send("/erasures/verify", request))
