"""Row conditions: accepted expressions, their SQL, and errors that name the replacement."""

from __future__ import annotations

import contextlib
import pathlib
import re
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featurestore.errors import InvalidSql
from featurestore.usersql import fix_clock, predicate, quote
from featurestore.usersql.functions import ALIASES, FUNCTIONS, SAME_KIND_FUNCTIONS

SCHEMA = pa.schema(
    [
        ("speed", pa.float64()),
        ("Zone", pa.string()),
        ("address", pa.struct([("street", pa.string())])),
        ("at", pa.timestamp("us", tz="UTC")),
        ("seats", pa.int32()),
    ]
)
NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)


def test_predicate_renders_sql_for_each_dialect(subtests: pytest.Subtests) -> None:
    for text, in_duckdb, in_spark in (
        (
            "speed >= 10 and zone = 'A'",
            '(("speed" >= CAST(10 AS DOUBLE)) AND ("Zone" = \'A\'))',
            "((`speed` >= CAST(10 AS DOUBLE)) AND (`Zone` = 'A'))",
        ),
        ("ZONE in ('a', 'b')", "(\"Zone\" IN ('a', 'b'))", "(`Zone` IN ('a', 'b'))"),
        (
            "not seats between 1 and 2",
            '(NOT (("seats" >= 1) AND ("seats" <= 2)))',
            "(NOT ((`seats` >= 1) AND (`seats` <= 2)))",
        ),
        ("address.street = 'x'", '("address"."street" = \'x\')', "(`address`.`street` = 'x')"),
        ("zone is null -- a comment", '("Zone" IS NULL)', "(`Zone` IS NULL)"),
        (
            "at < '2020-01-01';",
            "(\"at\" < TIMESTAMPTZ '2020-01-01 00:00:00.000000+00:00')",
            "(`at` < TIMESTAMP '2020-01-01 00:00:00.000000+00:00')",
        ),
    ):
        with subtests.test(text=text):
            assert predicate(text, schema=SCHEMA, dialect="duckdb") == in_duckdb
            assert predicate(text, schema=SCHEMA, dialect="spark") == in_spark


def test_predicate_not_a_row_condition_raises(subtests: pytest.Subtests) -> None:
    for text in (
        "",
        "speed >",
        "speed > 1; drop table x",
        "delete from groups",
        "select 1",
        "speed > (select max(speed) from other)",
        "speed in (select 1)",
        "exists (select 1)",
        "count(*) > 1",
        "row_number() over () = 1",
        "speed = $limit",
        "speed = ?",
        "speed as s",
        "speed + 1",
        "'text'",
        "7",
        "speed = null",
        "zone > 1",
        "at > 5",
        "at > 'yesterday'",
        "address = 'x'",
        "address.city = 'x'",
        "zone.street = 'x'",
        "columns('z.*') = 'x'",
        "seats::varchar::blob = 'x'::blob",
        "zone collate nocase = 'a'",
        "list_filter([1], x -> x > 0)[1] = 1",
    ):
        for dialect in ("duckdb", "spark"):
            with subtests.test(dialect, text=text), pytest.raises(InvalidSql):
                predicate(text, schema=SCHEMA, dialect=dialect)


def test_predicate_engine_dependent_sql_raises_with_replacement(subtests: pytest.Subtests) -> None:
    for text, replacement in (
        ("hash(seats) % 10 = 0", "sample"),
        ("random() < 0.1", "sample"),
        ("log(speed) > 3", "constant"),
        ("dayname(at) = 'Monday'", "isodow"),
        ("lower(zone) = 'a'", "spellings"),
        ("zone ilike 'A'", "spellings"),
        ("round(speed) = 3", "bounds"),
        ("date_diff('month', at, at) > 1", "epoch_us"),
        ("epoch_ms(at) > 1", "epoch_us"),
        ("regexp_matches(zone, '^a')", "starts_with"),
        ("zone ~ 'a'", "starts_with"),
        ("zone like 'a\\_'", "starts_with"),
        ("left(zone, -1) = 'a'", "count"),
        ("substr(zone, 0, 2) = 'a'", "count"),
        ("at + interval 1 month > at", "days"),
        ("getvariable('x') = 'a'", "supported functions"),
        ("read_text('/etc/passwd') = 'a'", "supported functions"),
    ):
        hint = rf"(?s)Hint:.*{replacement}"
        for dialect in ("duckdb", "spark"):
            with subtests.test(dialect, text=text), pytest.raises(InvalidSql, match=hint):
                predicate(text, schema=SCHEMA, dialect=dialect)


