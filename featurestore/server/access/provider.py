"""Signing in by an OpenID Connect provider: the code flow with PKCE, by Authlib.

https://openid.net/specs/openid-connect-core-1_0.html#CodeFlowAuth
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from featurestore.errors import (
    ConfigurationError,
    FeatureStoreError,
    NotSignedIn,
    UserExists,
    missing_extra,
)
from featurestore.model.secrets import parse_secret
from featurestore.registry import access
from featurestore.registry.audit_log import Actor
from featurestore.server.access import changes
from featurestore.server.access.secrets import new_secret
from featurestore.server.settings import Provider
from featurestore.session import Session
from featurestore.storage.secrets import allow_secret, resolve_secret

if TYPE_CHECKING:
    from authlib.integrations.requests_client import OAuth2Session

_SECONDS = 10
_SCOPE = "openid profile email"
_LEEWAY = 60
# "none" is no signature, and with HS256 the secret that we share would be a key.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA", "Ed25519")
_NAME = "sign-in provider"
_SHORTEST_SECRET = 43  # characters of 256 random bits, as new_secret makes them
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True)
class Attempt:
    """What a browser keeps between leaving for the provider and coming back."""

    state: str
    nonce: str
    verifier: str
    following: str

    def to_text(self) -> str:
        """Return it as a cookie holds it."""
        return json.dumps(vars(self))

    @classmethod
    def from_text(cls, text: str) -> Attempt:
        """Return what a cookie holds.

        Raises:
            NotSignedIn: It holds no attempt.
        """
        try:
            attempt = cls(**json.loads(text))
        except (ValueError, TypeError, RecursionError):
            raise NotSignedIn("This browser did not begin to sign in.") from None
        secrets = (attempt.state, attempt.nonce, attempt.verifier)
        # An empty state or nonce is one that libraries do not compare.
        is_whole = all(isinstance(each, str) and len(each) >= _SHORTEST_SECRET for each in secrets)
        if not is_whole or not isinstance(attempt.following, str):
            raise NotSignedIn("This browser did not begin to sign in.")
        return attempt


class ProviderClient:
    """The way to a provider; its metadata is read when somebody first signs in by it."""

    def __init__(self, session: Session, provider: Provider) -> None:
        self._session = session
        self._provider = provider
        self._known: dict[str, Any] | None = None
        _check_address(provider.issuer)
        self._secret = _secret_of(session, provider)

    def begin(self, back: str, following: str) -> tuple[str, Attempt]:
        """Return the provider's page that asks who somebody is, and what the browser keeps."""
        attempt = Attempt(new_secret(), new_secret(), new_secret(), following)
        with self._connected(back) as client:
            address, _ = client.create_authorization_url(
                self._metadata()["authorization_endpoint"],
                state=attempt.state,
                code_verifier=attempt.verifier,
                nonce=attempt.nonce,
            )
        return address, attempt

    def finish(self, back: str, attempt: Attempt, answered: str) -> str:
        """Return the name of the user whom the provider's answer names, added where that is set.

        Args:
            back: The address of this server to which the provider leads back.
            attempt: What the browser kept.
            answered: The address with which it came back.

        Raises:
            NotSignedIn: The provider refused, or what it said is not about this attempt.
        """
        from authlib.common.errors import AuthlibBaseError
        from joserfc.errors import JoseError
        from requests import RequestException

        self._check_answer(attempt, answered)
        try:
            with self._connected(back) as client:
                client.state = attempt.state
                # The code, its verifier and our secret go to the provider and to nobody else.
                token = client.fetch_token(
                    self._metadata()["token_endpoint"],
                    authorization_response=answered,
                    code_verifier=attempt.verifier,
                    timeout=_SECONDS,
                    allow_redirects=False,
                )
                claims = self._claims(client, token, attempt.nonce)
        except (AuthlibBaseError, JoseError, RequestException, KeyError, ValueError) as error:
            raise NotSignedIn(
                f"{self._provider.label} did not say who it is: {type(error).__name__}."
            ) from error
        return self._user(claims)

    def _check_answer(self, attempt: Attempt, answered: str) -> None:
        """Refuse an answer to another attempt, or of another provider (RFC 9207).

        Raises:
            NotSignedIn: It has no code, another state, or names another issuer.
        """
        values = parse_qs(urlsplit(answered).query, keep_blank_values=True, max_num_fields=20)
        state, issuers = values.get("state", []), values.get("iss", [])
        is_whole = state == [attempt.state] and len(values.get("code", [])) == 1
        if not is_whole or issuers not in ([], [self._provider.issuer]):
            raise NotSignedIn(f"{self._provider.label} did not answer what this browser asked.")

    def _claims(self, client: OAuth2Session, token: dict[str, Any], nonce: str) -> dict[str, Any]:
        """Return what a signed token says, once all of it holds."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.jwk import KeySet

        address = self._metadata()["jwks_uri"]
        answer = client.get(address, timeout=_SECONDS, withhold_token=True, allow_redirects=False)
        answer.raise_for_status()
        keys = KeySet.import_key_set(answer.json())
        decoded = jwt.decode(token["id_token"], keys, algorithms=list(_ALGORITHMS))
        expected = {
            "iss": {"essential": True, "value": self._provider.issuer},
            "aud": {"essential": True, "value": self._provider.client},
            "nonce": {"essential": True, "value": nonce},
        }
        about = {"nonce": nonce, "client_id": self._provider.client}
        about["access_token"] = token.get("access_token", "")
        claims = CodeIDToken(decoded.claims, decoded.header, expected, about)
        claims.validate(leeway=_LEEWAY)
        return dict(claims)

    def _user(self, claims: dict[str, Any]) -> str:
        issuer, subject = str(claims["iss"]), str(claims["sub"])
        with self._session.registry.reading() as connection:
            known = access.find_identity(connection, issuer, subject)
        if known is not None:
            return known.name
        role = self._provider.role
        if role is None:
            raise NotSignedIn(
                f"No user here is {subject!r} of {self._provider.label}.",
                hint=f"an admin adds one: featurestore user add NAME --issuer {issuer} "
                f"--subject {subject}",
            )
        name = str(claims.get("preferred_username") or claims.get("email") or subject).lower()
        try:
            added = changes.add_user(
                self._session,
                Actor(name, self._provider.label),
                name,
                role=role,
                issuer=issuer,
                subject=subject,
            )
        except UserExists:
            # Whoever comes by a provider is not thereby the user who has that name here.
            raise NotSignedIn(
                f"Another user is called {name!r} here.", hint="an admin adds you by another name"
            ) from None
        return added.name

    def _connected(self, back: str) -> OAuth2Session:
        try:
            from authlib.integrations.requests_client import OAuth2Session
        except ModuleNotFoundError as error:
            raise missing_extra(error.name or "authlib", "server") from None
        return OAuth2Session(
            self._provider.client,
            self._secret,
            scope=_SCOPE,
            redirect_uri=back,
            code_challenge_method="S256",
        )

    def _metadata(self) -> dict[str, Any]:
        """Return what the provider says of itself.

        Raises:
            ConfigurationError: It cannot be reached, or says that it is another one.
        """
        if self._known is None:
            import requests

            address = f"{self._provider.issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                answer = requests.get(address, timeout=_SECONDS, allow_redirects=False)
                answer.raise_for_status()
                found = dict(answer.json())
            except (requests.RequestException, ValueError) as error:
                raise ConfigurationError(
                    f"The provider at {address} does not answer: {type(error).__name__}.",
                    hint="--oidc-issuer is the address before /.well-known/openid-configuration",
                ) from error
            if found.get("issuer") != self._provider.issuer:
                raise ConfigurationError(
                    f"The provider at {address} calls itself {found.get('issuer')!r}.",
                    hint=f"--oidc-issuer {found.get('issuer')}",
                )
            for name in _ENDPOINTS:
                _check_address(str(found.get(name)))
            self._known = found
        return self._known


def _check_address(address: str) -> None:
    """Refuse an address of a provider whose word anybody on the way could change.

    Raises:
        ConfigurationError: It is neither https nor of this machine.
    """
    parts = urlsplit(address)
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and local):
        raise ConfigurationError(
            f"--oidc-issuer {address!r} is no address of https.", hint="https://login.example.org"
        )


def _secret_of(session: Session, provider: Provider) -> str:
    reference = parse_secret(provider.secret)
    place = {"location": session.location, "name": _NAME, "uri": provider.issuer}
    # Who starts the server names the address and the secret for it in one breath.
    allow_secret(reference, **place)
    try:
        return resolve_secret(reference, **place)
    except FeatureStoreError as error:
        raise ConfigurationError(f"--oidc-secret: {error.message}", hint=error.hint) from error
