"""Search documents: the searchable strings of each version, with a trigram index.

A search gets candidate names from the documents and then checks the tables themselves, so a stale
document costs time but never causes a wrong match. The index is an FTS5 table in SQLite, and in
Postgres a ``pg_trgm`` index if this extension is available; see docs/adr/0020.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.registry.rows import is_version
from featurestore.registry.tables import search_documents

FEATURE = "feature"
FEATURE_DESCRIPTION = "feature description"
DESCRIPTION = "description"
TAG = "tag"
WINDOW = "window"

_INDEX = "search_trigrams"
_OLDEST_WITH_TRIGRAMS = (3, 34)
# Using more trigrams than this does not reduce the candidates any further.
_MOST_TRIGRAMS = 64
_FIRST_CANDIDATES = 16
_MOST_CANDIDATES = 512
_MOST_INDEXED = 1000
_columns = search_documents.c


def replace(
    connection: Connection,
    object_kind: str,
    name: str,
    version: int,
    texts_by_field: Mapping[str, Iterable[str]],
) -> None:
    """Replace the documents of some fields of a version."""
    remove(connection, object_kind, name, version, fields=list(texts_by_field))
    is_indexed = has_index(connection)
    for field, texts in texts_by_field.items():
        text = normalize("\n".join(texts))
        if not text:
            continue
        inserted = connection.execute(
            search_documents.insert().values(
                kind=object_kind,
                name=name,
                version=version,
                field=field,
                text=text,
                indexed=is_indexed,
            )
        )
        key = inserted.inserted_primary_key
        if is_indexed and key is not None:
            connection.exec_driver_sql(
                f"insert into {_INDEX} (rowid, text) values (?, ?)", (key[0], text)
            )


def remove(
    connection: Connection,
    object_kind: str,
    name: str,
    version: int,
    *,
    fields: Collection[str] | None = None,
) -> None:
    """Remove the documents of a version from the table and from the index, or those of some fields."""
    condition = is_version(search_documents, object_kind, name, version)
    if fields is not None:
        condition &= _columns.field.in_(fields)
    if has_index(connection):
        # FTS5 needs the indexed string to remove its trigrams.
        indexed_documents = sa.select(_columns.id, _columns.text).where(
            condition, _columns.indexed.is_(True)
        )
        for row in connection.execute(indexed_documents).all():
            removal = f"insert into {_INDEX} ({_INDEX}, rowid, text) values ('delete', ?, ?)"
            connection.exec_driver_sql(removal, (row.id, row.text))
    connection.execute(search_documents.delete().where(condition))


def clear(connection: Connection) -> None:
    """Remove all documents."""
    connection.execute(search_documents.delete())
    if has_index(connection):
        connection.exec_driver_sql(f"insert into {_INDEX} ({_INDEX}) values ('delete-all')")


def rebuild_index(connection: Connection) -> None:
    """Index the documents again, after rows of the table were inserted without ``replace``."""
    if has_index(connection):
        connection.exec_driver_sql(f"insert into {_INDEX} ({_INDEX}) values ('rebuild')")


def candidate_names(
    connection: Connection,
    object_kind: str,
    field: str,
    text: str,
    *,
    among: Collection[str] | None = None,
) -> Iterator[list[str]]:
    """Yield the sorted names that may have a version whose field contains a string.

    The names are yielded in lists of increasing length, so that a search with a limit can stop
    early. If ``among`` is set, only these names are searched.
    """
    searched_text = normalize(text)
    names = _indexed_names(connection, object_kind, field, searched_text)
    contains = _contains(connection, searched_text)
    query = (
        sa.select(_columns.name)
        .where(_columns.kind == object_kind, _columns.field == field, contains)
        .distinct()
        .order_by(_columns.name)
    )
    if names is not None:
        yield from _increasing_lists(
            name for name in sorted(names) if among is None or name in among
        )
    elif among is not None:
        for some_names in _increasing_lists(sorted(among)):
            matching_names = query.where(_columns.name.in_(some_names))
            yield list(connection.execute(matching_names).scalars())
    else:
        yield from _matching_names(connection, query)


def _increasing_lists(names: Iterable[str]) -> Iterator[list[str]]:
    remaining, size = iter(names), _FIRST_CANDIDATES
    while some_names := list(islice(remaining, size)):
        yield some_names
        size = min(2 * size, _MOST_CANDIDATES)


def _matching_names(connection: Connection, query: sa.Select[str]) -> Iterator[list[str]]:
    """Yield the names of a query, which is repeated from the last name of each list."""
    size, last_name = _FIRST_CANDIDATES, ""
    while True:
        following = query.where(_columns.name > last_name).limit(size)
        names: list[str] = list(connection.execute(following).scalars())
        if names:
            yield names
        if len(names) < size:
            return
        size, last_name = min(2 * size, _MOST_CANDIDATES), names[-1]


def _indexed_names(
    connection: Connection, object_kind: str, field: str, searched_text: str
) -> set[str] | None:
    """Return the names that an index of trigrams finds, None if it is missing or finds many.

    A string in many documents is found faster by reading the documents in the order of the names,
    since a search with a limit then stops early.
    """
    if len(searched_text) < 3:
        return None
    if connection.dialect.name == "postgresql":
        ids = sa.select(_columns.id).where(_contains(connection, searched_text))
    elif has_index(connection):
        rowid: sa.ColumnClause[int] = sa.literal_column("rowid")
        match = sa.text(f"{_INDEX} match :trigrams")
        trigrams = match.bindparams(trigrams=_trigram_query(searched_text))
        ids = sa.select(rowid.label("id")).select_from(sa.table(_INDEX)).where(trigrams)
    else:
        return None
    indexed_ids = connection.execute(ids.limit(_MOST_INDEXED + 1)).scalars().all()
    if len(indexed_ids) > _MOST_INDEXED:
        return None
    documents = sa.select(_columns.kind, _columns.field, _columns.name)
    rows = [*connection.execute(documents.where(_columns.id.in_(indexed_ids)))]
    if connection.dialect.name == "sqlite":
        # A process whose SQLite does not support trigrams writes documents that are not indexed.
        rows += connection.execute(documents.where(_columns.indexed.is_(False)))
    return {row.name for row in rows if (row.kind, row.field) == (object_kind, field)}


def normalize(text: str) -> str:
    """Return the normalized form of a string for searching.

    Null characters are replaced, since SQLite ignores the trigrams after the first one.

    >>> normalize("Straße")
    'strasse'
    """
    return text.casefold().replace("\0", "\n")


def has_index(connection: Connection) -> bool:
    """Return True if the database is SQLite and has a trigram index that is maintained."""
    if connection.dialect.name != "sqlite":
        return False
    # The result is cached for the connection, since each write of a name needs it.
    if "trigrams" not in connection.info:
        statement = f"select 1 from sqlite_master where name = '{_INDEX}'"
        has_table = connection.exec_driver_sql(statement).first() is not None
        connection.info["trigrams"] = has_table and _supports_trigrams(connection)
    return bool(connection.info["trigrams"])


def create_index(connection: Connection) -> None:
    """Create the trigram index if the database supports it."""
    if connection.dialect.name == "postgresql":
        _create_in_postgres(connection)
    elif _supports_trigrams(connection):
        connection.info.pop("trigrams", None)
        connection.exec_driver_sql(
            # The strings are stored only in search_documents (content=), and without positions
            # (detail=none) the index is smaller; a search checks the matches in the tables anyway.
            f"create virtual table if not exists {_INDEX} using fts5(text, "
            "content='search_documents', "
            "content_rowid='id', detail=none, columnsize=0, tokenize='trigram case_sensitive 1')"
        )


def _contains(connection: Connection, searched_text: str) -> sa.ColumnElement[bool]:
    if connection.dialect.name == "sqlite":
        # LIKE ignores the case of ASCII letters even after case folding.
        return sa.func.instr(_columns.text, searched_text) > 0
    return _columns.text.contains(searched_text, autoescape=True)


def _trigram_query(searched_text: str) -> str:
    """Return the FTS5 condition that a document contains all trigrams of a string.

    >>> _trigram_query("wind")
    '"win" AND "ind"'
    """
    trigrams = {
        # FTS5 escapes a quote in a string by doubling it.
        searched_text[start : start + 3].replace('"', '""'): True
        for start in range(min(len(searched_text) - 2, _MOST_TRIGRAMS))
    }
    return " AND ".join(f'"{trigram}"' for trigram in trigrams)


def _supports_trigrams(connection: Connection) -> bool:
    version_text = connection.exec_driver_sql("select sqlite_version()").scalar_one()
    version = tuple(map(int, version_text.split(".")))
    options = connection.exec_driver_sql("pragma compile_options").scalars().all()
    # The trigram tokenizer was added in SQLite 3.34, and FTS5 is a compile option.
    return version >= _OLDEST_WITH_TRIGRAMS and "ENABLE_FTS5" in options


def _create_in_postgres(connection: Connection) -> None:
    """Create a trigram index if the extension pg_trgm is installed."""
    schema_query = sa.text(
        "select quote_ident(n.nspname) from pg_extension e "
        "join pg_namespace n on n.oid = e.extnamespace where e.extname = 'pg_trgm'"
    )
    schema = connection.execute(schema_query).scalar()
    if schema is not None:
        connection.exec_driver_sql(
            "create index if not exists ix_search_documents_text "
            f"on search_documents using gin (text {schema}.gin_trgm_ops)"
        )
