"""Settings of S3, Google Cloud Storage and Azure from ``storage_options=`` and the environment.

Settings of S3 are also read from the AWS configuration files.

Settings are never stored in a registry, a manifest, a log or an error.
"""

from __future__ import annotations

import configparser
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from featurestore.errors import ConfigurationError, did_you_mean

USER, SECRET, TOKEN = "aws_access_key_id", "aws_secret_access_key", "aws_session_token"
_CREDENTIALS = (USER, SECRET, TOKEN)
# A temporary token of Google, such as one that a catalog vends. It is read from no environment.
GOOGLE_TOKEN = "google_oauth_token"
AZURE_SAS = "azure_storage_sas_token"
# S3 options by environment variable; ``storage_options=`` may omit the prefix ``aws_``.
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
# On cloud machines obstore gets temporary credentials from the platform.
_PLATFORM = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_ALIASES = {
    "aws_endpoint": "aws_endpoint_url",
    "aws_default_region": "aws_region",
    "aws_anonymous": "aws_skip_signature",
}


@dataclass(frozen=True)
class _Provider:
    """The options of one scheme, named like their environment variables in lower case.

    Args:
        options: All options of the store.
        prefix: The prefix that ``storage_options=`` may omit.
        aliases: Full option names by alternative names.
        endpoint: The option that contains the address of the server.
        credentials: Credential types in obstore by the option that selects them.
    """

    options: tuple[str, ...]
    prefix: str
    aliases: Mapping[str, str]
    endpoint: str
    credentials: Mapping[str, str]


# Fields that a key of a service account must have.
_EMPTY_ACCOUNT = {"client_email": "", "private_key": "", "private_key_id": ""}
_PROVIDERS = {
    "s3": _Provider(_S3, "aws_", _ALIASES, "aws_endpoint_url", {}),
    "gs": _Provider(
        (
            "google_application_credentials",
            "google_service_account",
            "google_service_account_key",
            GOOGLE_TOKEN,
            "google_base_url",
            "google_skip_signature",
        ),
        "google_",
        {
            "google_endpoint": "google_base_url",
            "google_endpoint_url": "google_base_url",
            "google_service_account_path": "google_service_account",
            "google_anonymous": "google_skip_signature",
        },
        "google_base_url",
        {},
    ),
    "az": _Provider(
        (
            "azure_storage_account_name",
            "azure_storage_account_key",
            AZURE_SAS,
            "azure_storage_token",
            "azure_client_id",
            "azure_client_secret",
            "azure_tenant_id",
            "azure_federated_token_file",
            "azure_authority_host",
            "azure_use_azure_cli",
            "azure_endpoint",
            "azure_skip_signature",
        ),
        "azure_",
        {
            "azure_account_name": "azure_storage_account_name",
            "azure_account_key": "azure_storage_account_key",
            "azure_storage_access_key": "azure_storage_account_key",
            "azure_sas_token": AZURE_SAS,
            "azure_sas_key": AZURE_SAS,
            "azure_storage_sas_key": AZURE_SAS,
            "azure_bearer_token": "azure_storage_token",
            "azure_token": "azure_storage_token",
            "azure_storage_client_id": "azure_client_id",
            "azure_storage_client_secret": "azure_client_secret",
            "azure_storage_tenant_id": "azure_tenant_id",
            "azure_storage_endpoint": "azure_endpoint",
            "azure_endpoint_url": "azure_endpoint",
            "azure_anonymous": "azure_skip_signature",
        },
        "azure_endpoint",
        {
            "azure_storage_account_key": "access_key",
            AZURE_SAS: "sas_token",
            "azure_storage_token": "bearer_token",
            "azure_client_secret": "client_secret",
            "azure_federated_token_file": "workload_identity",
            "azure_use_azure_cli": "azure_cli",
        },
    ),
}


@dataclass(frozen=True)
class Settings:
    """Settings for a connection to an object store: of the store, and of the HTTP client."""

    store: Mapping[str, str] = field(repr=False)
    client: Mapping[str, str] = field(repr=False)


def store_settings(scheme: str, options: Mapping[str, str]) -> Settings:
    """Return the settings of an object store with the scheme "s3", "gs" or "az".

    >>> store_settings("gs", {"endpoint": "http://127.0.0.1:4443"}).client["allow_http"]
    'true'

    Raises:
        ConfigurationError: An option is unknown, or the account of Azure is missing.
    """
    if scheme == "s3":
        return s3_settings(options)
    provider = _PROVIDERS[scheme]
    checked_options = check_options(options, scheme=scheme)
    option_types = [
        option_type for key, option_type in provider.credentials.items() if key in checked_options
    ]
    has_token = GOOGLE_TOKEN in checked_options
    store = {}
    for key in provider.options:
        value = checked_options.get(key)
        # Credentials in the environment belong to another identity than those of the options.
        is_of_identity = has_token or key == GOOGLE_TOKEN
        is_of_identity |= bool(option_types) and key in provider.credentials
        if not value and not is_of_identity:
            value = _read_environment(key, scheme=scheme)
        if value:
            store[key] = value
    if has_token:
        # Otherwise obstore reads this setting from the environment.
        store["google_skip_signature"] = "false"
    if option_types:
        # Otherwise obstore prefers an account key in the environment.
        store["azure_credential_type"] = option_types[0]
    if scheme == "az" and "azure_storage_account_name" not in store:
        raise ConfigurationError(
            "A location az://container/path requires the name of the storage account.",
            hint="set $AZURE_STORAGE_ACCOUNT_NAME, or storage_options={'account_name': '...'}",
        )
    client = {key: checked_options.get(key) or _SECONDS.get(key, "") for key in _CLIENT}
    client = _allow_http(client, store.get(provider.endpoint, ""))
    if "google_base_url" in store and store.get("google_skip_signature") == "true":
        # For a server without authentication: obstore and delta-rs omit signatures only of reads,
        # but all tokens with this key.
        account = {"gcs_base_url": store["google_base_url"], "disable_oauth": True}
        store = {"google_service_account_key": json.dumps({**account, **_EMPTY_ACCOUNT})}
    return Settings(store, client)


