"""Grants: permission from a user of this machine for a store's definitions to act.

A store may come from an untrusted source. Its definitions of jobs, sources, online stores, alert
channels and external feature groups run commands and code, open addresses, follow paths, and load
files. Each definition passes ``authorize`` before it acts. ``authorize`` compares the hash of the
complete definition with the grant that a registration on this machine wrote to the state directory
(``$XDG_STATE_HOME/featurestore``, or ``~/.local/state/featurestore``).

Local paths are hashed after symbolic links are resolved, so that a link with another target needs a
new grant. A secret is read only for a definition that is granted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from featurestore.errors import ConfigurationError, StorageError
from featurestore.model.alert import Channel
from featurestore.model.display import escape_line
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.job import DBT_ORIGIN, JobSpec
from featurestore.model.names import SecretReference, format_group_reference, parse_credentials
from featurestore.model.online_store import OnlineStoreSpec
from featurestore.model.source import SourceSpec, options_from_strings
from featurestore.storage import files, protection, storage_for

_FOLDER = "grants"
# A local path, alone or after a scheme: "/data", "delta+/data", "file:///data", "command:/bin/true".
_LOCAL_PATH = re.compile(r"(?:[\w.+-]+:(?://(?=/)|(?!//))|(?:[\w.-]+\+)+)?(?P<path>[/~].*)", re.S)


@dataclass(frozen=True)
class ActingDefinition:
    """A definition of a store that acts: it needs a grant of this machine.

    Attributes:
        location: The store of the definition.
        noun: What it defines: "job", "source", "online store", "alert channel" or "external
            feature group".
        name: Its name, by which the grant is found.
        content: The complete definition as a JSON object.
        addresses: The strings of the definition that may be local paths, which are resolved.
        hint: The line of code that registers the definition on this machine.
        command: The same on the command line.
    """

    location: str
    noun: str
    name: str
    content: Mapping[str, Any] = field(repr=False)
    addresses: Sequence[str] = field(default=(), repr=False)
    hint: str | None = field(default=None, repr=False)
    command: str | None = field(default=None, repr=False)

    @property
    def hash(self) -> str:
        """The SHA-256 of the definition with resolved paths.

        Whole numbers are equal as integers and floats, because databases return either.
        """
        paths = [path for address in self.addresses for path in _resolve_paths(address)]
        content = _normalize_numbers([self.noun, self.name, self.content, paths])
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _resolve_paths(address: str) -> list[str]:
    """Return the local path in an address after symbolic links, with and without its query.

    >>> _resolve_paths("sqlite:////no/shop.db?mode=ro"), _resolve_paths("redis://cache/0")
    (['/no/shop.db?mode=ro', '/no/shop.db'], [])
    """
    match = _LOCAL_PATH.fullmatch(address)
    if match is None or "\0" in address:
        return []
    path = os.path.expanduser(match["path"]).replace("//", "/")
    return list(map(os.path.realpath, dict.fromkeys([path, path.partition("?")[0]])))


def _normalize_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _normalize_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_normalize_numbers, value))
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def acting_job(location: str, spec: JobSpec, *, origin: str) -> ActingDefinition:
    """Return a job as a definition that acts; ``origin`` is its file, or its module.

    >>> from featurestore.model.job import Alerts, PublishWork, Schedule
    >>> from featurestore.model.publication_target import PublicationTarget
    >>> work = PublishWork(publishes=(PublicationTarget("buyers"),))
    >>> spec = JobSpec("load", Schedule("@daily"), Alerts(), work)
    >>> acting_job("/store", spec, origin="/jobs.py").command
    'featurestore job register /jobs.py'
    """
    on_failure = spec.schedule.on_failure
    program = () if on_failure is None else on_failure.arguments[:1]
    # Names of groups contain no slash.
    paths = [
        os.path.abspath(os.path.expanduser(path)) for path in spec.inputs.values() if "/" in path
    ]
    command = acting_job_file(location, origin).command
    if origin.startswith(DBT_ORIGIN):
        command = "featurestore dbt import target/manifest.json --source warehouse"
    return ActingDefinition(
        location,
        "job",
        spec.name,
        {"spec": spec.to_json(), "origin": origin},
        (*paths, *program),
        hint=command,
        command=command,
    )


def acting_job_file(location: str, origin: str) -> ActingDefinition:
    """Return the file or module of jobs, whose code is executed; its grant has the SHA-256."""
    command = f"featurestore job register {escape_line(shlex.quote(origin))}"
    return ActingDefinition(location, "job file", origin, {}, (), hint=command, command=command)


def acting_source(location: str, spec: SourceSpec) -> ActingDefinition:
    """Return a source as a definition that acts.

    >>> acting_source("/store", SourceSpec("shop", "postgresql", "postgresql://me@db/shop")).hint
    "featurestore.add_source('shop', 'postgresql://me@db/shop')"
    """
    content = spec.to_json()
    # The time of the registration differs between machines.
    del content["created"]
    options = dict(spec.options)
    arguments = {
        "secret": spec.secret,
        "options": options_from_strings(options),
        "description": spec.description,
    }
    command_options = [("--option", f"{name}={value}") for name, value in options.items()]
    command_options += [("--description", spec.description)] if spec.description else []
    return ActingDefinition(
        location,
        "source",
        spec.name,
        content,
        (spec.uri, *options.values()),
        hint=_call("featurestore.add_source", spec.name, spec.uri, arguments),
        command=_command("source add", spec.name, spec.uri, spec.secret, command_options),
    )


def acting_online_store(location: str, spec: OnlineStoreSpec) -> ActingDefinition:
    """Return an online store as a definition that acts.

    >>> cache = OnlineStoreSpec("cache", "redis", "redis://localhost:6379/0")
    >>> acting_online_store("/store", cache).command
    'featurestore online add cache redis://localhost:6379/0'
    """
    content = spec.to_json()
    del content["created"]
    return ActingDefinition(
        location,
        "online store",
        spec.name,
        content,
        (spec.uri,),
        hint=_call("featurestore.add_online_store", spec.name, spec.uri, {"secret": spec.secret}),
        command=_command("online add", spec.name, spec.uri, spec.secret),
    )


def acting_channel(location: str, channel: Channel) -> ActingDefinition:
    """Return an alert channel as a definition that acts.

    >>> acting_channel("/store", Channel("ops", "command:/usr/bin/notify")).command
    'featurestore alert add ops command:/usr/bin/notify'
    """
    return ActingDefinition(
        location,
        "alert channel",
        channel.name,
        dict(vars(channel)),
        (channel.uri,),
        hint=_call(
            "store.add_alert_channel", channel.name, channel.uri, {"secret": channel.secret}
        ),
        command=_command("alert add", channel.name, channel.uri, channel.secret),
    )


def acting_group(location: str, spec: FeatureGroupSpec) -> ActingDefinition:
    """Return an external feature group, which runs a query at its source, as a definition."""
    assert spec.external is not None
    rows = spec.external
    selection = {name: getattr(rows, name) for name in ("table", "sql", "path", "rename")}
    arguments = {
        "source": rows.source,
        **selection,
        "columns": list(spec.schema.names),
        "primary_key": list(spec.primary_key),
        "event_time": spec.event_time,
        "created_time": spec.created_time,
        "version": spec.version,
        "snapshots": rows.snapshots if rows.snapshots != "training" else None,
        "if_exists": "return",
    }
    return ActingDefinition(
        location,
        "external feature group",
        format_group_reference(spec.name, spec.version),
        {**rows.to_json(), "columns": list(spec.schema.names)},
        hint=_call("store.create_external_featuregroup", spec.name, None, arguments),
    )


def _call(function: str, name: str, uri: str | None, arguments: Mapping[str, Any]) -> str:
    """Return a call in Python; control characters of a definition are escaped by ``repr``."""
    arguments_text = [repr(value) for value in (name, uri) if value is not None]
    arguments_text += [f"{word}={value!r}" for word, value in arguments.items() if value]
    return f"{function}({', '.join(arguments_text)})"


def _command(
    words: str,
    name: str,
    uri: str,
    secret: str | None,
    options: Sequence[tuple[str, str]] = (),
) -> str:
    """Return a command in which a definition cannot add words to the shell."""
    command_line = [name, uri]
    command_line += [] if secret is None else ["--secret", secret]
    for option in options:
        command_line += option
    return f"featurestore {words} {escape_line(' '.join(map(shlex.quote, command_line)))}"


def grant(definition: ActingDefinition, **file: str | None) -> None:
    """Allow a definition to act on this machine, because a user registered it on this machine.

    Args:
        definition: The definition.
        file: The file that the definition loads, and its SHA-256, for ``authorize`` to return.
    """
    record = {
        "location": definition.location,
        "noun": definition.noun,
        "name": definition.name,
        "sha256": definition.hash,
        "file": file,
    }
    files.write_json(_path(definition), record)


def authorize(definition: ActingDefinition) -> Mapping[str, str | None]:
    """Return the file of a granted definition; every definition that acts passes this function.

    Raises:
        ConfigurationError: The definition was not registered on this machine, or has changed since.
        The hint is the line that registers it.
    """
    path = _path(definition)
    record = None
    if storage_for(path).exists(path):
        try:
            record = files.read_json(path)
        except (StorageError, ValueError):
            # A damaged grant permits nothing.
            record = None
    if not isinstance(record, dict):
        reason = "was not registered on this machine"
    elif record.get("sha256") == definition.hash:
        granted_file = record.get("file")
        return granted_file if isinstance(granted_file, dict) else {}
    else:
        reason = "differs from the one that was registered on this machine"
    raise ConfigurationError(
        f"The {definition.noun} {definition.name!r} of the store at {definition.location} {reason}. "
        "It may run code, or open addresses and files: review it, then register it again.",
        hint=definition.hint,
        command=definition.command,
    )


def is_granted(definition: ActingDefinition) -> bool:
    """Return whether ``authorize`` permits a definition."""
    try:
        authorize(definition)
    except ConfigurationError:
        return False
    return True


def _path(definition: ActingDefinition) -> str:
    # Resolved, so that a store has the same grants through a symbolic link.
    location = storage_for(definition.location).resolve(definition.location)
    key = hashlib.sha256(f"{location}\0{definition.noun}\0{definition.name}".encode()).hexdigest()
    return os.path.join(protection.state_folder(), _FOLDER, f"{key}.json")


def secret_reader(definition: ActingDefinition, secret: str | None) -> Callable[[], str] | None:
    """Return a function that resolves the secret of a source or an online store when it connects.

    Return None without a secret, and for "environment". The function can be pickled.
    """
    reference = None if secret is None else parse_credentials(secret)
    return None if reference is None else partial(resolve_secret, reference, definition)


def resolve_secret(reference: SecretReference, definition: ActingDefinition) -> str:
    """Return the secret of a definition, if the definition is granted.

    Raises:
        ConfigurationError: The definition is not granted, or ``read_secret`` raises it.
    """
    # Otherwise a store could send a registered secret to an address of its own choice.
    authorize(definition)
    return read_secret(reference)


def read_secret(reference: SecretReference) -> str:
    """Return the secret that a reference of a user refers to, without a trailing line break.

    Raises:
        ConfigurationError: The variable is not set, or the file is empty or cannot be read. The
        message contains the reference, never the secret.
    """
    if reference.kind == "env":
        value = os.environ.get(reference.name, "")
        advice = f"export {reference.name}=..."
    else:
        value = _read_file(reference)
        advice = f"write the secret into {reference.name}"
    if not value:
        raise ConfigurationError(f"The secret {reference} is empty or not set.", hint=advice)
    return value


def _read_file(reference: SecretReference) -> str:
    try:
        path = os.path.expanduser(reference.name)
        return storage_for(path).read_text(path).rstrip("\r\n")
    except (StorageError, OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"The secret {reference} cannot be read: {type(error).__name__}.",
            hint=f"check that {reference.name} exists, is readable, and is UTF-8 text",
        ) from error