def test_predicate_interval_of_any_length_is_valid_or_raises(subtests: pytest.Subtests) -> None:
    for unit, sign, time in product(
        ("weeks", "days", "hours", "minutes", "seconds"),
        ("", "-"),
        ("at", "timestamptz '2024-01-01'", "date '2024-01-01'"),
    ):
        with subtests.test(unit, sign=sign, time=time):
            for digits in range(1, 10):
                text = f"{time} + interval '{sign}{'9' * digits}' {unit} > at"
                with contextlib.suppress(InvalidSql):
                    predicate(text, schema=SCHEMA, dialect="duckdb")
    with pytest.raises(InvalidSql, match="years 1 to 9999"):
        predicate("at + interval 999999999 weeks > at", schema=SCHEMA, dialect="duckdb")


def test_predicate_unknown_column_raises_with_known_columns() -> None:
    with pytest.raises(InvalidSql, match=r"'sped'(.|\n)*'speed', 'Zone', 'address', 'at'"):
        predicate("sped > 1 and speed > 2", schema=SCHEMA, dialect="duckdb")


def test_predicate_errors_name_available_names_and_types(subtests: pytest.Subtests) -> None:
    for text, message in (
        ("sped > 1", "did you mean speed"),
        ("address.town = 'x'", "no field 'town'. Available: 'street'"),
        ("starts_wit(zone, 'A')", "did you mean starts_with()"),
        ("seats = zone", "integer to string: cast(x as varchar)"),
        ("seats > zone", "use operands of one type"),
        ("seats = 'many'", "use operands of one type"),
        ("at > true", "use operands of one type"),
        ("cast(seats as json) = 1", "unsupported type json. Available: 'boolean', 'bigint'"),
        ("cast(zone as bigint) = 1", "use a column of the type integer"),
        ("cast(seats as date) > at", "Available types for integer: 'double', 'varchar'"),
    ):
        for dialect in ("duckdb", "spark"):
            with (
                subtests.test(dialect, text=text),
                pytest.raises(InvalidSql, match=re.escape(message)),
            ):
                predicate(text, schema=SCHEMA, dialect=dialect)


def test_hint_of_a_constant_of_another_type_keeps_its_value(subtests: pytest.Subtests) -> None:
    rows = [(2, 1.5, Decimal("1.50"), True, "2"), (-3, -2.25, Decimal("-7.00"), False, "1.5")]
    schema = pa.schema(
        [
            ("n", pa.int64()), ("x", pa.float64()), ("d", pa.decimal128(5, 2)), ("b", pa.bool_()),
            ("s", pa.string()),
        ]
    )  # fmt: skip
    with duckdb.connect() as database:
        table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows])
        database.register("t", table.cast(schema))
        for text, meaning in (
            ("n = '2'", lambda n, x, d, b, s: n == 2),
            ("'-3' = n", lambda n, x, d, b, s: n == -3),
            ("n <> '02'", lambda n, x, d, b, s: n != 2),
            ("n > '1.5'", lambda n, x, d, b, s: n > 1.5),
            ("n in ('2', '7')", lambda n, x, d, b, s: n in (2, 7)),
            ("n between '-3' and '0'", lambda n, x, d, b, s: -3 <= n <= 0),
            ("x >= '1.5'", lambda n, x, d, b, s: x >= 1.5),
            ("x < 'inf'", lambda n, x, d, b, s: True),
            ("d = '1.50'", lambda n, x, d, b, s: d == Decimal("1.5")),
            ("d <> '1.505'", lambda n, x, d, b, s: True),
            ("b = 'true'", lambda n, x, d, b, s: b),
            ("s = 2", lambda n, x, d, b, s: s == "2"),
            ("s in (2, 1.5)", lambda n, x, d, b, s: s in ("2", "1.5")),
            ("coalesce(n, '1') = 2", lambda n, x, d, b, s: n == 2),
            (
                "n = '2' and (s = 2 or x > '0')",
                lambda n, x, d, b, s: n == 2 and (s == "2" or x > 0),
            ),
        ):
            with subtests.test(text):
                with pytest.raises(InvalidSql) as error:
                    predicate(text, schema=schema, dialect="duckdb")
                _, line = (error.value.hint or "").split(
                    "write the constant in the type of the column: "
                )
                condition = predicate(line, schema=schema, dialect="duckdb")
                actual = database.execute(
                    f"select n, x, d, b, s from t where {condition}"
                ).fetchall()
                assert actual == [row for row in rows if meaning(*row)]
    # Texts have another order than numbers, and other texts have the same number.
    for text in ("s > 1", "n = 'two'", "s between 1 and 2"):
        with subtests.test(text), pytest.raises(InvalidSql, match="Hint: use operands of one type"):
            predicate(text, schema=schema, dialect="duckdb")