def s3_settings(options: Mapping[str, str]) -> Settings:
    """Return the S3 settings from options, the environment and the AWS configuration files.

    Raises:
        ConfigurationError: An option is unknown; its value is not included in the message.
    """
    checked_options = check_options(options)
    store = {}
    for key in _S3:
        value = checked_options.get(key)
        # A session token in the environment belongs to the credentials there.
        if not value and (key != TOKEN or USER not in checked_options):
            value = _read_environment(key)
        if value:
            store[key] = value
    if not any(key in store for key in _CREDENTIALS) and not any(
        name in os.environ for name in _PLATFORM
    ):
        store.update(_read_profile("credentials", _CREDENTIALS))
    if "aws_region" not in store:
        store["aws_region"] = _read_profile("config", ("region",)).get("region", "us-east-1")
    client = {}
    for key in _CLIENT:
        value = (
            checked_options.get(key) or os.environ.get(f"AWS_{key.upper()}") or _SECONDS.get(key)
        )
        if value:
            client[key] = value
    return Settings(store, _allow_http(client, store.get("aws_endpoint_url", "")))


def _allow_http(client: Mapping[str, str], endpoint: str) -> dict[str, str]:
    """Return the client settings that are not empty, with plain HTTP if the endpoint uses it."""
    allowed = {key: value for key, value in client.items() if value}
    if endpoint.startswith("http://"):
        # obstore refuses plain HTTP by default.
        allowed.setdefault("allow_http", "true")
    return allowed


def delta_options(settings: Settings) -> dict[str, str]:
    """Merge the settings into one mapping for delta-rs.

    Raises:
        ConfigurationError: The settings have a temporary token, which delta-rs does not support.
    """
    if GOOGLE_TOKEN in settings.store:
        raise ConfigurationError(
            f"{GOOGLE_TOKEN} gives access to tables of catalogs only.",
            hint="set $GOOGLE_APPLICATION_CREDENTIALS to the key file of a service account",
        )
    merged = {**settings.store, **settings.client}
    if any(key.startswith("aws_") for key in merged):
        # delta-rs must not overwrite commits of other writers, either.
        merged["aws_conditional_put"] = "etag"
    return merged


def check_options(
    options: Mapping[str, str], *, scheme: str = "s3", argument: str = "storage_options"
) -> dict[str, str]:
    """Return the options of a scheme under their full names, such as "aws_region".

    >>> check_options({"account_name": "shop"}, scheme="az")
    {'azure_storage_account_name': 'shop'}

    Raises:
        ConfigurationError: An option is unknown; its value is not included in the message.
    """
    provider = _PROVIDERS[scheme]
    known_options = (*provider.options, *_CLIENT)
    checked_options = {}
    for name, value in options.items():
        key = str(name).lower()
        if key not in _CLIENT and not key.startswith(provider.prefix):
            key = f"{provider.prefix}{key}"
        key = provider.aliases.get(key, key)
        if key not in known_options:
            raise ConfigurationError(
                f"Unknown option {name!r} in {argument}=.",
                hint=did_you_mean(key, (*known_options, *provider.aliases))
                or f"available: {', '.join(known_options)}",
            )
        # Clients expect "true" and "false", not Python's "True" and "False".
        checked_options[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return checked_options


def _read_environment(key: str, *, scheme: str = "s3") -> str | None:
    """Return a setting from the environment variables that the provider's tools use, or None."""
    provider = _PROVIDERS[scheme]
    aliases = [alias.upper() for alias, name in provider.aliases.items() if name == key]
    names = [key.upper(), *aliases]
    if key == "aws_endpoint_url":
        # The AWS tools prefer the endpoint of the service to the general one.
        names.insert(0, "AWS_ENDPOINT_URL_S3")
    for name in names:
        if os.environ.get(name):
            return os.environ[name]
    return None


def _read_profile(name: str, keys: tuple[str, ...]) -> dict[str, str]:
    """Return the profile settings from an AWS configuration file; empty without a profile."""
    profile = os.environ.get("AWS_PROFILE", "default")
    if name == "credentials":
        path, section = os.environ.get("AWS_SHARED_CREDENTIALS_FILE"), profile
    else:
        path = os.environ.get("AWS_CONFIG_FILE")
        section = profile if profile == "default" else f"profile {profile}"
    path = path or os.path.join(os.path.expanduser("~"), ".aws", name)
    # RawConfigParser does not interpret "%", which may be part of a value.
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        # The cause is not chained: its message contains the line, which may contain a secret.
        raise ConfigurationError(
            f"The file {path} is not a valid AWS configuration file."
        ) from None
    if not parser.has_section(section):
        return {}
    return {key: parser.get(section, key) for key in keys if parser.has_option(section, key)}
