"""Tokens of a real issuer: a small OpenID Connect server with RSA keys that rotate."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import jwt
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.service.served import served_app
from tests.unit.api.conftest import KEY, Live, living

from sandlot.api.edge import oidc
from sandlot.api.edge.oidc import Issuer, OidcTokens

AUDIENCE = "https://sandlot.example"
ALL = "openid sessions:read sessions:write exec files"


@dataclass
class RealIssuer:
    """Publishes the public halves of ``keys``. ``broken``: answers nothing of use."""

    url: str = ""
    keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=dict)
    broken: Response | None = None
    named: str | None = None
    asked: int = 0

    def new_key(self, kid: str) -> None:
        self.keys[kid] = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def sign(self, kid: str = "k1", *, without: tuple[str, ...] = (), **claims: Any) -> str:
        said = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ada",
            "exp": time.time() + 600,
            "tenant": "acme",
            "scope": ALL,
            **claims,
        }
        said = {name: value for name, value in said.items() if name not in without}
        return jwt.encode(said, self.keys[kid], algorithm="RS256", headers={"kid": kid})

    async def describe(self, request: Request) -> Response:
        self.asked += 1
        if self.broken is not None:
            return self.broken
        return JSONResponse({"issuer": self.named or self.url, "jwks_uri": f"{self.url}/keys"})

    async def publish(self, request: Request) -> Response:
        keys = [
            {**jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}
            for kid, key in self.keys.items()
        ]
        return JSONResponse({"keys": keys})


@pytest_asyncio.fixture
async def issuer() -> AsyncIterator[RealIssuer]:
    issuer = RealIssuer()
    issuer.new_key("k1")
    app = Starlette(
        routes=[
            Route("/.well-known/openid-configuration", issuer.describe),
            Route("/keys", issuer.publish),
        ]
    )
    async with served_app(app) as url:
        issuer.url = url
        yield issuer


@pytest_asyncio.fixture
async def tokens(issuer: RealIssuer) -> AsyncIterator[OidcTokens]:
    tokens = OidcTokens(Issuer(issuer.url, AUDIENCE))
    await tokens.open()
    yield tokens
    await tokens.close()


@pytest_asyncio.fixture
async def live(tokens: OidcTokens) -> AsyncIterator[Live]:
    async with living(oidc=tokens) as live:
        yield live


async def status(live: Live, token: str, path: str = "/v1/sessions") -> tuple[int, str]:
    answer = await live.client.get(path, headers={"Authorization": f"Bearer {token}"})
    return answer.status_code, answer.text


async def test_a_token_opens_its_tenant(live: Live, issuer: RealIssuer) -> None:
    headers = {"Authorization": f"Bearer {issuer.sign()}"}
    made = await live.client.post("/v1/sessions", json={"thread": "t"}, headers=headers)
    assert made.status_code == 201, made.text
    other = {"Authorization": f"Bearer {issuer.sign(tenant='other')}"}
    assert (await live.client.get("/v1/sessions", headers=headers)).json()["sessions"]
    assert (await live.client.get("/v1/sessions", headers=other)).json()["sessions"] == []
    missing = await live.client.get(f"/v1/sessions/{made.json()['id']}", headers=other)
    assert missing.status_code == 404
    # The administrator's key works as before.
    assert (
        await live.client.get("/v1/sessions", headers={"Authorization": f"Bearer {KEY}"})
    ).status_code == 200


@pytest.mark.parametrize(
    ("scope", "read", "execute"),
    [
        ("sessions:read", 200, 403),
        (["exec", "unknown:scope"], 403, 404),
        ("openid profile", 403, 403),
        ("", 403, 403),
        ([], 403, 403),
        ({"exec": True}, 401, 401),
        (7, 401, 401),
    ],
)
async def test_scopes(live: Live, issuer: RealIssuer, scope: object, read: int, execute: int) -> None:
    headers = {"Authorization": f"Bearer {issuer.sign(scope=scope)}"}
    assert (await live.client.get("/v1/sessions", headers=headers)).status_code == read
    path = f"/v1/sessions/ses_{'0' * 32}/exec"
    assert (await live.client.post(path, json={"command": "id"}, headers=headers)).status_code == execute


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"},
        {"aud": "another"},
        {"aud": ["another", "yet another"]},
        {"exp": 1},
        {"nbf": 4_000_000_000},
        {"without": ("exp",)},
        {"without": ("aud",)},
        {"without": ("iss",)},
        {"without": ("sub",)},
        {"without": ("tenant",)},
        {"tenant": ""},
        {"tenant": "No Tenant"},
        {"tenant": ["acme"]},
        {"tenant": "../default"},
    ],
)
async def test_what_is_refused(live: Live, issuer: RealIssuer, claims: dict[str, Any]) -> None:
    code, text = await status(live, issuer.sign(**claims))
    assert code == 401, text
    assert (await status(live, issuer.sign()))[0] == 200


async def test_signatures_that_are_none(live: Live, issuer: RealIssuer) -> None:
    good = issuer.sign()
    head, body, signature = good.split(".")
    public = issuer.keys["k1"].public_key()
    pem = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()
    claims = jwt.decode(good, options={"verify_signature": False})
    unsigned = jwt.encode(claims, "", algorithm="none", headers={"kid": "k1"})
    # The public key as a shared secret: PyJWT refuses to sign so, and an attacker would not ask it.
    confused = jwt.api_jws.PyJWS()
    confused._algorithms["HS256"].prepare_key = lambda key: key  # type: ignore[method-assign]
    forged = confused.encode(
        jwt.utils.base64url_decode(body.encode()), pem.encode(), algorithm="HS256", headers={"kid": "k1"}
    )
    stranger = RealIssuer(issuer.url)
    stranger.new_key("k1")
    for token in (
        unsigned,
        forged,
        stranger.sign(),
        f"{head}.{body}.",
        f"{head}.{body}.AAAA",
        f"{head}.{body[:-2]}AA.{signature}",
        f"e30.{body}.{signature}",
        "a.b.c",
        "." * 40,
        good * 40,
    ):
        code, text = await status(live, token)
        assert code == 401, (token[:60], text)


async def test_rotation(
    live: Live, issuer: RealIssuer, tokens: OidcTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new key is found with its first token; a key that is gone no longer opens anything."""
    monkeypatch.setattr(oidc, "REFRESH_AT_MOST_EVERY_S", 0.0)
    old = issuer.sign("k1")
    assert (await status(live, old))[0] == 200
    issuer.new_key("k2")
    assert (await status(live, issuer.sign("k2")))[0] == 200
    del issuer.keys["k1"]
    async with tokens._reading:
        await tokens._read()
    assert (await status(live, old))[0] == 401
    assert (await status(live, issuer.sign("k2")))[0] == 200


