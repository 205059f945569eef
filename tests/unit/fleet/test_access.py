"""Tokens: what is let in, and everything that must not be."""

from __future__ import annotations

import base64
import hmac
import json
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sandlot.domain.callers.principal import MEMBER, OWNER, Principal, Scope
from sandlot.domain.errors import NotFound, SandlotError, Unauthorized
from sandlot.domain.session import Session
from sandlot.fleet import access
from sandlot.fleet.access import LEEWAY_S, AccessTokens, TokenGate, token_times
from sandlot.fleet.signing_keys import MEMBER_AUDIENCE, SESSION_AUDIENCE, SigningKey

KEY = SigningKey.generate("k1")
OTHER_KEY = SigningKey.generate("k1")
ID = "ses_" + "ab" * 16
OWN = f"/v1/sessions/{ID}"
URL = "http://10.0.0.7:8000"
NOW = 1_700_000_000.0
LIFETIME_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


WORKER = "w1"
CONTROL = b"a-secret-of-the-workers-own-process"


def session(generation: int = 1, session_id: str = ID) -> Session:
    return Session(
        id=session_id, environment="base", created_at=NOW, last_active_at=NOW, generation=generation
    )


def gate(present: int | None = 1, clock: Clock | None = None) -> TokenGate:
    return TokenGate(
        KEY.public, worker_id=WORKER, generation_of=lambda _: present, clock=clock or Clock(), control=CONTROL
    )


def tokens(clock: Clock | None = None) -> AccessTokens:
    return AccessTokens(KEY, lifetime_s=LIFETIME_S, clock=clock or Clock())


def claims(**changes: Any) -> dict[str, Any]:
    whole = {
        "aud": SESSION_AUDIENCE,
        "sub": ID,
        "tenant": "default",
        "gen": 1,
        "exp": NOW + LIFETIME_S,
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not None}


def signed(body: dict[str, Any], key: SigningKey = KEY, **header: Any) -> bytes:
    return jwt.encode(body, key._key, algorithm="EdDSA", headers={"kid": "k1", **header}).encode()


def refusal(of: TokenGate, token: bytes, path: str) -> SandlotError | None:
    admitted = of.admit(token, path)
    return None if isinstance(admitted, Principal) else admitted


def refused(token: bytes, path: str = OWN, **of_gate: Any) -> Unauthorized:
    error = refusal(gate(**of_gate), token, path)
    assert isinstance(error, Unauthorized)
    assert not error.retryable
    assert not error.may_have_executed
    return error


def test_access_does_not_show_its_token() -> None:
    given = tokens().for_session(OWNER, session(), URL, WORKER)
    assert given is not None
    assert given.token not in repr(given)


# --- who comes in -------------------------------------------------------------------------------


def test_a_session_token_opens_its_session() -> None:
    given = tokens().for_session(OWNER, session(generation=3), URL, WORKER)
    assert (given.url, given.expires_at) == (URL, NOW + LIFETIME_S)
    token = given.token.encode()
    for path in (
        OWN,
        OWN + "/exec",
        OWN + "/files/content",
        OWN + "/execs/e.1/attach",
        OWN + "/execs/recreate",
    ):
        assert refusal(gate(3), token, path) is None
        assert refusal(gate(None), token, path) is None, "the service says itself that it is not there"


def test_a_session_token_is_for_the_sandbox_of_its_time() -> None:
    token = tokens().for_session(OWNER, session(generation=3), URL, WORKER).token.encode()
    for present in (1, 2, 4):
        assert "new sandbox" in refused(token, present=present).message


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/mcp",
        "/metrics",
        "/v1/health",
        "/v1/sessions",
        "/v1/sessions/",
        "/v1/sessions//" + ID,
        "//v1/sessions/" + ID,
        "/v1//sessions/" + ID,
        "/V1/sessions/" + ID,
        "/v1/sessions/" + ID[:-1],
        OWN + "a",
        OWN + "a/exec",
        OWN + "/recreate",
        ID,
        ID + "/exec",
        "/v1/sessions/ses_" + "cd" * 16 + "/exec",
        "/v1/fleet/sessions",
        "/v1/fleet/sessions/" + ID,
        "/v1/threads/" + ID,
        "/x" + OWN,
        OWN.replace("/", "\\"),
        "/session/" + ID,
        "/execute",
    ],
)
def test_a_session_token_opens_nothing_else(path: str) -> None:
    token = tokens().for_session(OWNER, session(), URL, WORKER).token.encode()
    refused(token, path)
    refused(token, path, present=None)


