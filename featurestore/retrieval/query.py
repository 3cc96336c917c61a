"""sql: the lazy frame of a user's query over pinned groups."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from featurestore import usersql
from featurestore.arrow.column_names import check_feature_names
from featurestore.arrow.untyped import refuse_untyped, sql_casts
from featurestore.errors import InvalidName, InvalidReference, InvalidSql, listing
from featurestore.model.plan import QuerySource, Source, plan_of_query
from featurestore.model.references import parse_group_reference
from featurestore.retrieval.catalog import AsOfArgument, Pins, RegisteredSpecs
from featurestore.retrieval.execution import run_query
from featurestore.retrieval.frame import FeatureFrame
from featurestore.retrieval.resolve import Specs, find_spec
from featurestore.session import Session
from featurestore.usersql.text import short


def query_frame(session: Session, text: str, *, as_of: AsOfArgument | None = None) -> FeatureFrame:
    """Return the lazy frame of a query; its groups are pinned, and no row is read.

    See ``FeatureStore.sql`` for the arguments.

    Raises:
        InvalidSql: It is not a single SELECT over groups, or uses an unsupported expression.
        FeatureGroupNotFound: It reads a group that does not exist.
    """
    if not isinstance(text, str):
        raise InvalidSql(
            f"A query is a text, not {type(text).__name__}.", hint="sql('select * from weather')"
        )
    names = usersql.tables_read(text)
    checked = usersql.query(text, tables=names, dialect=usersql.DIALECT)
    if session.engine.dialect != usersql.DIALECT:
        usersql.query(text, tables=names, dialect=session.engine.dialect)
    parameter_names = usersql.parameters(checked)
    if parameter_names:
        raise InvalidSql(
            f"{short(text)} has the parameters {listing(parameter_names)}, which nothing gives a value.",
            hint="write constants",
        )
    registered = RegisteredSpecs(session)
    pins = Pins(session, registered, as_of=as_of)
    specs = pins.specs()
    tables: dict[str, Source] = {}
    for name in names:
        tables.setdefault(name.lower(), _source(name, text, specs=specs, pins=pins))
    pins.check_used()
    schemas = [source.spec.schema for source in tables.values()]
    source = QuerySource(checked, tuple(tables.items()), usersql.why_rows_vary(checked, schemas))
    schema = run_query(session, source).schema
    _check_columns(schema.names, text)
    refuse_untyped(schema, subject="The query", hint=partial(_typing, checked, schema))
    return FeatureFrame.planned(session, plan_of_query(source, schema))


def _typing(query: str, schema: pa.Schema, _: pa.Schema) -> str:
    """Return the query that gives all columns a type."""
    return f"select {sql_casts(schema)} from ({query})"


def _source(name: str, text: str, *, specs: Specs, pins: Pins) -> Source:
    """Return the pinned group of a table name in a query."""
    try:
        group, version = parse_group_reference(name.lower())
    except InvalidReference as error:
        raise InvalidSql(
            f"{short(text)} reads the unknown table {name!r}: tables are feature groups.",
            hint='write weather, or "weather@v2" in double quotes; the groups are '
            f"{listing(sorted(specs), limit=30)}",
        ) from error
    spec = find_spec(group, version=version, specs=specs)
    return pins.source((spec.name, spec.version))


def _check_columns(names: list[str], text: str) -> None:
    """Refuse results with unnamed columns or duplicate names."""
    try:
        check_feature_names(names)
    except InvalidName as error:
        raise InvalidSql(
            f"The columns of {short(text)} need names: {error.message}",
            hint="select count(*) as n, b.temp as other_temp",
        ) from error
