"""Sign-in by an OpenID Connect provider that may be malicious."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler as Redirects
from urllib.request import Request, build_opener

import pytest
from starlette.testclient import TestClient

from featurestore.errors import ConfigurationError
from featurestore.server import Provider, ServerSettings, create_app
from featurestore.server.access import changes
from featurestore.store import FeatureStore
from tests.server.openid_provider import CLIENT, SECRET, OpenIdProvider, running
from tests.server.private_groups import PASSWORD, ROOT, client_of, field_of


@pytest.fixture(scope="module")
def started() -> Iterator[OpenIdProvider]:
    with running() as provider:
        yield provider


@pytest.fixture
def provider(started: OpenIdProvider, monkeypatch: pytest.MonkeyPatch) -> OpenIdProvider:
    monkeypatch.setenv("OIDC_SECRET", SECRET)
    started.claims, started.signer = {}, started.key
    started.subject, started.name = "subject-7", "Rea@example.org"
    return started


def settings_of(provider: OpenIdProvider, *, role: str | None = "reader") -> Provider:
    return Provider(provider.issuer, CLIENT, "env:OIDC_SECRET", label="the office", role=role)


class _Stay(Redirects):
    def redirect_request(self, *_: object) -> None:
        return None


def came_back(client: TestClient, following: str = "/groups") -> str:
    """Follow the redirect to the provider, and return its redirect address."""
    response = client.get("/sign-in/provider", params={"next": following})
    assert response.status_code == 303
    try:
        build_opener(_Stay).open(Request(response.headers["location"]), timeout=10)
    except HTTPError as error:
        return str(error.headers["Location"])
    raise AssertionError("the provider did not lead back")


def test_provider_sign_in_creates_session(
    flights_copy: FeatureStore, provider: OpenIdProvider
) -> None:
    with client_of(flights_copy, provider=settings_of(provider)) as client:
        assert "Sign in with the office" in client.get("/sign-in").text
        for _ in range(2):
            response = client.get(came_back(client))
            assert (response.status_code, response.headers["location"]) == (303, "/groups")
            assert "planes" in client.get("/groups").text
            assert "rea@example.org" in client.get("/account").text
            token = field_of(client.get("/account").text)
            client.post("/sign-out", data={"form_token": token})


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "somebody-else"},
        {"iss": "https://evil.example"},
        {"nonce": "of another attempt"},
        {"exp": int(time.time()) - 3600},
        {"azp": "somebody-else"},
    ],
)
def test_provider_token_with_wrong_claims_is_refused(
    empty_store: FeatureStore, provider: OpenIdProvider, claims: dict[str, object]
) -> None:
    provider.claims = claims
    with client_of(empty_store, provider=settings_of(provider)) as client:
        response = client.get(came_back(client))
        assert response.status_code == 401
        assert client.get("/groups").status_code == 303


def test_provider_token_with_unknown_key_is_refused(
    empty_store: FeatureStore, provider: OpenIdProvider
) -> None:
    from joserfc.jwk import RSAKey

    provider.signer = RSAKey.generate_key(2048, {"kid": "1"})
    with client_of(empty_store, provider=settings_of(provider)) as client:
        assert client.get(came_back(client)).status_code == 401


def test_provider_callback_from_another_browser_is_refused(
    empty_store: FeatureStore, provider: OpenIdProvider
) -> None:
    with (
        client_of(empty_store, provider=settings_of(provider)) as client,
        client_of(empty_store, provider=settings_of(provider)) as other_client,
    ):
        address = came_back(client)
        assert other_client.get(address).status_code == 401
        came_back(other_client)
        assert other_client.get(address).status_code == 401
        assert client.get(address).status_code == 303
        assert client.get(address).status_code == 401


def test_provider_unknown_user_without_default_role_is_refused(
    empty_store: FeatureStore, provider: OpenIdProvider
) -> None:
    with client_of(empty_store, provider=settings_of(provider, role=None)) as client:
        response = client.get(came_back(client))
        assert response.status_code == 401
        assert "subject-7" in response.text
        changes.add_user(
            empty_store.session, ROOT, "rea", issuer=provider.issuer, subject="subject-7"
        )
        assert client.get(came_back(client)).status_code == 303
        assert ">rea<" in client.get("/account").text


def test_provider_existing_user_name_is_not_reused(
    empty_store: FeatureStore, provider: OpenIdProvider
) -> None:
    changes.add_user(empty_store.session, ROOT, "ann", role="admin", password=PASSWORD)
    provider.subject, provider.name = "subject-8", "ann"
    with client_of(empty_store, provider=settings_of(provider)) as client:
        assert client.get(came_back(client)).status_code == 401
        assert client.get("/groups").status_code == 303


def test_provider_invalid_settings_raise(
    empty_store: FeatureStore, provider: OpenIdProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_app(issuer: str) -> None:
        provider_settings = Provider(issuer, CLIENT, "env:OIDC_SECRET")
        create_app(empty_store, ServerSettings(auth=True, provider=provider_settings))

    with pytest.raises(ConfigurationError, match="not an https URL"):
        build_app("http://login.example.org")
    monkeypatch.delenv("OIDC_SECRET")
    with pytest.raises(ConfigurationError, match="OIDC_SECRET"):
        build_app(provider.issuer)
