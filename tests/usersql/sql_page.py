"""The page docs/reference/sql.md: which forms of queries both engines accept.

``python -m tests.usersql.sql_page`` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb

from featurestore.errors import InvalidSql
from featurestore.usersql.spark_queries import to_spark_sql
from featurestore.usersql.typed_tables import SANDBOX_SETTINGS, describe_tables
from featurestore.usersql.typed_values import DifferentForm, DuckDBTypes
from tests.usersql.query_forms import NUMBERS, Form, aggregate_forms, edge_table, scalar_forms

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sql.md"
EQUAL, REWRITTEN, REFUSED, DUCKDB_ONLY, INVALID = "equal", "rewritten", "refused", "DuckDB only", ""
_SIGNS = {EQUAL: "=", REWRITTEN: "r", REFUSED: "x", DUCKDB_ONLY: "d", INVALID: ""}
_NAMES = {
    "bool": "boolean", "f32": "float", "f64": "double", "dec": "decimal(10,2)",
    "wide": "decimal(38,10)", "tiny": "decimal(4,4)", "text": "varchar", "blob": "blob",
    "day": "date", "time": "timestamptz", "list": "bigint[]", "struct": "struct",
    "i8": "tinyint", "i16": "smallint", "i32": "integer", "i64": "bigint",
    "u8": "utinyint", "u16": "usmallint", "u32": "uinteger", "u64": "ubigint",
}  # fmt: skip
_INTRODUCTION = """# SQL on both engines

Queries (`store.sql`, SQL jobs) are written in DuckDB's SQL. On Spark they return the same rows and
types. This page is generated: a test runs the forms below over edge values of their types on both
engines and compares values and types.

| word | sign | meaning |
| --- | --- | --- |
| equal | = | Spark runs the form as it is written |
| rewritten | r | Spark runs SQL that returns DuckDB's values and types |
| refused | x | the engines differ: `InvalidSql` on both, with a form that runs on both |
| DuckDB only | d | accepted by the embedded engine, `InvalidSql` on Spark |

All other deterministic functions and syntax of DuckDB are DuckDB only: lists, JSON, regular
expressions, `try_cast`, casts of strings, `distinct on`, `asof join`, `pivot`, `rollup`, recursive
`with`, `unnest` in FROM, frames other than ROWS, `ignore nulls`. A query with such a form is checked
by DuckDB alone.

Types are checked when the tables are known: by `store.sql(...)`, when a job over existing groups is
registered, and before a job computes its first window. Names of functions are checked when a job is
registered.

- An overflow is an error on both engines. Decimals of Spark have 38 digits: a sum or product that is
  longer is an error on Spark before it is one in DuckDB.
- Sums and means of floats depend on the order of the rows, on every engine.
- Times are UTC; `date + interval` and `date_trunc` of a date are timestamps.
- Sorts put nulls last, also with `desc`, unless the query contains `nulls first`.
"""


class Classifier:
    """Classifies forms by whether both engines accept them."""

    def __init__(self) -> None:
        connection = duckdb.connect(":memory:")
        for setting in SANDBOX_SETTINGS:
            connection.execute(setting)
        self._connection = connection
        self._tables = describe_tables(connection, {"edges": edge_table(2).schema})
        self._types = DuckDBTypes(connection.cursor(), error=duckdb.Error)

    def classify(self, form: Form) -> tuple[str, str]:
        """Return the word of a form, and its Spark SQL or the form to use instead."""
        sql = f"select {form.sql} as x from edges"
        try:
            spark = to_spark_sql(sql, tables=self._tables, parameters={}, types=self._types)
        except InvalidSql as error:
            if not self._is_valid(sql):
                return INVALID, ""
            is_refused = isinstance(error.__cause__, DifferentForm)
            return (REFUSED if is_refused else DUCKDB_ONLY), error.hint or ""
        spark_text = spark.removeprefix("SELECT ").removesuffix(" AS `c0` FROM `edges` AS `t0`")
        text = spark_text.replace("`t0`.", "").replace("`", "")
        return (EQUAL if _plain(text) == _plain(form.sql) else REWRITTEN), text

    def _is_valid(self, sql: str) -> bool:
        try:
            self._connection.sql(sql)
        except duckdb.Error:
            return False
        return True


def build_page() -> str:
    """Return the text of the page."""
    classifier = Classifier()
    forms = [*scalar_forms(), *aggregate_forms()]
    words = {form: classifier.classify(form) for form in forms}
    sections = [_INTRODUCTION, *_number_tables(words), *_cast_table(words), *_function_table(words)]
    return "\n".join(sections).rstrip() + "\n"


def _number_tables(words: dict[Form, tuple[str, str]]) -> Iterator[str]:
    yield "## Operators of numbers\n"
    literals = [form.types[1] for form in words if form.name == "+" and form.types[0] == "i8"]
    columns = list(dict.fromkeys([*NUMBERS, *literals]))
    for operator in "+-*/%":
        names = " | ".join(_NAMES.get(name, f"`{name}`") for name in columns)
        yield f"| `a {operator} b` | {names} |"
        yield f"| --- |{' --- |' * len(columns)}"
        for first in NUMBERS:
            cells = [
                _SIGNS[words[form][0]]
                for second in columns
                for form in words
                if form.name == operator and form.types == (first, second)
            ]
            yield f"| {_NAMES[first]} | {' | '.join(cells)} |"
        yield ""


def _cast_table(words: dict[Form, tuple[str, str]]) -> Iterator[str]:
    yield "## Casts\n"
    casts = [form for form in words if form.name.startswith("cast to ")]
    targets = list(dict.fromkeys(form.name.removeprefix("cast to ") for form in casts))
    yield f"| from | {' | '.join(targets)} |"
    yield f"| --- |{' --- |' * len(targets)}"
    for source in dict.fromkeys(form.types[0] for form in casts):
        cells = [_SIGNS[words[form][0]] for form in casts if form.types[0] == source]
        yield f"| {_NAMES[source]} | {' | '.join(cells)} |"
    yield ""


def _function_table(words: dict[Form, tuple[str, str]]) -> Iterator[str]:
    yield "## Functions, aggregates and comparisons\n"
    yield "| form | word | types | on Spark, or instead |"
    yield "| --- | --- | --- | --- |"
    groups: dict[tuple[str, str], list[Form]] = {}
    for form, (word, _) in words.items():
        is_in_table = (
            form.name in "+-*/%" and form.types[0] in NUMBERS and len(form.types) == 2
        ) or (form.name.startswith("cast to "))
        if word and not is_in_table:
            groups.setdefault((form.name, word), []).append(form)
    for (name, word), forms in sorted(groups.items(), key=lambda group: group[0][0]):
        types = dict.fromkeys(f"`{' and '.join(map(_type_name, form.types))}`" for form in forms)
        text = "" if word == EQUAL else f"`{_shorten(words[forms[0]][1])}`"
        yield f"| `{_escape(name)}` | {word} | {_escape(', '.join(types))} | {_escape(text)} |"


def _type_name(name: str) -> str:
    return _NAMES.get(name, name)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _shorten(text: str, size: int = 90) -> str:
    line = " ".join(text.split())
    return line if len(line) <= size else f"{line[:size]}..."


def _plain(sql: str) -> str:
    """Return SQL without case, spaces and parentheses."""
    return re.sub(r"[\s()]", "", sql).lower()


if __name__ == "__main__":
    PAGE.write_text(build_page(), encoding="utf-8")