@pytest.mark.parametrize(
    "below",
    [
        "/",
        "//exec",
        "/./exec",
        "/..",
        "/../ses_" + "cd" * 16,
        f"/../{ID}/exec",
        "/exec/",
        "/recreate/",
        "/a/../b",
    ],
)
def test_a_path_that_climbs_leads_nowhere(below: str) -> None:
    """Not the token's fault, so nobody asks for another token because of it."""
    token = tokens().for_session(OWNER, session(), URL, WORKER).token.encode()
    assert isinstance(refusal(gate(), token, OWN + below), NotFound)


@given(st.text(alphabet="/.%2eFf5c\\abv1sesion_", max_size=40), st.booleans())
@example("/../../sessions", True)
@example("%2e%2e/%2e%2e", True)
@example("/execs/e1/attach", True)
def test_paths_are_of_the_session_exactly_when_the_router_says_so(rest: str, below: bool) -> None:
    """What the router takes for another session, or for none, is never opened."""
    path = unquote((OWN if below else "/v1/sessions/") + rest)
    token = tokens().for_session(OWNER, session(), URL, WORKER).token.encode()
    parts = path.split("/")
    own = parts[:4] == ["", "v1", "sessions", ID] and not {"", ".", ".."} & set(parts[4:])
    assert (refusal(gate(), token, path) is None) == (own and parts[4:] != ["recreate"])


def test_a_member_comes_in_everywhere() -> None:
    token = tokens().for_member(WORKER, OWNER).encode()
    for path in ("/v1/fleet/sessions", "/v1/sessions", OWN + "/recreate", "/metrics", "/"):
        assert refusal(gate(), token, path) is None


def test_a_members_token_is_for_one_worker() -> None:
    refused = refusal(gate(), tokens().for_member("w2", OWNER).encode(), "/v1/fleet/sessions")
    assert refused is not None
    assert "for another worker" in refused.message


@pytest.mark.parametrize("lost_after_s", [1.0, 6.0, 10.0, 60.0, 86400.0])
@pytest.mark.parametrize("behind", [0.0, 1.0, -1.0])
def test_a_session_may_move_only_when_every_token_for_it_is_over(lost_after_s: float, behind: float) -> None:
    """R1: also where the worker's clock is behind the coordinator's by all that clocks may differ."""
    times = token_times(lost_after_s)
    assert min(times.lifetime_s, times.leeway_s, times.fresh_s) > 0
    now = Clock()
    of_worker = Clock()
    made = AccessTokens(KEY, lifetime_s=times.lifetime_s, clock=now)
    checking = TokenGate(
        KEY.public, worker_id=WORKER, generation_of=lambda _: 1, leeway_s=times.leeway_s, clock=of_worker
    )
    lease_ended_at = NOW
    # The last moment at which a coordinator believes that the worker is alive.
    now.now = lease_ended_at + times.fresh_s
    given = made.for_session(OWNER, session(), URL, WORKER)
    assert given is not None
    token = given.token.encode()
    of_worker.now = now.now - behind * times.leeway_s
    assert refusal(checking, token, OWN) is None
    taken_over_at = lease_ended_at + lost_after_s
    of_worker.now = taken_over_at + 0.01 - behind * times.leeway_s
    assert isinstance(refusal(checking, token, OWN), Unauthorized)