async def test_unknown_keys_do_not_wear_out_the_issuer(live: Live, issuer: RealIssuer) -> None:
    stranger = RealIssuer(issuer.url)
    for number in range(20):
        stranger.keys[f"x{number}"] = issuer.keys["k1"]
    before = issuer.asked
    for kid in stranger.keys:
        assert (await status(live, stranger.sign(kid)))[0] == 401
    assert issuer.asked <= before + 1


@pytest.mark.parametrize("how", ["500", "text", "huge", "list", "another"])
async def test_an_issuer_that_is_away_or_broken(issuer: RealIssuer, how: str) -> None:
    """The server starts, says that it cannot know yet, and finds the keys when they are there."""
    issuer.named = "https://evil.example" if how == "another" else None
    issuer.broken = {
        "500": Response(status_code=500),
        "text": Response("no JSON"),
        "huge": Response("[" * (oidc.MAX_DOCUMENT_BYTES + 1)),
        "list": JSONResponse([]),
    }.get(how)
    tokens = OidcTokens(Issuer(issuer.url, AUDIENCE))
    await tokens.open()
    try:
        async with living(oidc=tokens) as live:
            code, text = await status(live, issuer.sign())
            assert (code, "cannot read its issuer's keys" in text) == (503, True), text
            issuer.broken = issuer.named = None
            await tokens._read()
            assert (await status(live, issuer.sign()))[0] == 200
    finally:
        await tokens.close()
