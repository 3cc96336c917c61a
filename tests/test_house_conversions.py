"""Typed Arrow values are made by ``featurestore.arrow.values`` alone.

``pa.scalar(value, type)`` and ``pa.array(values, type)`` truncate Python values (1.7 to 1, a time
to its date, a number to a time near 1970), and ``array.cast(type)`` rounds floats and decimals and
drops the time of day. Every call outside of the conversion is one of three: Arrow refuses what does
not fit its type, the argument is a constant, or it is an exception below, with its reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The modules of the conversion itself.
CONVERSION = {
    f"featurestore/arrow/{name}.py"
    for name in (
        "casts",
        "cell_casts",
        "cells",
        "columns",
        "conversions",
        "exact_casts",
        "json_columns",
        "text_values",
        "values",
    )
}
# Python values that Arrow does not truncate to these types: it refuses others.
STRICT_TYPES = {"bool_", "string", "large_string", "binary", "large_binary"}
# Casts to these types are exact, or errors, by Arrow's default of ``safe=True``.
SAFE_TARGETS = {
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("string", "large_string", "binary", "large_binary", "timestamp"),
}
# Constants of the library that are Arrow types.
TYPE_CONSTANTS = {"TIMESTAMP": "timestamp"}
# Casts of SQL expressions, tensors and memory, which are no Arrow values.
OTHER_RECEIVERS = {"ctypes", "exp", "ops", "tf", "self._tf", "self.tf", "library", "sa", "typing"}

POSITIONS = "row positions, counts and offsets, which the module computes as integers"
CLOCK = "microseconds since 1970, which the module computes as integers"
DECLARED = "values that a file or table returned in this type, or one that it widens to"
RESULTS = "results, which the module computes in this type"
NULLS = "a null, or rows that are checked against the type before"
EXCEPTIONS = {
    "featurestore/arrow/spark_frames.py::with_arrow_types": "the text of a Spark column",
    "featurestore/arrow/repeated_columns.py::_to_numbers": "numbers are correlated as the nearest doubles",
    "featurestore/delta/erasure.py::_checkpoint_bytes": "values of a checkpoint of the same schema",
    "featurestore/aggregates/arrays.py::decimal_words": "decimals of fewer digits, same scale",
    "featurestore/aggregates/arrays.py::decode_ordered": "the inverse of encode_ordered",
    "featurestore/aggregates/arrays.py::encode_ordered": "floats of 16, 32 or 64 bits to doubles",
    "featurestore/aggregates/arrays.py::normalize_floats": "floats to doubles, and back",
    "featurestore/aggregates/arrays.py::to_masked_array": RESULTS,
    "featurestore/aggregates/counts.py::_count": POSITIONS,
    "featurestore/aggregates/counts.py::_count_distinct": POSITIONS,
    "featurestore/aggregates/incremental.py::IncrementalGroup._states": POSITIONS,
    "featurestore/aggregates/sums.py::_column_doubles.compute": (
        "means are doubles, and integers beyond 2**53 are rounded to the nearest"
    ),
    "featurestore/aggregates/window_side.py::WindowFeatures._add_features": RESULTS,
    "featurestore/arrow/batches.py::_matrix_to_lists": "a matrix of this type of number",
    "featurestore/arrow/json_rows.py::_map_values": "texts and bytes of base64",
    "featurestore/arrow/json_rows.py::rows_from_json": "JSON that the export wrote for values",
    "featurestore/arrow/spark_frames.py::open_frame.read_batches": DECLARED,
    "featurestore/experiments/models/dataframes.py::_cast_polars": (
        "columns of models, whose dtypes are those of the training"
    ),
    "featurestore/experiments/models/recorded_inputs.py::first_rows": POSITIONS,
    "featurestore/experiments/models/spark_pipelines.py::_fill_nulls": (
        "a fill of the type of the column, whose nulls it replaces"
    ),
    "featurestore/experiments/models/spark_pipelines.py::score_rows": POSITIONS,
    "featurestore/featuregroups/checks.py::MinimumTime.update": "times to their own integers",
    "featurestore/featuregroups/log_order.py::find_replaced_rows": POSITIONS,
    "featurestore/featuregroups/record_queries.py::_TimeRangeAccumulator.update": DECLARED,
    "featurestore/featuregroups/record_queries.py::_time_literal": CLOCK,
    "featurestore/featuregroups/records.py::_AddReason.__call__": "lists of one constant text",
    "featurestore/featuregroups/records.py::_stage_keys": DECLARED,
    "featurestore/featuregroups/records.py::positions_of_ranges": POSITIONS,
    "featurestore/featuregroups/schema_change.py::_required_decimal_places": (
        "Arrow refuses to drop digits of decimals, which is what is asked here"
    ),
    "featurestore/featuregroups/table.py::list_partitions": "texts of the table log to their type",
    "featurestore/hashing/values.py::_decimal_words": "Arrow refuses to drop digits of decimals",
    "featurestore/model/times.py::to_python_values": "times of a pandas column to their integers",
    "featurestore/readers/columns.py::_flatten_items": "dates of a file to their own integers",
    "featurestore/readers/ray.py::_to_arrow": POSITIONS,
    "featurestore/retrieval/conversions.py::_to_float_array": "booleans with nulls to 0, 1 and NaN",
    "featurestore/retrieval/label_samples.py::run_over_labels": POSITIONS,
    "featurestore/retrieval/label_samples.py::EligibleRows.find_values": POSITIONS,
    "featurestore/retrieval/window_rows.py::matching_rows": POSITIONS,
    "featurestore/retrieval/window_search.py::window_values": RESULTS,
    "featurestore/server/rows.py::stream_chunks": POSITIONS,
    "featurestore/server/uploads.py::_decode": "dictionaries to the type of their values",
    "featurestore/serving/columns.py::FixedColumn.to_numpy": "the constant 0 below nulls",
    "featurestore/serving/columns.py::_time_converter": "the constant 0, which is 1970",
    "featurestore/serving/incremental.py::ChangeWriter._write_retrieved": CLOCK,
    "featurestore/serving/rows.py::LaterRows.__call__": CLOCK,
    "featurestore/serving/value_reads.py::_variable_array": DECLARED,
    "featurestore/serving/vectors.py::VectorForm._to_array": "values converted to this type before",
    "featurestore/sources/frame.py::SourceFrame.quarantine": "numbers of lines, and texts of the library",
    "featurestore/statistics/accumulator.py::_shorten_strings": "texts and bytes of the same column",
    "featurestore/statistics/values.py::_to_numbers": "decimals are summarized as the nearest doubles",
    "featurestore/streams/micro_batches.py::_to_quarantine_rows": "lists of texts of the library",
    "featurestore/transform/apply.py::TransformBatch._transform_column": RESULTS,
    "featurestore/validation/checks.py::RowCheck.failing": "a day for dates, an instant in UTC for timestamps",
    "featurestore/validation/quarantine.py::AddReasons.__call__": DECLARED,
    "connectors/featurestore_connectors/csv.py::_from_text": "texts that the export wrote for values",
    "connectors/featurestore_connectors/csv.py::_map_values": "texts and bytes of base64",
    "connectors/featurestore_connectors/sources/folders/sample_values.py::_decode_arrays": DECLARED,
    "connectors/featurestore_connectors/duckdb_delta/user_queries.py::RowExpressions._restore_times": (
        CLOCK
    ),
    "connectors/featurestore_connectors/kafka/consumer.py::_RecordBuffer.add": POSITIONS,
    "connectors/featurestore_connectors/kafka/consumer.py::_RecordBuffer.table": DECLARED,
    "connectors/featurestore_connectors/kafka/decoding.py::DebeziumValues.decode": (
        "texts of the operations, which are checked before"
    ),
    "connectors/featurestore_connectors/kafka/decoding.py::MessageDecoder._build_rows": POSITIONS,
    "connectors/featurestore_connectors/kafka/decoding.py::MessageDecoder._check_columns": POSITIONS,
    "connectors/featurestore_connectors/kafka/decoding.py::_event_times": CLOCK,
    "connectors/featurestore_connectors/kafka/record_values.py::convert_column": (
        "values that a decoder resolved to a reader's schema of these columns"
    ),
    "connectors/featurestore_connectors/sources/delta_table.py::DeltaSnapshot._widened_rows": (
        DECLARED
    ),
    "connectors/featurestore_connectors/sources/delta_table.py::DeltaSnapshot._window_filter": (
        "days of a polars column to their midnights"
    ),
    "connectors/featurestore_connectors/sources/postgres_partitions.py::_received_column": DECLARED,
    "connectors/featurestore_connectors/sources/sqlalchemy_rows.py::_array": DECLARED,
    "connectors/featurestore_connectors/sources/sqlalchemy_rows.py::_first_invalid": DECLARED,
    "connectors/featurestore_connectors/sources/sqlite.py::_parse_array": (
        "integers checked to be 0 or 1, and texts of days, which Arrow refuses with a time"
    ),
    "connectors/featurestore_connectors/sources/typed_columns.py::_storage_array": (
        "texts of exact numbers, of which Arrow refuses to drop digits"
    ),
    "connectors/featurestore_connectors/sources/warehouses.py::WarehouseSnapshot._window_parameters": (
        "times of a window, which are checked before"
    ),
    "connectors/featurestore_connectors/spark_delta/point_in_time.py::_join_as_of.stream": NULLS,
    "connectors/featurestore_connectors/spark_delta/point_in_time.py::_presort": POSITIONS,
    "connectors/featurestore_connectors/spark_delta/relations.py::cast_to": NULLS,
    "connectors/featurestore_connectors/spark_delta/rewrite.py::_find_affected": DECLARED,
    "connectors/featurestore_connectors/spark_delta/scan.py::plain_frame": (
        "texts of the table log to their type"
    ),
    "connectors/featurestore_connectors/spark_delta/shards.py::_decode_label": CLOCK,
    "connectors/featurestore_connectors/spark_delta/shards.py::repartition_by_shard": POSITIONS,
    "connectors/featurestore_connectors/spark_delta/sqltext.py::cast_to_features": (
        "naive times as UTC, and columns of nulls"
    ),
    "connectors/featurestore_connectors/spark_delta/sqltext.py::label_key": NULLS,
    "connectors/featurestore_connectors/spark_delta/staged.py::_repeated_candidates": POSITIONS,
    "connectors/featurestore_connectors/spark_delta/tasks.py::ShardsTask.__call__": POSITIONS,
    "connectors/featurestore_connectors/spark_delta/tasks.py::state_batch": POSITIONS,
    "connectors/featurestore_connectors/spark_delta/windows.py::_select_columns": NULLS,
    "connectors/featurestore_connectors/tfrecord/wire_columns.py::bytes_to_arrow": (
        "texts that the export wrote for decimals"
    ),
    "connectors/featurestore_connectors/tfrecord/wire_columns.py::to_arrow": DECLARED,
}


def calls(tree: ast.AST, scope: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of a tree, with the names of their enclosing functions and classes."""
    for node in ast.iter_child_nodes(tree):
        inner = scope
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = (*scope, node.name)
        if isinstance(node, ast.Call):
            yield ".".join(scope), node
        yield from calls(node, inner)