def test_a_members_token_is_kept_and_made_anew_in_time() -> None:
    clock = Clock()
    made = tokens(clock)
    first = made.for_member(WORKER, OWNER)
    clock.now += LIFETIME_S / 5
    assert made.for_member(WORKER, OWNER) == first
    clock.now += LIFETIME_S / 5
    second = made.for_member(WORKER, OWNER)
    assert second != first
    clock.now -= 3600  # a clock that is set back
    assert made.for_member(WORKER, OWNER) != second
    clock.now += 10 * LIFETIME_S
    assert refusal(gate(clock=clock), made.for_member(WORKER, OWNER).encode(), "/") is None


def test_time_is_over() -> None:
    clock = Clock()
    made = tokens(clock)
    given = (
        made.for_session(OWNER, session(), URL, WORKER).token.encode(),
        made.for_member(WORKER, OWNER).encode(),
    )
    checking = gate(clock=clock)
    for token in given:
        clock.now = NOW + LIFETIME_S + LEEWAY_S
        assert refusal(checking, token, OWN) is None
        clock.now += 0.1
        error = refusal(checking, token, OWN)
        assert error is not None
        assert "expired" in error.message


# --- who does not -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "token",
    [
        signed(claims(), OTHER_KEY),
        signed(claims(), kid="k2"),
        signed(claims(), kid=""),
        jwt.encode(claims(), KEY._key, algorithm="EdDSA").encode(),
        jwt.encode(claims(), "s" * 64, algorithm="HS256", headers={"kid": "k1"}).encode(),
        jwt.encode(claims(), Ed25519PrivateKey.generate(), "EdDSA", {"kid": "k1"}).encode(),
        jwt.encode(claims(), None, algorithm="none", headers={"kid": "k1"}).encode(),
        jwt.encode(claims(), None, algorithm="none", headers={"kid": "k1"}).encode().rstrip(b"."),
        signed(claims(aud="sandlot")),
        signed(claims(aud=[SESSION_AUDIENCE, MEMBER_AUDIENCE])),
        signed(claims(aud=[MEMBER_AUDIENCE])),
        signed(claims(aud=None)),
        signed(claims(exp=None)),
        signed(claims(exp="soon")),
        signed(claims(exp=True)),
        signed(claims(exp=float("inf"))),
        signed(claims(exp=float("nan"))),
        signed(claims(exp=NOW - LEEWAY_S - 1)),
        signed(claims(sub=None)),
        signed(claims(sub="ses_x/../" + ID)),
        signed(claims(sub="")),
        signed(claims(tenant=None)),
        signed(claims(tenant="")),
        signed(claims(tenant=7)),
        signed(claims(gen=None)),
        signed(claims(gen="1")),
        signed(claims(gen=True)),
        signed(claims(gen=1.0)),
    ],
)
def test_what_is_not_ours_is_refused(token: bytes) -> None:
    refused(token)


def test_the_header_does_not_choose_how_a_token_is_checked() -> None:
    """HMAC with an empty key, a key of the sender's own, a key from elsewhere."""
    for header in (
        {"kid": "k1", "jwk": {"kty": "oct", "k": "AA"}},
        {"kid": ["k1"]},
        {"kid": None},
        {"alg": "none"},
    ):
        head = {"typ": "JWT", "alg": "HS256", **header}
        body = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims()))
        for secret in (b"", b"\x00"):
            signature = hmac.digest(secret, body.encode(), "sha256")
            refused(f"{body}.{_encoded(signature)}".encode())


@given(st.binary(max_size=400))
@example(b"")
@example(b"..")
@example(b"\xff\xfe.\x00.\x00")
@example(b"Bearer x")
def test_noise_is_refused(noise: bytes) -> None:
    refused(noise)


@given(st.binary(min_size=1, max_size=60), st.sampled_from([0, 1]))
@example(b"[" * 2900, 0)
@example(b'{"kid":' + b"[" * 2000, 0)
@example(b'{"alg":"EdDSA","kid":"k1","b64":false,"crit":["b64"]}', 0)
def test_parts_that_strangers_choose_break_nothing(part: bytes, at: int) -> None:
    parts = signed(claims()).split(b".")
    assume(_decoded(parts[at]) != part)
    parts[at] = _encoded(part).encode()
    refused(b".".join(parts))


