"""JSON values, parsed in batches with an error for each record.

The parser is that of JSON files (``arrow.json_columns``). Names that are not in the schema are
ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.column_names import check_feature_names
from featurestore.arrow.json_columns import JsonColumns
from featurestore.arrow.text_values import TextRules
from featurestore.errors import InvalidJob
from featurestore_connectors.kafka.values import Decoded, as_texts


@dataclass(frozen=True)
class JsonValues:
    """Decodes JSON objects to the columns of a schema."""

    schema: pa.Schema

    def __post_init__(self) -> None:
        check_fields(self.schema)

    def decode(self, values: pa.Array) -> Decoded:
        texts, broken = as_texts(values)
        parser = JsonColumns(self.schema, rules=TextRules(declared=True))
        columns, reasons = parser.decode(texts)
        errors = pc.if_else(
            pc.is_null(texts), "the record has no value", pa.array(reasons, pa.string())
        )
        return Decoded(columns, pc.if_else(broken, "the value is not UTF-8 text", errors))


def check_fields(fields: Iterable[pa.Field], prefix: str = "") -> None:
    """Refuse columns of types that JSON cannot represent without loss.

    Raises:
        InvalidJob: A column has such a type.
    """
    fields = list(fields)
    if prefix:  # top-level columns may be renamed
        check_feature_names([field.name for field in fields])
    for field in fields:
        kind, path = field.type, f"{prefix}{field.name}"
        while pat.is_list(kind) or pat.is_fixed_size_list(kind):
            kind = kind.value_type
        if pat.is_struct(kind):
            check_fields([kind.field(n) for n in range(kind.num_fields)], f"{path}.")
        elif not _is_representable(kind):
            name = path.split(".")[0]
            raise InvalidJob(
                f"Column {path!r} of type {kind} cannot be read from JSON without loss.",
                hint=f'"{name}": "string", or "double"; format="avro" supports more types',
            )


def _is_representable(kind: pa.DataType) -> bool:
    is_number = pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind)
    is_time = pat.is_timestamp(kind) or pat.is_date(kind)
    return bool(is_number or is_time or pat.is_boolean(kind) or pat.is_string(kind))
