"""Read any version of a Lance dataset with the library of Lance (``pylance``).

The files of a dataset are below its folder. A dataset that names other folders (a shallow clone), or
files by addresses (blobs), is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.arrow.types import feature_type
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    SourceError,
    SourceTableNotFound,
    missing_extra,
)
from featurestore.model.paths import is_relative_path
from featurestore.model.times import to_micros
from featurestore.plugins.source import Source, SourceConfig, SourceQuery, SourceSnapshot
from featurestore_connectors.sources import locations, typed_columns
from featurestore_connectors.sources.drivers import to_single_line
from featurestore_connectors.sources.typed_columns import SingleTable, SourceColumn

_BATCH_ROWS = 8192
_BUFFER_BYTES = 256 << 20


class LanceSource:
    """One local Lance dataset: ``lance+/path/to/dataset``."""

    def __init__(self, config: SourceConfig) -> None:
        if config.options or config.secret is not None:
            raise InvalidArgument(
                f"Source {config.name!r}: a Lance dataset has no options and no secret.",
                hint="only local and mounted paths are supported: uri='lance+/data/images.lance'",
            )
        self._config = config
        self._path = locations.local_path(config, prefix="lance")

    def snapshot(self, at: int | datetime | None = None) -> LanceSnapshot:
        """Open the latest version, or the version with number or time ``at``."""
        with locations.storage_errors(self._config):
            locations.require_existing(self._config, self._path)
            # Refuses links to files outside of the folder.
            locations.list_files(self._path)
        return LanceSnapshot(self._config, self._path, at)


class LanceSnapshot(SingleTable):
    """An immutable version of a dataset."""

    def __init__(
        self, config: SourceConfig, path: str, version_or_time: int | datetime | None
    ) -> None:
        try:
            import lance
        except ImportError as error:
            raise missing_extra("pylance", "lance") from error
        self._config, self._path = config, path
        try:
            self._dataset = lance.dataset(path)
            version = self._version_at(version_or_time)
            if version is not None:
                self._dataset = self._dataset.checkout_version(version)
        except FeatureStoreError:
            raise
        except Exception as error:  # the errors of the library have no class of their own
            raise self._convert_error(error) from error
        self._check_files()
        self.identity = f"version {self._dataset.version}"
        self.server = f"Lance dataset {path}, read by pylance {lance.__version__}"

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        columns = typed_columns.select_columns(self._columns(query), query)
        schema = typed_columns.schema_of(columns)
        names = list(dict.fromkeys(schema.names))
        if query.window is not None and query.window.column not in names:
            names.append(query.window.column)
        batches = typed_columns.cast_batches(self._batches(query, names), schema, has_sql=False)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def close(self) -> None:
        """Do nothing: the library closes its files."""

    def _columns(self, query: SourceQuery) -> list[SourceColumn]:
        if query.table is not None or query.sql is not None or query.path is not None:
            raise typed_columns.invalid_query_error(
                "a Lance source", query, hint="the source is a single dataset; at=3 reads version 3"
            )
        columns = []
        for field in self._dataset.schema:
            is_blob = any(b"blob" in key + value for key, value in (field.metadata or {}).items())
            dtype = None if is_blob else feature_type(field.type)
            native = "a blob" if is_blob else str(field.type)
            columns.append(SourceColumn(field.name, field.name, dtype, native))
        return columns

    def _batches(self, query: SourceQuery, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the window in order, with these columns."""
        try:
            scanner = self._dataset.scanner(
                columns=names,
                batch_size=_BATCH_ROWS,
                batch_readahead=2,
                io_buffer_size=_BUFFER_BYTES,
                scan_in_order=True,
            )
            for batch in scanner.to_batches():
                # The library trusts the offsets and texts in its files.
                batch.validate(full=True)
                if query.window is not None:
                    batch = batch.filter(query.window.contains(batch.column(query.window.column)))
                yield batch
        except FeatureStoreError:
            raise
        except Exception as error:  # as above
            raise self._convert_error(error) from error

    def _version_at(self, version_or_time: int | datetime | None) -> int | None:
        if not isinstance(version_or_time, datetime):
            return version_or_time
        # Times of versions are in the time zone of the machine.
        versions: list[Mapping[str, Any]] = self._dataset.versions()
        matches = [
            version["version"]
            for version in versions
            if to_micros(version["timestamp"].astimezone()) <= to_micros(version_or_time)
        ]
        if not matches:
            raise SourceTableNotFound(
                f"Source {self._config.name!r} has no version at {version_or_time}.",
                hint=f"at={versions[0]['version']} reads its first version",
            )
        return int(max(matches))

    def _check_files(self) -> None:
        """Refuse a dataset whose files are outside of its folder."""
        outside = [str(base) for base in self._dataset.base_paths().values()]
        for fragment in self._dataset.get_fragments():
            outside += [
                file.path for file in fragment.data_files() if not is_relative_path(file.path)
            ]
        if outside:
            raise SourceError(
                f"Source {self._config.name!r}: the dataset has files outside of its folder: "
                f"{outside[0]}.",
                hint="copy the dataset: lance.write_dataset(lance.dataset(path).to_batches(), new_path)",
            )

    def _convert_error(self, error: Exception) -> SourceError | SourceTableNotFound:
        reason = to_single_line(str(error), None)
        subject = f"Source {self._config.name!r}: {self._path}"
        if "not found" in reason.lower():
            return SourceTableNotFound(
                f"{subject} is not a Lance dataset, or lacks the version or a file: {reason}"
            )
        return SourceError(f"{subject} cannot be read: {reason}")


if TYPE_CHECKING:
    _contract: type[Source] = LanceSource
    _snapshot: type[SourceSnapshot] = LanceSnapshot
