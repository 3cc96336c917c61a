"""Settings of Azure and Google Cloud Storage: options, the environment, and Spark's clients."""

from __future__ import annotations

from pathlib import Path

import pytest

import featurestore
from featurestore.errors import ConfigurationError, UnsupportedLocation
from featurestore.storage.connections import use_options
from featurestore.storage.settings import store_settings
from featurestore_connectors.spark_delta.buckets import hadoop_options

SECRET = "S3 cret"
PROXY_LOGIN = "u:p%40ss"
INVALID_SETTINGS = (
    ("az://c/a", {}, ConfigurationError, "AZURE_STORAGE_ACCOUNT_NAME"),
    ("az://c/a", {"account_name": "a", "account_key": SECRET}, ConfigurationError, "Access Key"),
    ("az://c/a", {"account_name": "a", "sas_token": SECRET}, ConfigurationError, "SAS"),
    ("az://c/a", {"account_nme": SECRET}, ConfigurationError, "account_name"),
    ("gs://b/a", {"endpiont": SECRET}, ConfigurationError, "google_endpoint"),
    ("gs://b/a", {"service_account_key": SECRET}, ConfigurationError, "service account"),
    (
        "abfss://c@shop.dfs.core.windows.net/a",
        {},
        UnsupportedLocation,
        "'az://c/a' with storage_options={'account_name': 'shop'}",
    ),
    (f"gs://name:{SECRET}@b/a", {}, UnsupportedLocation, r"az://container/path"),
)
# The settings of Google's connector for options, beside those of every location.
GOOGLE_CONNECTOR = (
    ({}, {"auth.type": "APPLICATION_DEFAULT"}),
    ({"application_credentials": "/of-environment"}, {"auth.type": "APPLICATION_DEFAULT"}),
    (
        {"service_account": "/key"},
        {
            "auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
            "auth.service.account.json.keyfile": "/key",
        },
    ),
    (
        {"anonymous": "true", "proxy_url": f"http://{PROXY_LOGIN}@proxy:3128"},
        {
            "auth.type": "UNAUTHENTICATED",
            "proxy.address": "proxy:3128",
            "proxy.username": "u",
            "proxy.password": "p@ss",
        },
    ),
    (
        {"endpoint": "http://127.0.0.1:4443", "anonymous": "true"},
        {"auth.type": "UNAUTHENTICATED", "storage.root.url": "http://127.0.0.1:4443/"},
    ),
)


def test_invalid_cloud_settings_raise_without_secrets(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    registry = f"sqlite:///{tmp_path}/cache.db"
    for location, options, error, words in INVALID_SETTINGS:
        with subtests.test(words):
            with pytest.raises(error, match=words) as refused:
                featurestore.connect(location, registry=registry, storage_options=options)
            assert SECRET not in str(refused.value)


def test_options_replace_credentials_of_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shop")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    from_environment = store_settings("az", {})
    assert from_environment.store["azure_storage_account_key"] == "a2V5"
    settings = store_settings("az", {"sas_token": "sv=1&sig=x"})
    assert settings.store == {
        "azure_storage_account_name": "shop",
        "azure_storage_sas_token": "sv=1&sig=x",
        "azure_credential_type": "sas_token",
    }
    assert "allow_http" not in settings.client


def test_google_connector_gets_credentials_of_options(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/of-environment")
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT", raising=False)
    common = {
        "implicit.dir.repair.enable": "false",
        "http.read-timeout": "60s",
        "http.connect-timeout": "10s",
    }
    for options, settings in GOOGLE_CONNECTOR:
        with subtests.test(" ".join(options)):
            use_options("gs://of-options", options)
            expected = {f"fs.gs.{name}": value for name, value in {**common, **settings}.items()}
            assert hadoop_options("gs://of-options/store") == expected


def test_google_key_as_text_is_refused_without_the_key() -> None:
    use_options("gs://of-options", {"service_account_key": f'{{"private_key": "{SECRET}"}}'})
    with pytest.raises(ConfigurationError, match="from a file") as caught:
        hadoop_options("gs://of-options/store")
    assert SECRET not in str(caught.value)
