"""Redis, and servers with its protocol such as Valkey, as an online store: one string per key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from featurestore.errors import (
    InvalidArgument,
    OnlineStoreError,
    OnlineStoreUnavailable,
    missing_extra,
)
from featurestore.plugins.online import (
    DurabilityRisk,
    IdentifiesServer,
    OnlineConfig,
    OnlineStore,
)
from featurestore_connectors.online.connections import ConnectionPool, ServerAddress, ThreadedReads

_DEFAULT_PORT = 6379
# Keys per command: the server executes no other commands during one.
_WRITE_BATCH = 2_000
_SCRIPT_BATCH = 500
_SCAN_BATCH = 1_000
_SPECIAL = re.compile(rb"[*?\[\]\\]")
# Strings are compared by the locale of the server, and numbers of Lua have 53 bits. The halves of
# the sequence are compared as numbers instead.
_WRITE_NEWER = b"""
local count = 0
for i, key in ipairs(KEYS) do
  local current = redis.call('GETRANGE', key, 1, 8)
  local newer = #current < 8
  if not newer then
    local high, low = struct.unpack('>I4I4', current)
    local new_high, new_low = struct.unpack('>I4I4', string.sub(ARGV[i], 2, 9))
    newer = new_high > high or (new_high == high and new_low > low)
  end
  if newer then
    redis.call('SET', key, ARGV[i])
    count = count + 1
  end
