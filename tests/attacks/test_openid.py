"""OpenID Connect: mixed-up issuers, forged tokens, downgrades and responses for other browsers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from joserfc.jwk import OctKey, RSAKey
from starlette.testclient import TestClient

import featurestore
from featurestore.server.account import PROVIDER_COOKIE
from featurestore.store import FeatureStore
from tests.server.openid_provider import SECRET, OpenIdProvider, running
from tests.server.private_groups import client_of
from tests.server.test_provider import came_back, settings_of

NOW = int(time.time())


@pytest.fixture(scope="module")
def started() -> Iterator[OpenIdProvider]:
    with running() as provider:
        yield provider


@pytest.fixture
def provider(started: OpenIdProvider, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenIdProvider]:
    monkeypatch.setenv("OIDC_SECRET", SECRET)
    honest = vars(
        replace(started, claims={}, header={}, metadata={}, back={}, requests_by_code={}, forms=[])
    )
    vars(started).update(honest)
    yield started
    vars(started).update(honest)


@pytest.fixture(scope="module")
def users_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    with featurestore.connect(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def client(users_store: FeatureStore, provider: OpenIdProvider) -> Iterator[TestClient]:
    with client_of(users_store, provider=settings_of(provider)) as client:
        yield client


def is_signed_in(client: TestClient) -> bool:
    return client.get("/groups").status_code == 200


def test_valid_provider_signs_in(client: TestClient) -> None:
    assert client.get(came_back(client)).status_code == 303
    assert is_signed_in(client)


def test_a_token_without_a_claim_is_refused(
    client: TestClient, provider: OpenIdProvider, subtests: pytest.Subtests
) -> None:
    for missing in ("iss", "sub", "aud", "exp", "iat", "nonce"):
        with subtests.test(missing):
            check_refusal(client, provider, {missing: None})
    check_honest_sign_in(client, provider)


def check_refusal(client: TestClient, provider: OpenIdProvider, claims: dict[str, Any]) -> None:
    """Check that a token with changed claims is refused."""
    client.cookies.clear()
    provider.claims = claims
    assert client.get(came_back(client)).status_code == 401
    assert not is_signed_in(client)


def check_honest_sign_in(client: TestClient, provider: OpenIdProvider) -> None:
    """Check that the refusals before were not caused by earlier refusals."""
    provider.claims = {}
    assert client.get(came_back(client)).status_code == 303
    assert is_signed_in(client)


def test_a_token_with_a_wrong_claim_is_refused(
    client: TestClient, provider: OpenIdProvider, subtests: pytest.Subtests
) -> None:
    wrong_claims: list[dict[str, Any]] = [
        {"aud": ["featurestore", "other"], "azp": "other"},
        {"aud": ["other"]},
        {"aud": []},
        {"nonce": ""},
        {"iss": ""},
        {"exp": NOW - 120},
        {"exp": str(NOW + 3600)},
        {"iat": NOW + 3600},
        {"nbf": NOW + 3600},
        {"sub": ""},
        {"sub": ["a"]},
        {"sub": "a" * 256},
        {"at_hash": "x"},
    ]
    for claims in wrong_claims:
        with subtests.test(claims=claims):
            check_refusal(client, provider, claims)
    check_honest_sign_in(client, provider)


def test_clock_skew_of_a_minute_is_accepted(
    client: TestClient, provider: OpenIdProvider, subtests: pytest.Subtests
) -> None:
    for skew in (-50, 50):
        with subtests.test(skew=skew):
            client.cookies.clear()
            now = int(time.time()) + skew
            provider.claims = {"iat": now, "exp": now + 5 if skew < 0 else now + 60}
            assert client.get(came_back(client)).status_code == 303


@pytest.mark.parametrize("algorithm", ["none", "HS256", "HS256 with the public key"])
def test_a_token_of_a_weaker_algorithm_is_refused(
    client: TestClient, provider: OpenIdProvider, algorithm: str
) -> None:
    provider.header = {"alg": algorithm.split()[0]}
    provider.signer = OctKey.import_key(SECRET.encode())
    if "public" in algorithm:
        provider.sign = lambda header, claims: signed_with(
            provider.key.as_pem(private=False), header, claims
        )
    assert client.get(came_back(client)).status_code == 401
    assert not is_signed_in(client)


def signed_with(secret: bytes, header: dict[str, Any], claims: dict[str, Any]) -> str:
    """Return a token signed by HMAC with a public key."""
    segments = [
        base64.urlsafe_b64encode(json.dumps(document).encode()) for document in (header, claims)
    ]
    content = b".".join(segment.rstrip(b"=") for segment in segments)
    signature = base64.urlsafe_b64encode(hmac.new(secret, content, hashlib.sha256).digest())
    return (content + b"." + signature.rstrip(b"=")).decode()


def test_keys_of_a_provider_are_rotated(client: TestClient, provider: OpenIdProvider) -> None:
    assert client.get(came_back(client)).status_code == 303
    old, new = provider.key, RSAKey.generate_key(2048, {"kid": "2", "use": "sig", "alg": "RS256"})
    provider.key = provider.signer = new
    provider.header = {"kid": "2"}
    assert client.get(came_back(client)).status_code == 303
    provider.signer, provider.header = old, {"kid": "1"}
    client.cookies.clear()
    assert client.get(came_back(client)).status_code == 401
    assert not is_signed_in(client)


def test_key_in_token_header_is_ignored(client: TestClient, provider: OpenIdProvider) -> None:
    forged = RSAKey.generate_key(2048, {"kid": "1"})
    provider.signer = forged
    provider.header = {"jwk": forged.as_dict(private=False)}
    assert client.get(came_back(client)).status_code == 401


def test_token_of_another_issuer_is_refused(client: TestClient, provider: OpenIdProvider) -> None:
    provider.back = {"iss": "https://evil.example"}
    assert client.get(came_back(client)).status_code == 401
    assert provider.forms == []
    provider.back = {"iss": provider.issuer}
    assert client.get(came_back(client)).status_code == 303


def test_an_answer_without_code_or_state_is_refused(
    client: TestClient, provider: OpenIdProvider
) -> None:
    for change in ({"code": None}, {"state": None}, {"state": ""}, {"state": "x"}):
        address = urlsplit(came_back(client))
        values = {name: texts[0] for name, texts in parse_qs(address.query).items()} | change
        query = "&".join(
            f"{name}={quote(value)}" for name, value in values.items() if value is not None
        )
        assert client.get(f"/sign-in/back?{query}").status_code == 401
        assert client.get(f"/sign-in/back?{address.query}&{address.query}").status_code == 401
    assert provider.forms == []


def test_cookie_without_secrets_starts_no_sign_in(client: TestClient) -> None:
    attempts = [
        {"state": "", "nonce": "", "verifier": "", "following": "/"},
        {"state": "a", "nonce": "b", "verifier": "c", "following": "/"},
        {"state": ["a" * 43], "nonce": "b" * 43, "verifier": "c" * 43, "following": "/"},
        {"state": "a" * 43, "nonce": "b" * 43, "verifier": "c" * 43, "following": 1},
        {"state": "a" * 43},
    ]
    for text in (*map(json.dumps, attempts), "[" * 3000, "", "1"):
        client.cookies.set(PROVIDER_COOKIE, quote(text))
        assert client.get("/sign-in/back?code=x&state=").status_code == 401
        client.cookies.clear()


def test_code_exchange_always_requires_pkce(client: TestClient, provider: OpenIdProvider) -> None:
    provider.metadata = {"code_challenge_methods_supported": ["plain"]}
    address = client.get("/sign-in/provider").headers["location"]
    query = parse_qs(urlsplit(address).query)
    assert query["code_challenge_method"] == ["S256"]
    assert query["redirect_uri"] == ["http://localhost/sign-in/back"]
    assert client.get(came_back(client)).status_code == 303
    assert len(provider.forms[0]["code_verifier"]) >= 43


def test_redirect_addresses_are_of_this_server(
    users_store: FeatureStore, provider: OpenIdProvider
) -> None:
    with client_of(users_store, provider=settings_of(provider), names=("localhost",)) as client:
        headers = {"Host": "evil.example"}
        assert client.get("/sign-in/provider", headers=headers).status_code == 400
        headers = {"X-Forwarded-Host": "evil.example", "Forwarded": "host=evil.example"}
        assert "evil" not in client.get("/sign-in/provider", headers=headers).headers["location"]


def test_code_exchange_follows_no_redirect(client: TestClient, provider: OpenIdProvider) -> None:
    provider.redirect = f"{provider.issuer}/elsewhere"
    assert client.get(came_back(client)).status_code == 401
    assert len(provider.forms) == 1


def test_plain_http_endpoints_are_refused(
    users_store: FeatureStore, provider: OpenIdProvider, subtests: pytest.Subtests
) -> None:
    for endpoint, address in product(
        ("authorization_endpoint", "token_endpoint", "jwks_uri"),
        ("http://evil.example/x", "javascript:alert(1)", "file:///etc", None),
    ):
        # A server requests the metadata once.
        with (
            subtests.test(endpoint, address=address),
            client_of(users_store, provider=settings_of(provider)) as client,
        ):
            provider.metadata = {endpoint: address}
            response = client.get("/sign-in/provider")
            assert response.status_code == 400
            assert "location" not in response.headers


def test_unusual_provider_names_are_accepted(
    client: TestClient, provider: OpenIdProvider, subtests: pytest.Subtests
) -> None:
    for name in ("x" * 10_000, "a\nb", "<b>", "../x", "", ["a"], {"a": 1}, "\x00"):
        with subtests.test(name=name):
            client.cookies.clear()
            provider.claims = {"preferred_username": name, "sub": f"subject {name!r}"[:100]}
            assert client.get(came_back(client)).status_code in (303, 400, 401)
