"""The storage in a bucket: S3, and the other object stores that obstore knows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from featurestore.errors import StorageError, missing_extra
from featurestore.storage import attempts
from featurestore.storage.attempts import repeated
from featurestore.storage.failures import reading
from featurestore.storage.interface import StoredObject, Writer
from featurestore.storage.location import check_name, without_owner
from featurestore.storage.settings import SECRET, TOKEN, USER, s3_settings
from featurestore.storage.targets import bytes_of, fill

if TYPE_CHECKING:
    from featurestore.storage.interface import Storage

# Ranges that lie closer together come in one request.
_COALESCED_BYTES = 1 << 20
# Beyond this, what is written waits on disk and not in memory.
_IN_MEMORY_BYTES = 8 << 20
_PART_BYTES = 8 << 20
_LISTED_AT_ONCE = 1000
# The library repeats a request a few times by itself; all calls here are tried again besides.
_RETRIES = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2)},
}


class ObjectStorage:
    """Objects of a bucket.

    Args:
        root: The URI of the bucket, such as "s3://models", with its owner where it has one.
        options: Settings as ``storage_options=`` gives them; else those of the environment.
    """

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        self.root = root
        self._store = _opened(without_owner(root), options)

    def read(self, name: str) -> bytes:
        from obstore import get

        def call() -> bytes:
            return bytes(get(self._store, name).bytes())

        return repeated("read", self._place(name), call)

    def ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        from obstore import get_ranges

        place = self._place(name)
        starts, lengths = [], []
        for start, length in ranges:
            if length > 0:
                starts.append(start)
                lengths.append(length)

        def call() -> list[Any]:
            with _ends_before(place):
                return get_ranges(
                    self._store,
                    name,
                    starts=starts,
                    lengths=lengths,
                    coalesce=_COALESCED_BYTES,
                )

        found = [bytes(each) for each in repeated("read", place, call)] if starts else []
        if [len(each) for each in found] != lengths:
            raise _ends(place)
        parts = iter(found)
        return [next(parts) if length > 0 else b"" for _, length in ranges]

    def read_into(self, name: str, start: int, targets: Sequence[memoryview]) -> None:
        from obstore import get

        place = self._place(name)
        end = start + bytes_of(targets)

        def call() -> None:
            with _ends_before(place):
                answer = get(self._store, name, options={"range": (start, end)})
                if not fill(targets, answer.stream(min_chunk_size=1)):
                    raise _ends(place)

        repeated("read", place, call)

    def put(self, name: str, data: bytes) -> None:
        from obstore import put

        place = self._place(name)
        self._write(place, partial(put, self._store, name, data, use_multipart=False))

    def put_new(self, name: str, data: bytes) -> None:
        from obstore import put
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        place = self._place(name)
        for attempt in range(1, attempts.ATTEMPTS + 1):
            try:
                put(self._store, name, data, mode="create", use_multipart=False)
                return
            except (AlreadyExistsError, PreconditionError):
                # The answer to an earlier request of this call may have been lost on the way.
                if self._is_there(name, data):
                    return
                raise FileExistsError(f"There is {place!r} already.") from None
            except attempts.request_errors() as error:
                # Done or not, nobody knows. Sent again it finds its own bytes.
                if attempt == attempts.ATTEMPTS or not attempts.passes(error):
                    raise attempts.failure("write", place, error) from None
            attempts.pause(attempt)

    @contextmanager
    def writer(self, name: str) -> Iterator[Writer]:
        check_name(name)
        # Kept until it is whole: a stream cannot be sent again when the connection breaks.
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as file:
            yield file
            self._send(name, file)

    def upload(self, name: str, path: str) -> None:
        with reading(path), open(path, "rb") as file:
            self._send(name, file)

    def copy(self, source: str, target: str) -> None:
        from obstore import copy

        place = self._place(source)
        repeated("copy", place, partial(copy, self._store, source, check_name(target)))

    def children(self, folder: str) -> list[str]:
        from obstore import list_with_delimiter

        call = partial(list_with_delimiter, self._store, folder or None)
        found: Any = repeated("list", self._folder(folder), call)
        names = set()
        for path in found["common_prefixes"]:
            names.add(path.rpartition("/")[2])
        for each in found["objects"]:
            names.add(each["path"].rpartition("/")[2])
        return sorted(names)

    def find(self, name: str) -> StoredObject | None:
        from obstore import head

        try:
            found = repeated("find", self._place(name), partial(head, self._store, name))
        except FileNotFoundError:
            return None
        return _stored(found)

    def remove(self, name: str) -> bool:
        was_there = self.find(name) is not None
        if was_there:
            self._delete([name])
        return was_there

    def remove_below(self, folder: str) -> int:
        removed = 0
        names: list[str] = []
        for found in self.list(check_name(folder)):
            names.append(found.name)
            if len(names) == _LISTED_AT_ONCE:
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
        place = self._folder(folder)
        last = after
        for attempt in range(1, attempts.ATTEMPTS + 1):
            try:
                for found in self._listed(folder, last):
                    yield found
                    last = found.name
                return
            except attempts.request_errors() as error:
                if attempt == attempts.ATTEMPTS or not attempts.passes(error):
                    raise attempts.failure("list", place, error) from None
            attempts.pause(attempt)

    def _place(self, name: str) -> str:
        return f"{without_owner(self.root)}/{check_name(name)}"

    def _folder(self, folder: str) -> str:
        return self._place(folder) if folder else without_owner(self.root)

    def _send(self, name: str, file: IO[bytes]) -> None:
        from obstore import put

        place = self._place(name)

        def call() -> object:
            file.seek(0)
            return put(self._store, name, file, chunk_size=_PART_BYTES)

        self._write(place, call)

    def _write(self, place: str, call: Callable[[], object]) -> None:
        try:
            repeated("write", place, call)
        except FileNotFoundError as error:
            raise StorageError(
                f"Cannot write {place!r}: there is no such bucket.",
                hint="make the bucket, or check its name",
            ) from error

    def _is_there(self, name: str, data: bytes) -> bool:
        try:
            return self.read(name) == data
        except FileNotFoundError:
            return False

    def _listed(self, folder: str, after: str) -> Iterator[StoredObject]:
        import obstore

        listed = obstore.list(
            self._store,
            folder or None,
            offset=after or None,
            chunk_size=_LISTED_AT_ONCE,
        )
        for chunk in listed:
            for each in chunk:
                yield _stored(each)

    def _delete(self, names: Sequence[str]) -> None:
        from obstore import delete

        try:
            repeated("remove", self._place(names[0]), partial(delete, self._store, list(names)))
        except FileNotFoundError:
            return  # some storages say so; what matters is that it is gone


def _opened(root: str, options: Mapping[str, str]) -> Any:
    try:
        from obstore import store
    except ModuleNotFoundError as error:
        raise missing_extra("obstore", "s3") from error
    from_url: Any = store.from_url  # its types want each setting by name
    if not root.startswith("s3://"):
        return from_url(root, config=dict(options), retry_config=_RETRIES)
    settings = s3_settings(options)
    given = dict(settings.store)
    own: dict[str, Any] = {}
    if USER in given and SECRET in given and TOKEN not in given and TOKEN.upper() in os.environ:
        # The library would add the token of the environment, which belongs to other credentials.
        pair = {"access_key_id": given.pop(USER), "secret_access_key": given.pop(SECRET)}
        own["credential_provider"] = lambda: {**pair, "expires_at": None}
    return from_url(
        root,
        config=given,
        client_options=dict(settings.client),
        retry_config=_RETRIES,
        **own,
    )


def _stored(found: Mapping[str, Any]) -> StoredObject:
    tag = found["e_tag"] or found["version"] or str(found["last_modified"])
    return StoredObject(found["path"], found["size"], found["last_modified"], tag)


@contextmanager
def _ends_before(place: str) -> Iterator[None]:
    """Say of the library's panic that the object is shorter than what was asked of it."""
    try:
        yield
    except BaseException as error:
        # It is no Exception, and its class has no public name.
        if type(error).__name__ == "PanicException":
            raise _ends(place) from None
        raise


def _ends(place: str) -> StorageError:
    return StorageError(f"Cannot read {place!r}: it ends before the bytes that were asked for.")


if TYPE_CHECKING:
    _contract: type[Storage] = ObjectStorage