def test_hint_for_many_constants_is_bounded() -> None:
    text = " or ".join(f"seats = '{number}'" for number in range(500))
    with pytest.raises(InvalidSql, match="use operands of one type"):
        predicate(text, schema=SCHEMA, dialect="duckdb")


def test_function_of_another_meaning_is_not_proposed(subtests: pytest.Subtests) -> None:
    for call in ("count(seats)", "last(seats)", "min(seats)", "quantile(seats)", "median(seats)"):
        with subtests.test(call), pytest.raises(InvalidSql) as error:
            predicate(f"{call} > 1", schema=SCHEMA, dialect="duckdb")
        assert "did you mean" not in (error.value.hint or "")


def test_predicate_double_quoted_text_raises() -> None:
    with pytest.raises(InvalidSql, match="single quotes"):
        predicate('zone = "A"', schema=SCHEMA, dialect="duckdb")


def test_fix_clock_replaces_now_and_today() -> None:
    text = "at > now() - interval 1 day and at < current_timestamp"
    fixed = fix_clock(text, now=NOW)
    assert predicate(fixed, schema=SCHEMA, dialect="duckdb") == (
        "((\"at\" > TIMESTAMPTZ '2024-04-30 12:00:00.000000+00:00') AND "
        "(\"at\" < TIMESTAMPTZ '2024-05-01 12:00:00.000000+00:00'))"
    )
    assert predicate(fix_clock("at >= today()", now=NOW), schema=SCHEMA, dialect="spark") == (
        "(`at` >= timestamp_micros(unix_date(DATE '2024-05-01') * 86400000000))"
    )
    assert fix_clock("zone = 'now()'", now=NOW) == "zone = 'now()'"


def test_predicate_unfixed_now_raises() -> None:
    with pytest.raises(InvalidSql, match="now"):
        predicate("at > now()", schema=SCHEMA, dialect="duckdb")


def test_predicate_renders_long_and_rejects_deep_conditions() -> None:
    many = " or ".join(f"seats = {number}" for number in range(5_000))
    assert predicate(many, schema=SCHEMA, dialect="duckdb").count("OR") == 4_999
    with pytest.raises(InvalidSql):
        predicate("(" * 20_000 + "seats = 1" + ")" * 20_000, schema=SCHEMA, dialect="duckdb")


def test_predicate_for_duckdb_runs_in_duckdb() -> None:
    rows = duckdb.sql(
        "select 5.0::double as speed, 'a' as Zone, {'street': 'x'} as address, now() as at, 3::int as seats"
    )
    for text in (
        "address.street = 'x'",
        "seats % 2 = 1",
        "speed / 0 is null",
        "zone || 'b' = 'ab'",
    ):
        condition = predicate(text, schema=SCHEMA, dialect="duckdb")
        assert rows.filter(condition).count("*").fetchall() == [(1,)]


_WORDS = ["speed", "zone", "at", "seats", "address", ".", "street", "(", ")", ",", "and", "or", "not", "=", "<",
          "+", "-", "/", "%", "||", "null", "is", "in", "like", "between", "case", "when", "then", "end", "1", "0.5",
          "'a'", "'2020-01-01'", "interval", "day", "now()", "::", "bigint", "[", "]", "{", "}", "select", "from",
          "lateral", "read_text", "*", "$x", "?", ";", "\\", "\x00", "é", '"', "`", "date_trunc", "left"]  # fmt: skip


@settings(max_examples=75, deadline=None)
@given(st.lists(st.sampled_from(_WORDS), max_size=12))
def test_predicate_any_text_is_rendered_or_raises(words: list[str]) -> None:
    text = " ".join(words)
    try:
        actual = predicate(fix_clock(text, now=NOW), schema=SCHEMA, dialect="duckdb")
    except InvalidSql:
        return
    assert "read_text" not in actual


def test_conditions_page_lists_every_function() -> None:
    page = pathlib.Path(__file__).parents[2] / "docs" / "how-to" / "conditions.md"
    text = page.read_text(encoding="utf-8")
    missing = [
        name for name in {*FUNCTIONS, *SAME_KIND_FUNCTIONS, *ALIASES} if f"`{name}`" not in text
    ]
    assert missing == []


def test_quote_escapes_identifiers_for_each_dialect() -> None:
    assert quote('a"b') == '"a""b"'
    assert quote("a`b", dialect="spark") == "`a``b`"
