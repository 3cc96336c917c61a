"""Settings of object stores: ``storage_options=``, the environment, the usual files; one table.

They are never written down: not in a registry, a manifest, a log or an error.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from featurestore.errors import ConfigurationError, did_you_mean

USER, SECRET, TOKEN = "aws_access_key_id", "aws_secret_access_key", "aws_session_token"
_CREDENTIALS = (USER, SECRET, TOKEN)
# What ``storage_options=`` may say of S3, and how the environment calls it. All begin with aws_ in
# the environment and may be written without.
_S3 = (
    *_CREDENTIALS,
    "aws_region",
    "aws_endpoint_url",
    "aws_virtual_hosted_style_request",
    "aws_server_side_encryption",
    "aws_sse_kms_key_id",
    "aws_skip_signature",
)
_CLIENT = ("allow_http", "timeout", "connect_timeout", "proxy_url")
_SECONDS = {"timeout": "60s", "connect_timeout": "10s"}
# Where a program runs in the cloud, the library asks the platform for credentials of the moment.
_PLATFORM = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
# How S3A, Hadoop's own client, calls them, below ``fs.s3a.bucket.<bucket>.``.
_S3A = {
    "aws_access_key_id": "access.key",
    "aws_secret_access_key": "secret.key",
    "aws_session_token": "session.token",
    "aws_region": "endpoint.region",
    "aws_endpoint_url": "endpoint",
    "aws_sse_kms_key_id": "encryption.key",
    "timeout": "connection.timeout",
    "connect_timeout": "connection.establish.timeout",
}
_S3A_ENCRYPTIONS = {"AES256": "SSE-S3", "aws:kms": "SSE-KMS", "aws:kms:dsse": "DSSE-KMS"}
_S3A_PROVIDERS = "org.apache.hadoop.fs.s3a."
_OTHER_SPELLINGS = {"aws_endpoint": "aws_endpoint_url", "aws_default_region": "aws_region"}


@dataclass(frozen=True)
class Settings:
    """How to reach an object store: of the store itself, and of the client that calls it."""

    store: Mapping[str, str] = field(repr=False)
    client: Mapping[str, str] = field(repr=False)


def s3_settings(options: Mapping[str, str]) -> Settings:
    """Return the settings of S3: the options, else the environment, else the files of AWS.

    Raises:
        ConfigurationError: An option is not known; its value is not shown.
    """
    given = check_options(options)
    store = {}
    for key in _S3:
        value = given.get(key)
        # A token of the environment belongs to the credentials there.
        if not value and (key != TOKEN or USER not in given):
            value = _from_environment(key)
        if value:
            store[key] = value
    if not any(key in store for key in _CREDENTIALS) and not _has_platform():
        store.update(_from_file("credentials", _CREDENTIALS))
    if "aws_region" not in store:
        store["aws_region"] = _from_file("config", ("region",)).get("region", "us-east-1")
    client = {}
    for key in _CLIENT:
        value = given.get(key) or os.environ.get(f"AWS_{key.upper()}") or _SECONDS.get(key)
        if value:
            client[key] = value
    if store.get("aws_endpoint_url", "").startswith("http://"):
        client.setdefault("allow_http", "true")
    return Settings(store, client)


def delta_options(settings: Settings) -> dict[str, str]:
    """Return settings as delta-rs takes them: one mapping, and its own reading of files off."""
    return {**settings.store, **settings.client, "aws_conditional_put": "etag"}


def s3a_options(settings: Settings, bucket: str) -> dict[str, str]:
    """Return settings as Hadoop's S3A takes them for one bucket."""
    given = {**settings.store, **settings.client}
    found = {}
    for key, name in _S3A.items():
        if key in given:
            found[name] = given[key]
    # Markers of folders would be objects that no other writer knows of.
    found["directory.marker.retention"] = "delete"
    virtual = given.get("aws_virtual_hosted_style_request") == "true"
    found["path.style.access"] = "false" if virtual else "true"
    encryption = given.get("aws_server_side_encryption")
    if encryption is not None:
        found["encryption.algorithm"] = _S3A_ENCRYPTIONS.get(encryption, encryption)
    provider = _s3a_provider(given)
    if provider is not None:
        found["aws.credentials.provider"] = _S3A_PROVIDERS + provider
    found.update(_s3a_proxy(given.get("proxy_url")))
    return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in found.items()}


def _s3a_provider(given: Mapping[str, str]) -> str | None:
    """Return where S3A takes credentials from; None where it asks the platform, as it does."""
    if given.get("aws_skip_signature") == "true":
        return "AnonymousAWSCredentialsProvider"
    if "aws_access_key_id" not in given:
        return None
    if "aws_session_token" in given:
        return "TemporaryAWSCredentialsProvider"
    return "SimpleAWSCredentialsProvider"


def _s3a_proxy(url: str | None) -> dict[str, str]:
    if url is None:
        return {}
    parts = urlsplit(url)
    found = {"proxy.host": parts.hostname or "", "proxy.port": str(parts.port or 80)}
    if parts.username is not None:
        found["proxy.username"] = unquote(parts.username)
    if parts.password is not None:
        found["proxy.password"] = unquote(parts.password)
    return found


def check_options(
    options: Mapping[str, str], *, argument: str = "storage_options"
) -> dict[str, str]:
    """Return options by the names of the table.

    Raises:
        ConfigurationError: An option is not known; its value is not shown.
    """
    found = {}
    for name, value in options.items():
        key = str(name).lower()
        if key not in _CLIENT and not key.startswith("aws_"):
            key = f"aws_{key}"
        key = _OTHER_SPELLINGS.get(key, key)
        if key not in _S3 and key not in _CLIENT:
            known = (*_S3, *_CLIENT)
            raise ConfigurationError(
                f"{argument}= has {name!r}, which is not known.",
                hint=did_you_mean(key, known) or f"there are {', '.join(known)}",
            )
        found[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _from_environment(key: str) -> str | None:
    names = [key.upper()]
    for other, meant in _OTHER_SPELLINGS.items():
        if meant == key:
            names.append(other.upper())
    if key == "aws_endpoint_url":
        names.insert(0, "AWS_ENDPOINT_URL_S3")
    for name in names:
        if os.environ.get(name):
            return os.environ[name]
    return None


def _has_platform() -> bool:
    return any(name in os.environ for name in _PLATFORM)


def _from_file(name: str, keys: tuple[str, ...]) -> dict[str, str]:
    """Return settings of a profile from one of the two files of AWS; none where there is none."""
    profile = os.environ.get("AWS_PROFILE", "default")
    if name == "credentials":
        path, section = os.environ.get("AWS_SHARED_CREDENTIALS_FILE"), profile
    else:
        path = os.environ.get("AWS_CONFIG_FILE")
        section = profile if profile == "default" else f"profile {profile}"
    path = path or os.path.join(os.path.expanduser("~"), ".aws", name)
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        # Not chained: the text of the cause shows the line, which may hold a secret.
        raise ConfigurationError(f"The file {path} is no file of settings of AWS.") from None
    if not parser.has_section(section):
        return {}
    found = {}
    for key in keys:
        if parser.has_option(section, key):
            found[key] = parser.get(section, key)
    return found
