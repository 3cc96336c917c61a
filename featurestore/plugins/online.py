"""The interface of online stores: key-value stores that serve published feature vectors.

Online stores, including the built-in ones, are entry points of the group
``featurestore.online_stores``, named by the URI scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Protocol, runtime_checkable

from featurestore.errors import InvalidArgument, did_you_mean, listing
from featurestore.model.online_store import online_kind
from featurestore.plugins import find_plugin, load_plugin, plugin_names


@dataclass(frozen=True)
class OnlineConfig:
    """The arguments of an online store.

    ``secret`` is a function that returns the password, None if no secret is registered. The store
    calls it when it connects. The password must not appear in messages, reprs or errors. Only with
    ``uses_environment`` may the driver use credentials of the machine, such as a password file.
    """

    name: str
    uri: str
    secret: Callable[[], str] | None = field(default=None, repr=False)
    uses_environment: bool = False

    def with_resolved_secret(self) -> OnlineConfig:
        """Return a config that contains the password, for tasks on other machines.

        A secret is resolved only on the machine where it was registered.
        """
        if self.secret is None:
            return self
        return replace(self, secret=partial(str, self.secret()))


@runtime_checkable
class OnlineStore(Protocol):
    """A connection to an online store, which maps keys to values; both are opaque bytes.

    Laziness: creating a store checks the URI only; the first call connects. A new store is usable
    without preparation: ``write`` creates missing tables, and reading them returns no values.

    Threads: all methods may be called from several threads, and in a process that was forked after
    the store was created. Each call uses its own connection from a pool.

    Atomicity: a value is replaced atomically; a reader sees the old or the new value. Several keys
    of one call are not atomic: other readers may see a subset, and after an error a subset
    may be written. All writes can therefore be repeated.

    Order: the last value of a call is written last, to the same server. If a server that restarted
    from a snapshot or was replaced by a replica has the last value of a call, it has all values.

    Durability: when a call returns, its writes are as durable as the server is configured. If the
    store buffers writes, ``compare_and_set`` also makes all earlier writes durable.

    Errors: all methods raise OnlineStoreError. OnlineStoreUnavailable is its subclass for a server
    that cannot be reached or does not respond in time; the effect of a write is then unknown. A
    store repeats a call once if a pooled connection was closed by the server.
    """

    config: OnlineConfig

    @property
    def name(self) -> str:
        """The kind of the store, such as "redis"."""
        ...

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, None if it has none, in one round trip."""
        ...

    async def read_async(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read as ``read`` does, without blocking the event loop."""
        ...

    def write(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set values unconditionally; the fast path for many new keys, which are distinct."""
        ...

    def write_newer(self, keys: Sequence[bytes], values: Sequence[bytes]) -> int:
        """Set each value unless the stored one has the same or a greater sequence.

        The sequence is the big-endian unsigned number in ``value[1:9]``. The comparison is atomic
        for each key.

        Returns:
            The number of values that were set.
        """
        ...

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        """Set a value if the stored one equals ``expected`` (None: the key has no value).

        Returns:
            Whether the value was set. Also True if the stored value already equals ``value``, so
            that a call can be repeated after its response was lost.
        """
        ...

    def scan(self, prefix: bytes) -> Iterator[list[bytes]]:
        """Yield the keys that start with a prefix, in batches of at most a few thousand.

        All keys that exist during the complete scan are yielded; a key may be repeated. No
        connection is in use while the caller has control.
        """
        ...

    def delete(self, keys: Sequence[bytes]) -> int:
        """Delete keys, and return the number of those that existed."""
        ...

    def delete_prefix(self, prefix: bytes) -> int:
        """Delete all keys that start with a prefix, in batches, and return their number.

        The deletion may be interrupted and repeated.
        """
        ...

    def clock(self) -> datetime:
        """Return the time of the server in UTC; the local time of a store without a server."""
        ...

    def check(self) -> None:
        """Raise OnlineStoreError if the store cannot be used reliably; the hint has the remedy."""
        ...

    def statistics(self) -> Mapping[str, int]:
        """Return the number of ``keys`` and of ``bytes``, as far as the store reports them."""
        ...

    def close(self) -> None:
        """Close all connections; may be called repeatedly."""
        ...


@dataclass(frozen=True)
class DurabilityRisk:
    """A setting of a server with which it can lose writes that it acknowledged.

    ``loss`` is when it loses what; ``remedy`` is a command or a setting that prevents it.
    """

    setting: str
    value: str
    loss: str
    remedy: str


@runtime_checkable
class IdentifiesServer(Protocol):
    """An online store whose server may lose writes that it acknowledged, such as by a failover."""

    def server_identity(self) -> str | None:
        """Return a text that differs after each event in which the server may have lost writes.

        Events without a loss may change it, too: the next publication then writes all values. None
        on a replica, which has the identity of its primary server when it replaces that.
        """
        ...

    def durability_risks(self) -> Sequence[DurabilityRisk]:
        """Return the settings of the server that can lose acknowledged writes."""
        ...


@runtime_checkable
class DiscardsBytes(Protocol):
    """An online store that can overwrite the bytes of deleted values in its files.

    Servers do so when they compact their files.
    """

    def discard_deleted(self) -> None:
        """Overwrite the bytes of deleted values."""
        ...


def open_config(config: OnlineConfig) -> OnlineStore:
    """Create an online store without connecting to it.

    Raises:
        InvalidArgument: No store for the scheme of the URI is installed, or the URI is invalid.
    """
    store_type = online_kind(config.uri)
    entry_point = find_plugin("online_stores", store_type)
    if entry_point is None:
        available = plugin_names("online_stores")
        raise InvalidArgument(
            f"Unknown kind of online store {store_type!r}. Available: {listing(available)}.",
            hint=did_you_mean(store_type, available) or "redis://localhost:6379/0",
        )
    store: OnlineStore = load_plugin(entry_point)(config)
    return store