end
return count
"""
# The value of a missing key is ``false`` in Lua. ARGV has one element if the key must be missing.
_COMPARE_AND_SET = b"""
local current = redis.call('GET', KEYS[1])
if current == ARGV[1] then return 1 end
if current ~= (ARGV[2] or false) then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1
"""


@dataclass(frozen=True)
class _Reader:
    """A connection of redis-py that only reads."""

    redis: Any

    def close(self) -> None:
        """Close the connection."""
        self.redis.disconnect()


class RedisOnlineStore:
    """One database of a Redis server; a Redis Cluster is not supported."""

    def __init__(self, config: OnlineConfig) -> None:
        self.config = config
        self._address = ServerAddress.parse(config, default_port=_DEFAULT_PORT)
        self._async_reads = ThreadedReads(self.read)
        if not re.fullmatch(r"\d{0,4}", self._address.database):
            raise InvalidArgument(
                f"Online store {config.name!r}: {self._address.database!r} is not the number of a "
                "database.",
                hint="redis://localhost:6379/0",
            )
        self._readers = ConnectionPool(self._connect_reader)

    @property
    def name(self) -> str:
        return "redis"

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        with self._translate_errors():
            # The server may have closed an idle connection. A timeout is not repeated.
            if self._readers.has_idle:
                from redis import exceptions

                try:
                    return self._read_once(keys)
                except exceptions.ConnectionError:
                    self._readers.close_idle()
            return self._read_once(keys)

    def _read_once(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read by a command on a connection, which takes a third of the time of the client."""
        with self._readers.borrow() as connection:
            command = connection.redis.pack_command("MGET", *keys)
            connection.redis.send_packed_command(command, check_health=False)
            values: list[bytes | None] = connection.redis.read_response()
        return values

    async def read_async(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._async_reads.read(keys)

    def write(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        pairs = list(zip(keys, values, strict=True))
        # A request that the network delivers after its repetition, when the keys have newer values,
        # must not replace those. So new keys are written only if they are missing.
        if not self._set_pairs("MSETNX", pairs):
            self._set_pairs("MSET", pairs)

    def _set_pairs(self, command: str, pairs: Sequence[tuple[bytes, bytes]]) -> bool:
        """Execute a command for batches of pairs; return whether it has set all pairs."""
        with self._translate_errors(), self._client.pipeline(transaction=False) as pipeline:
            for start in range(0, len(pairs), _WRITE_BATCH):
                batch = pairs[start : start + _WRITE_BATCH]
                pipeline.execute_command(command, *chain.from_iterable(batch))
            return all(pipeline.execute())

    def write_newer(self, keys: Sequence[bytes], values: Sequence[bytes]) -> int:
        # One connection, so that a server that restarts between two scripts executes them all.
        with self._translate_errors(), self._client.pipeline(transaction=False) as pipeline:
            for start in range(0, len(keys), _SCRIPT_BATCH):
                batch = slice(start, start + _SCRIPT_BATCH)
                # The server compiles a script once; its text is a fraction of the arguments.
                pipeline.eval(_WRITE_NEWER, len(keys[batch]), *keys[batch], *values[batch])
            return sum(pipeline.execute())

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        arguments = [value] if expected is None else [value, expected]
        with self._translate_errors():
            return int(self._client.eval(_COMPARE_AND_SET, 1, key, *arguments)) == 1

    def scan(self, prefix: bytes) -> Iterator[list[bytes]]:
        pattern = _SPECIAL.sub(rb"\\\g<0>", prefix) + b"*"
        cursor = None
        while cursor != 0:
            with self._translate_errors():
                cursor, keys = self._client.scan(cursor or 0, match=pattern, count=_SCAN_BATCH)
            if keys:
                yield keys

    def delete(self, keys: Sequence[bytes]) -> int:
        deleted = 0
        with self._translate_errors():
            for start in range(0, len(keys), _WRITE_BATCH):
                # The server frees the memory in the background.
                batch = keys[start : start + _WRITE_BATCH]
                deleted += self._client.execute_command("UNLINK", *batch)
        return deleted

    def delete_prefix(self, prefix: bytes) -> int:
        return sum(map(self.delete, self.scan(prefix)))

    def clock(self) -> datetime:
        with self._translate_errors():
            seconds, microseconds = self._client.time()
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)

    def check(self) -> None:
        with self._translate_errors():
            info = self._client.info("all")
        if info.get("redis_mode") == "cluster":
            raise OnlineStoreError(
                f"{self._subject} is a Redis Cluster, whose servers cannot be read in one request.",
                hint="use a server without cluster mode, with replicas for availability",
            )
        if info.get("role") == "slave":
            raise OnlineStoreError(
                f"{self._subject} is a replica, which cannot be written.",
                hint="set the URI of the primary server",
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise OnlineStoreError(
                f"{self._subject} has maxmemory-policy {policy}: if its memory is full, it deletes "
                "published values silently.",
                hint="set maxmemory-policy noeviction in redis.conf, or run: "
                "redis-cli config set maxmemory-policy noeviction",
            )

    def server_identity(self) -> str | None:
        with self._translate_errors():
            info = self._client.info()
        if info.get("role") == "slave":
            return None
        # A restart changes the run id, a failover the replication id, and an eviction the count.
        names = ("run_id", "master_replid", "evicted_keys")
        return " ".join([f"{name}={info.get(name)}" for name in names])

    def durability_risks(self) -> Sequence[DurabilityRisk]:
        with self._translate_errors():
            info = self._client.info("all")
            settings = self._read_settings("save", "appendfsync")
        return list(_durability_risks(info, settings))

    def statistics(self) -> Mapping[str, int]:
        with self._translate_errors():
            return {
                "keys": self._client.dbsize(),
                "bytes": self._client.info("memory")["used_memory"],
            }

    def close(self) -> None:
        self._async_reads.close()
        self._readers.close_idle()
        if "_client" in vars(self):
            self._client.close()

    def _read_settings(self, *names: str) -> dict[str, str | None]:
        """Return settings of the server; None for one that the user may not read."""
        from redis import exceptions

        try:
            return {name: self._client.config_get(name).get(name) for name in names}
        except exceptions.ResponseError:
            return dict.fromkeys(names)

    @property
    def _subject(self) -> str:
        return f"Online store {self.config.name!r} at {self._address}"

    @cached_property
    def _client(self) -> Any:
        redis = _import_redis()
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        seconds = self._address.timeout
        return redis.Redis(
            host=self._address.host,
            port=self._address.port,
            db=int(self._address.database or 0),
            username=self._address.user,
            password=None if self.config.secret is None else self.config.secret(),
            ssl=self.config.uri.startswith("rediss:"),
            socket_timeout=seconds,
            socket_connect_timeout=seconds,
            # The server may have closed a pooled connection. A timeout is not repeated.
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        )

    def _connect_reader(self) -> _Reader:
        reader = _Reader(self._client.connection_pool.make_connection())
        reader.redis.connect()
        return reader

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Convert errors of the client; the password is in no message of the server."""
        exceptions = _import_redis().exceptions
        try:
            yield
        except exceptions.AuthenticationError as error:
            raise self._permission_error(error) from None
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            raise OnlineStoreUnavailable(
                f"{self._subject} cannot be reached or does not respond: {error}",
                hint=f"check that this works: redis-cli -h {self._address.host} "
                f"-p {self._address.port} ping",
            ) from None
        except exceptions.NoPermissionError as error:
            raise self._permission_error(error) from None
        except exceptions.OutOfMemoryError as error:
            raise OnlineStoreError(
                f"{self._subject} is full: {error}",
                hint="increase maxmemory in redis.conf, or delete data of other applications",
            ) from None
        except exceptions.RedisError as error:
            raise OnlineStoreError(f"{self._subject}: {error}") from None

    def _permission_error(self, error: Exception) -> OnlineStoreError:
        return OnlineStoreError(
            f"{self._subject} denies access: {error}",
            hint="set the user in the URI, redis://user@host:6379/0, and secret= to its password",
        )


def _durability_risks(
    info: Mapping[str, Any], settings: Mapping[str, str | None]
) -> Iterator[DurabilityRisk]:
    """Yield the risks of a server, from its information and its settings, None if unknown."""
    save, appendfsync = settings["save"], settings["appendfsync"]
    if not info.get("aof_enabled"):
        yield DurabilityRisk(
            "appendonly",
            "no",
            "a restart loses all writes since the last snapshot",
            "redis-cli config set appendonly yes",
        )
        if not save:
            yield DurabilityRisk(
                "save",
                "unknown" if save is None else "none",
                "a restart without a log and snapshots loses all values",
                "redis-cli config set save '60 1000'"
                if save is not None
                else "let the user read the setting: redis-cli acl setuser features +config|get",
            )
    elif appendfsync not in (None, "always"):
        yield DurabilityRisk(
            "appendfsync",
            appendfsync,
            "a crash of the machine loses the last second or more",
            "redis-cli config set appendfsync always",
        )
    # The server reports the number of replicas only with the setting.
    if "min_slaves_good_slaves" not in info:
        yield DurabilityRisk(
            "min-replicas-to-write",
            "0",
            "a failover loses the writes that the replica does not have",
            "with replicas: redis-cli config set min-replicas-to-write 1",
        )


def _import_redis() -> Any:
    try:
        import redis
    except ImportError as error:
        raise missing_extra("redis", "redis") from error
    return redis


if TYPE_CHECKING:
    _contract: type[OnlineStore] = RedisOnlineStore
    _identity: type[IdentifiesServer] = RedisOnlineStore
