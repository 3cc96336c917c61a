"""A small OpenID Connect provider without sign-in forms, with configurable faults."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.http_server import serve

CLIENT, SECRET = "featurestore", "what the provider told us"


@dataclass
class OpenIdProvider:
    """The signed-in identity, and configured faults: wrong claims or a wrong signing key."""

    issuer: str = ""
    subject: str = "subject-7"
    name: str = "Rea@example.org"
    claims: dict[str, Any] = field(default_factory=dict)
    signer: Any = None
    sign: Any = None
    key: Any = None
    requests_by_code: dict[str, dict[str, str]] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    back: dict[str, str] = field(default_factory=dict)
    redirect: str | None = None
    # Raw responses by path, instead of those of an honest provider: status and body.
    raw: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    forms: list[dict[str, str]] = field(default_factory=list)

    def code(self, query: dict[str, str]) -> str:
        code = f"code-{len(self.requests_by_code)}"
        self.requests_by_code[code] = query
        return code

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """Exchange a code once, for its client, with the verifier of its challenge."""
        from joserfc import jwt

        pair = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        query = self.requests_by_code.pop(form["code"], None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if query is None or authorization != f"Basic {pair}":
            return 400, {"error": "invalid_client"}
        if challenge != query["code_challenge"] or form["redirect_uri"] != query["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        actual = {"iss": self.issuer, "sub": self.subject, "aud": CLIENT, "iat": now}
        actual |= {"exp": now + 60, "nonce": query["nonce"], "preferred_username": self.name}
        header = {"alg": "RS256", "kid": "1"} | self.header
        claims = {
            name: value for name, value in (actual | self.claims).items() if value is not None
        }
        algorithms = [header["alg"], "none"]
        if self.sign is not None:
            signed = self.sign(header, claims)
        else:
            signed = jwt.encode(header, claims, self.signer, algorithms=algorithms)
        return 200, {"access_token": "a", "token_type": "Bearer", "id_token": signed}


@contextmanager
def running() -> Iterator[OpenIdProvider]:
    """Yield a running provider on this machine."""
    from joserfc.jwk import RSAKey

    key = RSAKey.generate_key(2048, {"kid": "1", "use": "sig", "alg": "RS256"})
    provider = OpenIdProvider(signer=key, key=key)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path in provider.raw:
                self.send_raw(*provider.raw[url.path])
            elif url.path == "/authorize":
                query = dict(parse_qsl(url.query))
                back = {"code": provider.code(query), "state": query["state"]} | provider.back
                self.send_response(303)
                self.send_header("Location", f"{query['redirect_uri']}?{urlencode(back)}")
                self.end_headers()
            elif url.path == "/keys":
                self.send_json(200, {"keys": [provider.key.as_dict(private=False)]})
            else:
                metadata = {"issuer": provider.issuer, "jwks_uri": f"{provider.issuer}/keys"}
                for name in ("authorization", "token"):
                    path = name.removesuffix("ation").replace("authoriz", "authorize")
                    metadata[f"{name}_endpoint"] = f"{provider.issuer}/{path}"
                self.send_json(200, metadata | provider.metadata)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = dict(parse_qsl(body))
            provider.forms.append(form)
            if provider.redirect is not None:
                self.send_response(307)
                self.send_header("Location", provider.redirect)
                self.end_headers()
                return
            if "/token" in provider.raw:
                self.send_raw(*provider.raw["/token"])
                return
            self.send_json(*provider.token(form, self.headers.get("Authorization", "")))

        def send_raw(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Location", f"{provider.issuer}/elsewhere")
            self.end_headers()
            with suppress(OSError):  # the client stops reading
                self.wfile.write(body)

        def send_json(self, status: int, body: dict[str, Any]) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    with serve(Handler) as port:
        provider.issuer = f"http://127.0.0.1:{port}"
        yield provider