@given(st.data())
def test_a_token_that_was_changed_anywhere_is_refused(data: st.DataObject) -> None:
    token = bytearray(signed(claims()))
    at = data.draw(st.integers(0, len(token) - 1))
    token[at] = data.draw(st.sampled_from(b"ABCabc012-_.=\x00 "))
    # The last character of a part may carry bits that mean nothing.
    assume(
        [_decoded(part) for part in bytes(token).split(b".")]
        != [_decoded(part) for part in signed(claims()).split(b".")]
    )
    refused(bytes(token))


def test_what_was_verified_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only that: who has no key fills nothing. What may change is looked at each time."""
    monkeypatch.setattr(access, "MAX_VERIFIED", 3)
    clock = Clock()
    present = [1]
    checking = TokenGate(KEY.public, worker_id=WORKER, generation_of=lambda _: present[0], clock=clock)
    for n in range(10):
        assert refusal(checking, signed(claims(exp=NOW + n)), OWN) is None
        assert refusal(checking, signed(claims(exp=NOW + n), OTHER_KEY), OWN) is not None
    assert len(checking._verified) == 3
    last = signed(claims(exp=NOW + 9))
    assert refusal(checking, last, "/v1/sessions") is not None
    present[0] = 2
    assert refusal(checking, last, OWN) is not None
    present[0] = 1
    clock.now += 100
    assert refusal(checking, last, OWN) is not None


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def _decoded(part: bytes) -> bytes | None:
    try:
        return base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except ValueError:
        return None


# --- whom a token was issued to -----------------------------------------------------------------

CALLER = Principal("acme", frozenset({Scope.EXEC, Scope.FILES}), key_id="k7", subject="ada@acme.example")


@pytest.mark.parametrize("caller", [OWNER, CALLER, MEMBER], ids=["owner", "caller", "member"])
def test_a_worker_learns_who_is_calling(caller: Principal) -> None:
    given = tokens().for_session(caller, session(), URL, WORKER)
    assert given is not None
    member = tokens().for_member(WORKER, caller)
    if caller.tenant:  # a session's token names its tenant
        assert gate().admit(given.token.encode(), OWN) == caller
    assert gate().admit(member.encode(), "/v1/sessions") == replace(caller, forwarded=True)


def test_tokens_of_two_callers_are_two() -> None:
    made = tokens()
    assert len({made.for_member(WORKER, caller) for caller in (OWNER, CALLER, MEMBER)}) == 3
    assert made.for_member(WORKER, CALLER) == made.for_member(WORKER, CALLER)


def test_a_members_token_names_whom_it_acts_for() -> None:
    refused(signed({"aud": MEMBER_AUDIENCE, "sub": WORKER, "exp": NOW + LIFETIME_S}), "/v1/sessions")


# --- the machine's operator ---------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/fleet/drain", "/v1/fleet/undrain"])
def test_the_control_token_drains_the_worker(path: str) -> None:
    assert gate().admit(CONTROL, path) == MEMBER
    refused(CONTROL[:-1], path)
    refused(b"", path)
    without = TokenGate(KEY.public, worker_id=WORKER, generation_of=lambda _: 1)
    for nothing in (b"", CONTROL):
        assert isinstance(without.admit(nothing, path), Unauthorized)


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/v1/health", "/v1/sessions", OWN, "/v1/fleet/sessions", "/v1/fleet/drain/"]
)
def test_the_control_token_opens_nothing_else(path: str) -> None:
    refused(CONTROL, path)


def test_a_scope_of_a_newer_version_is_left_out() -> None:
    admitted = gate().admit(signed(claims(scopes=["exec", "teleport"])), OWN)
    assert isinstance(admitted, Principal)
    assert admitted.scopes == {Scope.EXEC}


@pytest.mark.parametrize(
    "wrong",
    [
        {"scopes": "exec"},
        {"scopes": {"exec": 1}},
        {"key": 7},
        {"for": ["ada"]},
        {"tenant": 7},
        {"tenant": ""},
    ],
)
def test_a_caller_that_cannot_be_read_is_refused(wrong: dict[str, Any]) -> None:
    refused(signed(claims(**wrong)))
