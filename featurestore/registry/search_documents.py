"""What a search looks through: one text for each field of what it finds, with an index of trigrams.

The texts say which names may hold what is looked for; the tables themselves say which do. So an
index that knows too much costs time and never shows anything. In SQLite it is an FTS5 table, in
Postgres an index of ``pg_trgm`` where the database has that extension, see docs/adr/0020.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.registry.tables import (
    featuregroups,
    features,
    search_documents,
    tags,
    window_features,
)

FEATURE = "feature"
FEATURE_DESCRIPTION = "feature description"
DESCRIPTION = "description"
TAG = "tag"
WINDOW = "window"

_GROUP = "featuregroup"
_INDEX = "search_trigrams"
_OLDEST_WITH_TRIGRAMS = (3, 34)
# Trigrams of a longer text than this add nothing to what it may be found in.
_MOST_TRIGRAMS = 64
_FIRST_CANDIDATES = 16
_MOST_CANDIDATES = 512
_columns = search_documents.c


def replace(
    connection: Connection, kind: str, name: str, version: int, field: str, texts: Iterable[str]
) -> None:
    """Write the texts of a field, in place of those written before."""
    of_field = _columns.field == field
    _remove(connection, sa.and_(_is(kind, name, version), of_field))
    text = searched("\n".join(texts))
    if not text:
        return
    is_indexed = has_index(connection)
    inserted = connection.execute(
        search_documents.insert().values(
            kind=kind, name=name, version=version, field=field, text=text, indexed=is_indexed
        )
    )
    key = inserted.inserted_primary_key
    if is_indexed and key is not None:
        _change_index(connection, f"insert into {_INDEX} (rowid, text)", [(key[0], text)])


def remove(connection: Connection, kind: str, name: str, version: int) -> None:
    """Forget the texts of a version."""
    _remove(connection, _is(kind, name, version))


def clear(connection: Connection) -> None:
    """Forget every text."""
    connection.execute(search_documents.delete())
    if has_index(connection):
        connection.exec_driver_sql(f"insert into {_INDEX} ({_INDEX}) values ('delete-all')")


def candidates(
    connection: Connection,
    kind: str,
    field: str,
    text: str,
    *,
    among: Collection[str] | None = None,
) -> Iterator[list[str]]:
    """Yield, in order, every name with a version whose field holds a text, and perhaps others.

    They come in lists, short ones first: whoever has found enough asks for no more. ``among``: only
    these names.
    """
    names = _names(connection, kind, field, text)
    if among is not None:
        names = [name for name in names if name in among]
    start, size = 0, _FIRST_CANDIDATES
    while start < len(names):
        yield names[start : start + size]
        start, size = start + size, min(2 * size, _MOST_CANDIDATES)


def _names(connection: Connection, kind: str, field: str, text: str) -> list[str]:
    searched_text = searched(text)
    names_of_field = sa.select(_columns.name).where(_columns.kind == kind, _columns.field == field)
    holding = names_of_field.where(_holds(connection, searched_text))
    if len(searched_text) < 3 or not has_index(connection):
        query = holding.distinct().order_by(_columns.name)
        return list(connection.execute(query).scalars())
    rowid: sa.ColumnClause[int] = sa.literal_column("rowid")
    matching = sa.text(f"{_INDEX} match :trigrams")
    trigrams = matching.bindparams(trigrams=_all_trigrams(searched_text))
    indexed_ids = sa.select(rowid).select_from(sa.table(_INDEX)).where(trigrams)
    # A process whose SQLite has no trigrams wrote what is not in the index.
    unindexed = holding.where(_columns.indexed.is_(False))
    either = sa.union(names_of_field.where(_columns.id.in_(indexed_ids)), unindexed).subquery()
    return list(connection.execute(sa.select(either.c.name).order_by(either.c.name)).scalars())


def searched(text: str) -> str:
    """Return a text as it is looked through.

    SQLite ends the trigrams of a text where a null character is.

    >>> searched("Straße")
    'strasse'
    """
    return text.casefold().replace("\0", "\n")


def has_index(connection: Connection) -> bool:
    """Tell whether SQLite has an index of trigrams, which all who write keep."""
    if connection.dialect.name != "sqlite":
        return False
    if "trigrams" not in connection.info:
        connection.info["trigrams"] = _is_there(connection) and _knows_trigrams(connection)
    return bool(connection.info["trigrams"])


def create_index(connection: Connection) -> None:
    """Make the index of trigrams where the database can have one."""
    if connection.dialect.name == "postgresql":
        _create_in_postgres(connection)
    elif _knows_trigrams(connection):
        connection.info.pop("trigrams", None)
        connection.exec_driver_sql(
            f"create virtual table {_INDEX} using fts5(text, content='search_documents', "
            "content_rowid='id', detail=none, columnsize=0, tokenize='trigram case_sensitive 1')"
        )


def rebuild(connection: Connection) -> None:
    """Write every text anew from what the registry holds."""
    clear(connection)
    groups = {}
    columns = featuregroups.c
    listed = sa.select(columns.id, columns.name, columns.version, columns.description)
    for row in connection.execute(listed).all():
        groups[row.id] = (_GROUP, row.name, row.version)
        replace(connection, *groups[row.id], DESCRIPTION, [row.description])
    for identifier, group in groups.items():
        is_of_group = features.c.featuregroup_id == identifier
        query = sa.select(features.c.name, features.c.description).where(is_of_group)
        rows = connection.execute(query).all()
        replace(connection, *group, FEATURE, [row.name for row in rows])
        replace(connection, *group, FEATURE_DESCRIPTION, [row.description for row in rows])
    _rebuild_tags(connection)
    _rebuild_windows(connection)


def _rebuild_tags(connection: Connection) -> None:
    texts: dict[tuple[str, str, int], list[str]] = {}
    for row in connection.execute(sa.select(tags)):
        texts.setdefault((row.kind, row.name, row.version), []).extend([row.key, row.value])
    for version_key, tag_texts in texts.items():
        replace(connection, *version_key, TAG, tag_texts)


def _rebuild_windows(connection: Connection) -> None:
    from featurestore.registry import window_features as windows

    columns = window_features.c
    listed = sa.select(columns.kind, columns.name, columns.version).distinct()
    for kind, name, version in connection.execute(listed).all():
        listed_windows = windows.list_windows(connection, kind, name, version)
        replace(connection, kind, name, version, WINDOW, [str(each) for each in listed_windows])


def _remove(connection: Connection, condition: sa.ColumnElement[bool]) -> None:
    if has_index(connection):
        # Postings are found by the text that they were made of.
        indexed = sa.select(_columns.id, _columns.text).where(condition, _columns.indexed.is_(True))
        rows = [(row.id, row.text) for row in connection.execute(indexed)]
        forget = f"insert into {_INDEX} ({_INDEX}, rowid, text)"
        _change_index(connection, forget, [("delete", *row) for row in rows])
    connection.execute(search_documents.delete().where(condition))


def _change_index(connection: Connection, into: str, rows: list[tuple[object, ...]]) -> None:
    for row in rows:
        marks = ", ".join("?" * len(row))
        connection.exec_driver_sql(f"{into} values ({marks})", row)


def _holds(connection: Connection, searched_text: str) -> sa.ColumnElement[bool]:
    if connection.dialect.name == "sqlite":
        return (
            sa.func.instr(_columns.text, searched_text) > 0
        )  # LIKE would leave more than case aside
    return _columns.text.contains(searched_text, autoescape=True)


def _all_trigrams(searched_text: str) -> str:
    """Return the condition of FTS5 that a text holds every trigram of another one.

    >>> _all_trigrams("wind")
    '"win" AND "ind"'
    """
    trigrams = {
        searched_text[start : start + 3].replace('"', '""'): True
        for start in range(min(len(searched_text) - 2, _MOST_TRIGRAMS))
    }
    return " AND ".join(f'"{each}"' for each in trigrams)


def _is_there(connection: Connection) -> bool:
    statement = f"select 1 from sqlite_master where name = '{_INDEX}'"
    return connection.exec_driver_sql(statement).first() is not None


def _knows_trigrams(connection: Connection) -> bool:
    version_text = connection.exec_driver_sql("select sqlite_version()").scalar_one()
    version = tuple(map(int, version_text.split(".")))
    options = connection.exec_driver_sql("pragma compile_options").scalars().all()
    return version >= _OLDEST_WITH_TRIGRAMS and "ENABLE_FTS5" in options


def _create_in_postgres(connection: Connection) -> None:
    located = sa.text(
        "select quote_ident(n.nspname) from pg_extension e "
        "join pg_namespace n on n.oid = e.extnamespace where e.extname = 'pg_trgm'"
    )
    schema = connection.execute(located).scalar()
    if schema is not None:
        connection.exec_driver_sql(
            "create index if not exists ix_search_documents_text "
            f"on search_documents using gin (text {schema}.gin_trgm_ops)"
        )


def _is(kind: str, name: str, version: int) -> sa.ColumnElement[bool]:
    return sa.and_(_columns.kind == kind, _columns.name == name, _columns.version == version)
