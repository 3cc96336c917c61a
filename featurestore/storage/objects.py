"""Objects in a bucket on S3 or another object store that obstore supports."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from featurestore.errors import ConfigurationError, StorageError, missing_extra
from featurestore.storage import failures
from featurestore.storage.failures import translate_read_errors, with_retries
from featurestore.storage.interface import StoredObject, Writer, fill, total_bytes
from featurestore.storage.location import check_name, remove_owner, scheme_of
from featurestore.storage.settings import (
    GOOGLE_TOKEN,
    SECRET,
    TOKEN,
    USER,
    store_settings,
)

if TYPE_CHECKING:
    from featurestore.storage.interface import ObjectStore

# Ranges with smaller gaps are fetched in one request.
_COALESCED_BYTES = 1 << 20
# Larger objects are buffered on disk, not in memory, before they are uploaded.
_IN_MEMORY_BYTES = 8 << 20
_PART_BYTES = 8 << 20
_LIST_PAGE = 1000
# Retries are done by this module instead of obstore, since obstore retries neither conditional puts
# nor removals after a lost response.
_NO_RETRIES = {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}
# Parts of large uploads are an exception: only obstore can retry a part instead of the entire
# upload.
_PART_RETRIES = {
    "max_retries": failures.ATTEMPTS - 1,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2)},
}


class ObjectStorage:
    """Objects in a bucket.

    Args:
        root: The URI of the bucket, such as "s3://models", including the owner if it has one.
        options: The ``storage_options=``; missing settings are read from the environment.
    """

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        self.root = root
        self._store = _connect(remove_owner(root), options, _NO_RETRIES)
        self._part_store = _connect(remove_owner(root), options, _PART_RETRIES)

    def read(self, name: str) -> bytes:
        from obstore import get

        def call() -> bytes:
            return bytes(get(self._store, name).bytes())

        return with_retries("read", self._uri(name), call)

    def ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        from obstore import get_ranges

        uri = self._uri(name)
        # obstore refuses empty ranges.
        starts = [start for start, length in ranges if length > 0]
        lengths = [length for _, length in ranges if length > 0]

        def call() -> list[Any]:
            with _translate_range_errors(uri):
                return get_ranges(
                    self._store,
                    name,
                    starts=starts,
                    lengths=lengths,
                    coalesce=_COALESCED_BYTES,
                )

        fetched = [bytes(content) for content in with_retries("read", uri, call)] if starts else []
        # A server may return fewer bytes than requested if the object is shorter.
        if [len(content) for content in fetched] != lengths:
            raise _object_too_short_error(uri)
        remaining = iter(fetched)
        return [next(remaining) if length > 0 else b"" for _, length in ranges]

    def read_into(self, name: str, start: int, buffers: Sequence[memoryview]) -> None:
        from obstore import get

        uri = self._uri(name)
        end = start + total_bytes(buffers)

        def call() -> None:
            with _translate_range_errors(uri):
                # Streamed into the caller's buffers: a response of its own would need the memory
                # twice.
                response = get(self._store, name, options={"range": (start, end)})
                if not fill(buffers, response.stream(min_chunk_size=1)):
                    raise _object_too_short_error(uri)

        with_retries("read", uri, call)

    def put(self, name: str, data: bytes) -> None:
        from obstore import put

        uri = self._uri(name)
        self._write(uri, partial(put, self._store, name, data, use_multipart=False))

    def put_new(self, name: str, data: bytes) -> None:
        from obstore import put
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        uri = self._uri(name)
        for attempt in range(1, failures.ATTEMPTS + 1):
            try:
                put(self._store, name, data, mode="create", use_multipart=False)
                return
            except (AlreadyExistsError, PreconditionError):
                # The response to an earlier request in this call may have been lost.
                if self._has_content(name, data):
                    return
                raise FileExistsError(f"{uri!r} already exists.") from None
            except failures.request_errors() as error:
                # The object may already exist; then the next attempt finds its own bytes.
                if attempt == failures.ATTEMPTS or not failures.is_transient(error):
                    raise failures.to_storage_error("write", uri, error) from None
            failures.wait_before_retry(attempt)

    @contextmanager
    def writer(self, name: str) -> Iterator[Writer]:
        check_name(name)
        # The object is buffered until it is complete, since a stream cannot be sent again after a
        # broken connection.
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as file:
            yield file
            self._send(name, file)

    def upload(self, name: str, path: str) -> None:
        with translate_read_errors(path), open(path, "rb") as file:
            self._send(name, file)

    def copy(self, source: str, target: str) -> None:
        from obstore import copy

        uri = self._uri(source)
        with_retries("copy", uri, partial(copy, self._store, source, check_name(target)))

    def children(self, folder: str) -> list[str]:
        from obstore import list_with_delimiter

        call = partial(list_with_delimiter, self._store, folder or None)
        result: Any = with_retries("list", self._folder_uri(folder), call)
        paths = [*result["common_prefixes"], *(entry["path"] for entry in result["objects"])]
        return sorted({path.rpartition("/")[2] for path in paths})

    def find(self, name: str) -> StoredObject | None:
        from obstore import head

        try:
            metadata = with_retries("find", self._uri(name), partial(head, self._store, name))
        except FileNotFoundError:
            return None
        return _to_stored_object(metadata)

    def remove(self, name: str) -> bool:
        # S3 does not report whether a deleted object existed.
        exists = self.find(name) is not None
        if exists:
            self._delete([name])
        return exists

    def remove_below(self, folder: str) -> int:
        removed = 0
        names: list[str] = []
        for child in self.list(check_name(folder)):
            names.append(child.name)
            # S3 deletes at most 1,000 objects per request.
            if len(names) == _LIST_PAGE:
                self._delete(names)
                removed += len(names)
                names = []
        if names:
            self._delete(names)
        return removed + len(names)

    def remove_unfinished(self, folder: str, *, before: datetime) -> int:
        check_name(folder)
        return 0

    def list(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        uri = self._folder_uri(folder)
        last = after
        for attempt in range(1, failures.ATTEMPTS + 1):
            try:
                # After a failed page, the listing continues after the last object that was yielded.
                for child in self._list(folder, last):
                    yield child
                    last = child.name
                return
            except failures.request_errors() as error:
                if attempt == failures.ATTEMPTS or not failures.is_transient(error):
                    raise failures.to_storage_error("list", uri, error) from None
            failures.wait_before_retry(attempt)

    def _uri(self, name: str) -> str:
        return f"{remove_owner(self.root)}/{check_name(name)}"

    def _folder_uri(self, folder: str) -> str:
        return self._uri(folder) if folder else remove_owner(self.root)

    def _send(self, name: str, file: IO[bytes]) -> None:
        from obstore import put

        uri = self._uri(name)
        # One request for small objects; an upload in parts needs at least three.
        is_multipart = file.seek(0, os.SEEK_END) > _PART_BYTES
        store = self._part_store if is_multipart else self._store

        def call() -> object:
            # A retry sends the file from its start.
            file.seek(0)
            return put(store, name, file, chunk_size=_PART_BYTES, use_multipart=is_multipart)

        self._write(uri, call)

    def _write(self, uri: str, call: Callable[[], object]) -> None:
        try:
            with_retries("write", uri, call)
        except FileNotFoundError as error:
            raise StorageError(
                f"Cannot write {uri!r}: the bucket does not exist.",
                hint="create the bucket, or check its name",
            ) from error

    def _has_content(self, name: str, data: bytes) -> bool:
        try:
            return self.read(name) == data
        except FileNotFoundError:
            return False

    def _list(self, folder: str, after: str) -> Iterator[StoredObject]:
        import obstore

        pages = obstore.list(
            self._store,
            folder or None,
            offset=after or None,
            chunk_size=_LIST_PAGE,
        )
        for page in pages:
            for metadata in page:
                # Some servers of Azure ignore the offset, which was added to its protocol later.
                if metadata["path"] > after:
                    yield _to_stored_object(metadata)

    def _delete(self, names: Sequence[str]) -> None:
        from obstore import delete

        try:
            with_retries("remove", self._uri(names[0]), partial(delete, self._store, list(names)))
        except FileNotFoundError:
            return  # some servers report missing objects as errors


def _connect(root: str, options: Mapping[str, str], retries: Mapping[str, Any]) -> Any:
    """Return the obstore client of a bucket."""
    try:
        from obstore import store
    except ModuleNotFoundError as error:
        raise missing_extra("obstore", "s3") from error
    from obstore.exceptions import BaseError

    from_url: Any = store.from_url  # its type hints require each setting as a keyword
    settings = store_settings(scheme_of(root), options)
    config = dict(settings.store)
    provider: dict[str, Any] = {}
    if USER in config and SECRET in config and TOKEN not in config and TOKEN.upper() in os.environ:
        # obstore would add the session token in the environment, which belongs to other
        # credentials.
        pair = {"access_key_id": config.pop(USER), "secret_access_key": config.pop(SECRET)}
        provider["credential_provider"] = lambda: {**pair, "expires_at": None}
    if GOOGLE_TOKEN in config:
        token = config.pop(GOOGLE_TOKEN)
        provider["credential_provider"] = lambda: {"token": token, "expires_at": None}
    try:
        return from_url(
            root,
            config=config,
            client_options=dict(settings.client),
            retry_config=retries,
            **provider,
        )
    except BaseError as error:
        # The first line is the reason. The cause is not chained, since it may contain a secret.
        reason = str(error).splitlines()[0].partition("error: ")[2].rstrip(".")
        for value in (*config.values(), *settings.client.values()):
            reason = reason.replace(value, "***")
        raise ConfigurationError(
            f"The settings of {root!r} are invalid: {reason}.",
            hint="check storage_options= and the environment",
        ) from None


def _to_stored_object(metadata: Mapping[str, Any]) -> StoredObject:
    # Listings have fractions of a second that the headers of an object do not have.
    modified = metadata["last_modified"].replace(microsecond=0)
    # Entity tags are optional; the time is the last resort to detect a replaced object.
    tag = metadata["e_tag"] or metadata["version"] or str(modified)
    # Azure quotes the tag of an object, but not the tags in a listing.
    return StoredObject(metadata["path"], metadata["size"], modified, tag.strip('"'))


@contextmanager
def _translate_range_errors(uri: str) -> Iterator[None]:
    """Raise StorageError for an error or a panic in obstore if an object ends before a range."""
    try:
        yield
    except BaseException as error:
        # The panic is not an Exception, and its class is private. Without this check an error that
        # has no status would be retried like a broken connection.
        if type(error).__name__ == "PanicException" or "InvalidRange" in str(error):
            raise _object_too_short_error(uri) from None
        raise


def _object_too_short_error(uri: str) -> StorageError:
    return StorageError(f"Cannot read {uri!r}: the object ends before the requested bytes.")


if TYPE_CHECKING:
    _contract: type[ObjectStore] = ObjectStorage