def is_constant(node: ast.AST) -> bool:
    if isinstance(node, ast.List | ast.Tuple):
        return all(map(is_constant, node.elts))
    if isinstance(node, ast.BinOp):
        return is_constant(node.left) and is_constant(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_constant(node.operand)
    return isinstance(node, ast.Constant)


def type_name(node: ast.AST | None) -> str | None:
    """Return the name of an Arrow type that is spelled out, and None for an expression."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("pa."):
        return ast.unparse(node.func).removeprefix("pa.")
    if isinstance(node, ast.Name):
        return TYPE_CONSTANTS.get(node.id)
    return None


def may_change_values(call: ast.Call) -> bool:
    """Return whether a call may convert values to others without an error."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    safe = keywords.get("safe")
    if isinstance(safe, ast.Constant) and safe.value is False:
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    name, receiver = call.func.attr, ast.unparse(call.func.value)
    if receiver == "pa" and name in ("scalar", "array"):
        kind = call.args[1] if len(call.args) > 1 else keywords.get("type")
        is_typed = kind is not None and bool(call.args) and not is_constant(call.args[0])
        return is_typed and type_name(kind) not in STRICT_TYPES
    if name in ("from_pylist", "from_pydict"):
        return (len(call.args) > 1 or "schema" in keywords) and not is_constant(call.args[0])
    if name != "cast" or receiver in OTHER_RECEIVERS:
        return False
    target = call.args[1] if receiver == "pc" else call.args[0]
    is_memory = isinstance(target, ast.Constant) and target.value == "B"
    return not is_memory and type_name(target) not in SAFE_TARGETS


def test_values_are_converted_exactly_or_by_a_named_exception() -> None:
    actual = {}
    for package in ("featurestore", "connectors"):
        for path in sorted((ROOT / package).rglob("*.py")):
            module = path.relative_to(ROOT).as_posix()
            if module in CONVERSION or "testing" in path.parts:
                continue
            for scope, call in calls(ast.parse(path.read_text(encoding="utf-8"))):
                if may_change_values(call):
                    actual[f"{module}::{scope}"] = f"{module}:{call.lineno}"
    # A new call uses to_array, to_scalar, to_value or cast_column.
    assert {scope: line for scope, line in actual.items() if scope not in EXCEPTIONS} == {}
    assert sorted(EXCEPTIONS.keys() - actual.keys()) == []


def test_rule_recognizes_calls_that_change_values() -> None:
    changing = [
        "pa.scalar(value, pa.int64())",
        "pa.array(values, type=kind)",
        "pa.array([1.5, value], pa.int8())",
        "column.cast(pa.float32())",
        "column.cast(field.type)",
        "pc.cast(column, pa.date32())",
        "column.cast(pa.int8(), safe=False)",
        "pa.Table.from_pylist(rows, schema=schema)",
    ]
    exact = [
        "pa.scalar(0, pa.int64())",
        "pa.array(values)",
        "pa.array(names, pa.string())",
        "column.cast(pa.int8())",
        "pc.cast(column, TIMESTAMP)",
        "memoryview(data).cast('B')",
        "exp.cast(value, 'double')",
        "to_array(values, kind)",
    ]
    for texts, expected in ((changing, True), (exact, False)):
        for text in texts:
            (call,) = [call for _, call in calls(ast.parse(text)) if ast.unparse(call) == text]
            assert may_change_values(call) is expected, text
