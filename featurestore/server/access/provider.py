"""Sign-in with an OpenID Connect provider: authorization code flow with PKCE, using Authlib.

https://openid.net/specs/openid-connect-core-1_0.html#CodeFlowAuth
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qs, urlsplit

from featurestore.errors import (
    ConfigurationError,
    FeatureStoreError,
    NotSignedIn,
    UserExists,
    missing_extra,
)
from featurestore.model.names import parse_secret
from featurestore.model.records import Record, Valid
from featurestore.registry import access
from featurestore.registry.audit_log import Actor
from featurestore.server.access import changes
from featurestore.server.access.visitors import new_secret
from featurestore.server.bounds import check_json
from featurestore.server.settings import Provider
from featurestore.session import Session
from featurestore.storage.grants import read_secret

if TYPE_CHECKING:
    from authlib.integrations.requests_client import OAuth2Session
    from requests import Response
    from requests import Session as HttpSession

_TIMEOUT_SECONDS = 10
_SCOPE = "openid profile email"
_LEEWAY_SECONDS = 60
# OpenID Connect Core 1.0, section 2: "sub" has at most 255 characters.
_LONGEST_SUBJECT = 255
# Excludes "none" (no signature) and HS256, which would accept the client secret as a key.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA", "Ed25519")
_MIN_SECRET_LENGTH = 43  # characters of 256 random bits, see new_secret
_MAX_BYTES, _CHUNK_BYTES = 1 << 20, 1 << 16
_LONGEST_ADDRESS = 2000
_LONGEST_LIFETIME = 10 * 365 * 86_400  # seconds
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


def _is_secret(text: str) -> bool:
    # Libraries do not reject an empty state or nonce.
    return len(text) >= _MIN_SECRET_LENGTH


Secret = Annotated[str, Valid(_is_secret, "a secret")]


@dataclass(frozen=True)
class Attempt(Record, closed=True):
    """The state of a sign-in attempt, stored in a cookie during the redirect to the provider."""

    state: Secret
    nonce: Secret
    verifier: Secret
    following: str

    def to_text(self) -> str:
        """Serialize the attempt for the cookie."""
        return json.dumps(self.to_json())

    @classmethod
    def from_text(cls, text: str) -> Attempt:
        """Parse the cookie of a sign-in attempt.

        Raises:
            NotSignedIn: The cookie is missing or damaged.
        """
        try:
            # The cookie is untrusted: deep nesting raises RecursionError.
            return cls.from_json(json.loads(text))
        except (ValueError, RecursionError):
            raise NotSignedIn("No sign-in is in progress in this browser.") from None


class ProviderClient:
    """Client for a provider, whose metadata is requested at the first sign-in."""

    def __init__(self, session: Session, provider: Provider) -> None:
        self._session = session
        self._provider = provider
        self._cached_metadata: dict[str, Any] | None = None
        _check_address(provider.issuer)
        self._secret = _client_secret(provider)

    def begin(self, redirect_uri: str, following: str) -> tuple[str, Attempt]:
        """Return the authorization URL of the provider, and the attempt to store in a cookie."""
        attempt = Attempt(new_secret(), new_secret(), new_secret(), following)
        with self._oauth_session(redirect_uri) as client:
            address, _ = client.create_authorization_url(
                self._metadata()["authorization_endpoint"],
                state=attempt.state,
                code_verifier=attempt.verifier,
                nonce=attempt.nonce,
            )
        return address, attempt

    def finish(self, redirect_uri: str, attempt: Attempt, response_address: str) -> str:
        """Return the user in a provider response; add it if the provider has a default role.

        Args:
            redirect_uri: The URL on this server to which the provider redirects.
            attempt: The attempt in the browser's cookie.
            response_address: The URL of the redirect, including its query.

        Raises:
            NotSignedIn: The provider refused, or its response belongs to another attempt.
        """
        try:
            self._check_answer(attempt, response_address)
            with self._oauth_session(redirect_uri) as client:
                client.state = attempt.state
                # Redirects are disabled, so that code, verifier and secret are sent only to the
                # provider.
                token = client.fetch_token(
                    self._metadata()["token_endpoint"],
                    authorization_response=response_address,
                    code_verifier=attempt.verifier,
                    timeout=_TIMEOUT_SECONDS,
                    allow_redirects=False,
                )
                claims = self._claims(client, token, attempt.nonce)
        except _malformed_answers() as error:
            raise NotSignedIn(
                f"Sign-in with {self._provider.label} failed: {type(error).__name__}."
            ) from error
        return self._find_or_add_user(claims)

    def _check_answer(self, attempt: Attempt, response_address: str) -> None:
        """Reject a response to another attempt or from another provider (RFC 9207).

        Raises:
            NotSignedIn: The code is missing, or state or issuer differ.
        """
        parameters = parse_qs(
            urlsplit(response_address).query, keep_blank_values=True, max_num_fields=20
        )
        state, issuers = parameters.get("state", []), parameters.get("iss", [])
        is_complete = state == [attempt.state] and len(parameters.get("code", [])) == 1
        if not is_complete or issuers not in ([], [self._provider.issuer]):
            raise NotSignedIn(
                f"The response of {self._provider.label} does not match this sign-in."
            )

    def _claims(self, client: OAuth2Session, token: dict[str, Any], nonce: str) -> dict[str, Any]:
        """Validate an ID token and return its claims."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.jwk import KeySet

        # The keys are requested at each sign-in, so that a provider can rotate them at any time.
        # They are public, so the request does not contain the access token.
        address = self._metadata()["jwks_uri"]
        response = client.get(
            address, timeout=_TIMEOUT_SECONDS, withhold_token=True, allow_redirects=False
        )
        response.raise_for_status()
        keys = KeySet.import_key_set(parse_object(response.content))  # type: ignore[arg-type]
        decoded = jwt.decode(token["id_token"], keys, algorithms=list(_ALGORITHMS))
        # The issuer and audience bind the token to this provider and server, and the nonce to this
        # attempt.
        required_claims = {
            "iss": {"essential": True, "value": self._provider.issuer},
            "aud": {"essential": True, "value": self._provider.client},
            "nonce": {"essential": True, "value": nonce},
        }
        request_values = {"nonce": nonce, "client_id": self._provider.client}
        request_values["access_token"] = token.get("access_token", "")
        claims = CodeIDToken(decoded.claims, decoded.header, required_claims, request_values)
        # The clocks of the provider and this machine may differ.
        claims.validate(leeway=_LEEWAY_SECONDS)
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= _LONGEST_SUBJECT:
            raise ValueError(f"sub has not 1 to {_LONGEST_SUBJECT} characters")
        return dict(claims)

    def _find_or_add_user(self, claims: dict[str, Any]) -> str:
        """Return the name of the user that an ID token identifies."""
        issuer, subject = str(claims["iss"]), claims["sub"]
        with self._session.registry.reading() as connection:
            # OpenID Connect guarantees only the pair of issuer and subject to be stable and unique.
            known_user = access.find_identity(connection, issuer, subject)
        if known_user is not None:
            return known_user.name
        role = self._provider.role
        if role is None:
            raise NotSignedIn(
                f"No user is linked to {subject!r} of {self._provider.label}.",
                hint=f"an admin can add the user: featurestore user add NAME --issuer {issuer} "
                f"--subject {subject}",
            )
        name = str(claims.get("preferred_username") or claims.get("email") or subject).lower()
        try:
            new_user = changes.add_user(
                self._session,
                Actor(name, self._provider.label),
                name,
                role=role,
                issuer=issuer,
                subject=subject,
            )
        except UserExists:
            # An equal name does not prove that it is the same person.
            raise NotSignedIn(
                f"The name {name!r} is taken by another user.",
                hint="an admin can add you under another name",
            ) from None
        return new_user.name

    def _oauth_session(self, redirect_uri: str) -> OAuth2Session:
        try:
            from authlib.integrations.requests_client import OAuth2Session
        except ModuleNotFoundError as error:
            raise missing_extra(error.name or "authlib", "server") from None
        client = OAuth2Session(
            self._provider.client,
            self._secret,
            scope=_SCOPE,
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
        )
        client.register_compliance_hook("access_token_response", _check_token_response)
        _bound_responses(client)
        return client

    def _metadata(self) -> dict[str, Any]:
        """Return the provider metadata, which is cached after the first request.

        Raises:
            ConfigurationError: The provider is unreachable or its metadata contains another issuer.
        """
        if self._cached_metadata is None:
            import requests

            address = f"{self._provider.issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                with requests.Session() as session:
                    _bound_responses(session)
                    response = session.get(address, timeout=_TIMEOUT_SECONDS, allow_redirects=False)
                response.raise_for_status()
                metadata = parse_object(response.content)
            except _malformed_answers() as error:
                raise ConfigurationError(
                    f"The provider at {address} does not return its configuration: "
                    f"{type(error).__name__}.",
                    hint="--oidc-issuer is the URL before /.well-known/openid-configuration",
                ) from error
            # OpenID Connect Discovery requires this comparison, so that a provider cannot
            # impersonate another one.
            if metadata.get("issuer") != self._provider.issuer:
                issuer = str(metadata.get("issuer"))[:_LONGEST_SUBJECT]
                raise ConfigurationError(
                    f"The provider at {address} has the issuer {issuer!r}, not "
                    f"{self._provider.issuer!r}.",
                    hint=f"--oidc-issuer {issuer}",
                )
            for name in _ENDPOINTS:
                # The code and the client secret must not be sent over plain HTTP.
                _check_address(str(metadata.get(name))[:_LONGEST_ADDRESS])
            self._cached_metadata = metadata
        return self._cached_metadata


