"""Tables of JSON files: the names of their objects, typed by all their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from featurestore.arrow.json_columns import JsonColumns
from featurestore.arrow.types import is_nested
from featurestore.errors import FeatureStoreError
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import BadRow
from featurestore_connectors.sources.folders.bad_rows import BadRows, unreadable
from featurestore_connectors.sources.folders.json_objects import (
    JsonObjects,
    objects_of_document,
    objects_of_lines,
    texts_of_lines,
)
from featurestore_connectors.sources.folders.listing import FolderFile
from featurestore_connectors.sources.folders.scan import JsonScan
from featurestore_connectors.sources.folders.schema import (
    Column,
    TableSchema,
    check_declared,
    rules_of,
)
from featurestore_connectors.sources.folders.tables import FolderTable, without_rows


class JsonTable(FolderTable):
    """Files of JSON: an object on each line, or documents."""

    def dialect(self) -> Mapping[str, object]:
        return {"format": self.folder_files.format, "encoding": "utf-8"}

    def columns(self) -> list[Column]:
        bad_rows = BadRows(self.table, self.options.on_bad_rows == "quarantine")
        scan = JsonScan(self.options.rules(""))
        rules = {name: self.options.rules(name) for name in self.options.date_format}
        rules |= {name: self.options.rules(name) for name in self.options.timestamp_format}
        names: dict[str, None] = {}
        count = 0
        for file in self.folder_files.files:
            for batch in self._objects(file, exact=False):
                good = self._without_bad(file, batch, bad_rows)
                count += len(good.objects)
                for members in good.objects:
                    if not members.keys() <= names.keys():
                        names |= dict.fromkeys(members)
                scan.update_members(
                    [self._undeclared(members) for members in good.objects],
                    good.lines,
                    file.name,
                    rules,
                )
        if count:
            check_declared([*names, *self.folder_files.partitions], self.table, self.options)
        columns = []
        for name in names or self.options.dtypes:
            if name in self.options.dtypes:
                columns.append(Column(name, self.options.dtypes[name], is_declared=True))
            else:
                member = scan.members[name]
                kind = member.kind(self.table, name, name)
                columns.append(Column(name, kind, member.meaning))
        if not columns:
            raise self.table.refusal(
                f"{self.folder_files.files[0].name} has no objects: its columns are not known.",
                hint=f"{self.table.call(dtypes={'id': 'int64'})} declares them",
            )
        return columns

    def rows(
        self,
        file: FolderFile,
        schema: TableSchema,
        columns: Sequence[Column],
        *,
        window: TimeRange | None,
        bad_rows: BadRows,
    ) -> Iterator[pa.RecordBatch]:
        in_files = schema.in_files
        table_schema = pa.schema([(column.name, column.kind) for column in in_files])
        declared = frozenset(each.name for each in in_files if each.is_declared and _has_text(each))
        parser = JsonColumns(
            table_schema,
            texts_of_values=declared,
            only_known=True,
            rules=self.options.rules(""),
            rules_of={column.name: rules_of(column, self.options) for column in in_files},
        )
        for batch, arrays, wrong in self._parsed(file, parser):
            for row in sorted(wrong):
                self._report(file, batch, row, wrong[row], bad_rows)
            column_arrays = [arrays[column.name] for column in columns] or [
                pa.nulls(len(batch.lines))
            ]
            names = [column.name for column in columns] or [""]
            yield without_rows(pa.RecordBatch.from_arrays(column_arrays, names), list(wrong))

    def _parsed(
        self, file: FolderFile, parser: JsonColumns
    ) -> Iterator[tuple[JsonObjects, dict[str, pa.Array], dict[int, str]]]:
        """Yield objects, their columns, and by row why one does not fit."""
        if self.folder_files.format == "json":
            for batch in self._objects(file, exact=parser.is_exact):
                arrays, reasons = parser.convert(batch.objects)
                yield batch, arrays, reasons
            return
        for batch in self._readable(file, texts_of_lines(file, self.table)):
            arrays, why = parser.decode(batch.texts)
            wrong = {row: reason for row, reason in enumerate(why) if reason is not None}
            for row, reason in enumerate(batch.reasons):
                if reason is not None:
                    wrong[row] = reason
            yield batch, arrays, wrong

    def _objects(self, file: FolderFile, *, exact: bool) -> Iterator[JsonObjects]:
        read = objects_of_document if self.folder_files.format == "json" else objects_of_lines
        yield from self._readable(file, read(file, self.table, exact=exact))

    def _readable(self, file: FolderFile, batches: Iterator[JsonObjects]) -> Iterator[JsonObjects]:
        try:
            yield from batches
        except FeatureStoreError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise unreadable(file, self.table, error) from error

    def _without_bad(self, file: FolderFile, batch: JsonObjects, bad_rows: BadRows) -> JsonObjects:
        """Return the objects of a batch without the lines that are not objects."""
        if not any(batch.reasons):
            return batch
        good = JsonObjects([], [], [], [])
        for row, reason in enumerate(batch.reasons):
            if reason is None:
                good.objects.append(batch.objects[row])
                good.lines.append(batch.lines[row])
            else:
                self._report(file, batch, row, reason, bad_rows)
        return good

    def _report(
        self, file: FolderFile, batch: JsonObjects, row: int, reason: str, bad_rows: BadRows
    ) -> None:
        hint = None
        if reason.endswith("nanoseconds"):
            hint = f"{self.table.call(timestamp_precision='us')} rounds them"
        elif reason.startswith("the value is") and file.ending == ".json":
            hint = f"{self.table.call(format='json')} reads documents of several lines, and arrays"
        bad_rows.add(BadRow(file.name, batch.lines[row], None, reason, batch.texts[row]), hint=hint)

    def _undeclared(self, members: dict[str, object]) -> dict[str, object]:
        declared = self.options.dtypes
        if not declared:
            return members
        return {name: value for name, value in members.items() if name not in declared}


def _has_text(column: Column) -> bool:
    return bool(pa.types.is_string(column.kind)) or is_nested(column.kind)
