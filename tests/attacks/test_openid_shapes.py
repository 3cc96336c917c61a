"""Responses of an OpenID Connect provider with any content are failed sign-ins, never errors 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

import featurestore
from featurestore.errors import InvalidArgument
from featurestore.server.access import changes
from tests.server.openid_provider import SECRET, OpenIdProvider, running
from tests.server.private_groups import ROOT, client_of
from tests.server.test_provider import came_back, settings_of

DISCOVERY, KEYS, TOKEN = "/.well-known/openid-configuration", "/keys", "/token"
NAMES = ("keys", "kty", "n", "e", "kid", "alg", "use", "crv", "x", "id_token", "access_token", "error",
         "expires_in", "issuer", "jwks_uri", "token_endpoint", "authorization_endpoint")  # fmt: skip
VALUES = (
    "RSA",
    "EC",
    "OKP",
    "oct",
    "RS256",
    "P-256",
    "AQAB",
    "1",
    "a.b.c",
    "..",
    "https://[",
    "\ud800",
)
SHAPES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(VALUES)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=10,
)
RAW_BODIES = (
    b"", b"null", b"[]", b"{}", b"0", b'"a"', b"[" * 100_000, b'{"keys":' * 50_000, b"9" * 5_000,
    b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b"<html>", b"[]" + b" " * (3 << 20), b'{"keys": null}',
    b'{"keys": [null]}', b'{"keys": [{"kty": "RSA", "n": 1, "e": []}]}', b'{"id_token": {"a": 1}}',
    b'{"id_token": "a.b.c", "expires_in": 1e999}', b'{"error": {"a": 1}}', b'{"error": "a\\nb"}',
)  # fmt: skip


@pytest.fixture(scope="module")
def provider() -> Iterator[OpenIdProvider]:
    with pytest.MonkeyPatch.context() as environment, running() as provider:
        environment.setenv("OIDC_SECRET", SECRET)
        yield provider


@pytest.fixture(scope="module")
def client(
    provider: OpenIdProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    with (
        featurestore.connect(tmp_path_factory.mktemp("store")) as store,
        client_of(store, provider=settings_of(provider)) as client,
    ):
        yield client


def check_refusals(
    client: TestClient, provider: OpenIdProvider, path: str, status: int, body: bytes
) -> None:
    """Check that a sign-in fails with a page while the provider sends this body."""
    client.cookies.clear()
    client.app.state.provider._cached_metadata = None  # type: ignore[attr-defined]
    provider.raw = {}
    if path == DISCOVERY:
        provider.raw = {path: (status, body)}
        response = client.get("/sign-in/provider")
    else:
        address = came_back(client)
        provider.raw = {path: (status, body)}
        response = client.get(address)
    assert response.status_code in (400, 401), (path, status, body[:100], response.text[:300])
    assert response.headers["content-type"].startswith("text/html")
    assert client.get("/groups", follow_redirects=False).status_code == 303


@pytest.mark.parametrize("path", [DISCOVERY, KEYS, TOKEN])
def test_unexpected_bodies_of_a_provider_fail_the_sign_in(
    client: TestClient, provider: OpenIdProvider, subtests: pytest.Subtests, path: str
) -> None:
    for status in (200, 302, 500):
        for body in RAW_BODIES if status == 200 else RAW_BODIES[:4]:
            with subtests.test(status=status, body=body[:60]):
                check_refusals(client, provider, path, status, body)

    @settings(
        max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(shape=SHAPES)
    def check_shape(shape: Any) -> None:
        check_refusals(client, provider, path, 200, json.dumps(shape).encode())

    check_shape()
    check_honest_sign_in(client, provider)


def check_honest_sign_in(client: TestClient, provider: OpenIdProvider) -> None:
    """Check that earlier responses did not cause the refusals."""
    provider.raw, provider.claims, provider.header = {}, {}, {}
    client.app.state.provider._cached_metadata = None  # type: ignore[attr-defined]
    client.cookies.clear()
    assert client.get(came_back(client)).status_code == 303
    assert client.get("/groups").status_code == 200


def test_claims_of_unexpected_types_fail_the_sign_in(
    client: TestClient, provider: OpenIdProvider
) -> None:
    names = (
        "iss",
        "sub",
        "aud",
        "exp",
        "iat",
        "nbf",
        "nonce",
        "azp",
        "at_hash",
        "acr",
        "auth_time",
    )

    @settings(
        max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(
        claims=st.dictionaries(st.sampled_from(names), SHAPES, min_size=1, max_size=3),
        header=st.dictionaries(
            st.sampled_from(["kid", "jku", "typ", "crit", "b64"]), SHAPES, max_size=1
        ),
    )
    def check(claims: Any, header: Any) -> None:
        client.cookies.clear()
        provider.raw, provider.claims, provider.header = {}, claims, {"crit": None} | header
        provider.sign = sign_anything(provider)
        response = client.get(came_back(client))
        assert response.status_code in (303, 400, 401), (claims, header, response.text[:300])

    try:
        check()
    finally:
        provider.sign = None
    check_honest_sign_in(client, provider)


def sign_anything(provider: OpenIdProvider) -> Any:
    """Return a function that signs any header and claims with the key of the provider."""
    from base64 import urlsafe_b64encode

    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    def encode(content: bytes) -> str:
        return urlsafe_b64encode(content).decode().rstrip("=")

    def sign(header: dict[str, Any], claims: dict[str, Any]) -> str:
        present = {name: value for name, value in header.items() if value is not None}
        content = ".".join(encode(json.dumps(part).encode()) for part in (present, claims))
        signature = provider.key.private_key.sign(
            content.encode(), padding.PKCS1v15(), hashes.SHA256()
        )
        return f"{content}.{encode(signature)}"

    return sign


def test_many_parameters_of_a_redirect_fail_the_sign_in(
    client: TestClient, provider: OpenIdProvider
) -> None:
    provider.raw = {}
    address = came_back(client)
    many = urlencode([(f"p{number}", "x") for number in range(30)])
    for query in (
        many,
        "state=%ff&code=%00",
        "code=a&state=" + "b" * 20_000,
        "code&state",
        "error=a%0Ab",
    ):
        response = client.get(f"/sign-in/back?{query}")
        assert response.status_code == 401, query[:50]
    assert client.get(f"{address}&{many}").status_code == 401


def test_users_of_a_provider_have_an_issuer_and_a_subject(client: TestClient) -> None:
    session = client.app.state.store.session  # type: ignore[attr-defined]
    for issuer, subject in (
        ("", ""),
        ("https://a.example", ""),
        ("", "7"),
        (None, "7"),
        ("https://a.example", None),
    ):
        with pytest.raises(InvalidArgument, match="must both have a value"):
            changes.add_user(session, ROOT, "zoe", issuer=issuer, subject=subject)