def _check_address(address: str) -> None:
    """Require https for a provider that is not on this machine.

    Raises:
        ConfigurationError: The address is neither https nor on this machine.
    """
    try:
        url = urlsplit(address)
        is_local = url.hostname in ("localhost", "127.0.0.1", "::1")
        is_valid = url.scheme == "https" or (url.scheme == "http" and is_local)
    except ValueError:  # the host has a single bracket
        is_valid = False
    if not is_valid:
        raise ConfigurationError(
            f"--oidc-issuer {address!r} is not an https URL.", hint="https://login.example.org"
        )


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object of a provider.

    >>> parse_object(b'{"keys": []}')
    {'keys': []}

    Raises:
        ValueError: The text is not a JSON object, or exceeds a limit.
    """
    check_json(text)
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _check_token_response(response: Response) -> Response:
    """Raise ValueError if the response of the token endpoint is not a JSON object."""
    token = parse_object(response.content)
    # The error is a text; the library formats every value.
    for name in ("id_token", "access_token", "token_type", "error", "error_description"):
        if not isinstance(token.get(name, ""), str):
            raise ValueError(f"{name} is not a string")
    # The library would compute with other values.
    for name in ("expires_in", "expires_at"):
        if not isinstance(token.get(name, 0), int) or token.get(name, 0) > _LONGEST_LIFETIME:
            raise ValueError(f"{name} is not a number of seconds")
    return response


def _bound_responses(session: HttpSession) -> None:
    """Let a session read responses of bounded size and time only."""
    from requests.adapters import HTTPAdapter

    class BoundedAdapter(HTTPAdapter):
        """Reads a complete response within the limits."""

        def send(self, *arguments: Any, **options: Any) -> Response:
            response = super().send(*arguments, **(options | {"stream": True}))
            deadline = time.monotonic() + _TIMEOUT_SECONDS
            content = bytearray()
            try:
                # read1 returns the bytes that have arrived.
                while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=True):
                    content += chunk
                    if len(content) > _MAX_BYTES or time.monotonic() > deadline:
                        raise ValueError("the response is too long")
            finally:
                response.close()
            response._content = bytes(content)
            return response

    session.mount("https://", BoundedAdapter())
    session.mount("http://", BoundedAdapter())


def _malformed_answers() -> tuple[type[Exception], ...]:
    """Return the errors that libraries raise for responses of a provider with any content."""
    from authlib.common.errors import AuthlibBaseError
    from cryptography.exceptions import UnsupportedAlgorithm
    from joserfc.errors import JoseError
    from requests import RequestException
    from urllib3.exceptions import HTTPError

    libraries = (AuthlibBaseError, JoseError, RequestException, HTTPError, UnsupportedAlgorithm)
    return (
        *libraries,
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    )


def _client_secret(provider: Provider) -> str:
    """Resolve the client secret; raise ConfigurationError if it is unavailable."""
    # The operator configures issuer and secret on this machine, so they need no grant.
    try:
        return read_secret(parse_secret(provider.secret))
    except FeatureStoreError as error:
        raise ConfigurationError(f"--oidc-secret: {error.message}", hint=error.hint) from error
