"""What needs no network: signatures, addresses, URLs, the schedule, the meaning of an answer."""

from __future__ import annotations

import base64

import pytest

from sandlot.config.reading import server_settings
from sandlot.domain.callers.principal import OWNER, Principal, Scope
from sandlot.domain.errors import Forbidden, InvalidRequest
from sandlot.domain.history.events import Event
from sandlot.domain.network.addresses import parse_networks
from sandlot.domain.webhooks.addresses import refusal_of
from sandlot.domain.webhooks.attempts import MAX_ERROR_CHARS, Schedule, Verdict, outcome_of
from sandlot.domain.webhooks.signing import new_secret, signature
from sandlot.domain.webhooks.webhook import check_url, new_webhook

PRIVATE = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.1.2.3", "169.254.169.254"),
    *("172.16.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.51.100.1"),
    *("203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
    *("::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::7f00:1", "64:ff9b::7f00:1", "64:ff9b::a00:1"),
    *("64:ff9b:1::808:808", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::", "3fff::1"),
    *("fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "2600::1%eth0", "fec0::1", "ff02::1", "5f00::1"),
]
PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450::1", "64:ff9b::808:808"]


def test_a_signature_is_the_specifications() -> None:
    """The example of the specification's reference libraries."""
    signed = signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_secret_has_as_many_bytes_as_the_specification_asks_for() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert {len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) for secret in secrets} == {32}


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    refusal = refusal_of(address, (), encrypted=True)
    assert refusal is not None
    assert "SANDLOT_WEBHOOK_ALLOW" in refusal


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_reached_with_tls_alone(address: str) -> None:
    assert refusal_of(address, (), encrypted=True) is None
    assert "Use https" in str(refusal_of(address, (), encrypted=False))


def test_what_the_operator_allows() -> None:
    allowed = parse_networks(["10.1.0.0/16", "::1/128"])
    for address in ("10.1.2.3", "::1"):
        for encrypted in (True, False):
            assert refusal_of(address, allowed, encrypted=encrypted) is None
    for address in ("10.2.0.1", "127.0.0.1", "::ffff:10.1.2.3", "64:ff9b::a01:203"):
        assert refusal_of(address, allowed, encrypted=True) is not None


def test_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_settings().webhook_networks == ()
    monkeypatch.setenv("SANDLOT_WEBHOOK_ALLOW", "10.1.2.0/24, fd00::/8")
    assert server_settings().webhook_networks == parse_networks(["10.1.2.0/24", "fd00::/8"])
    for wrong in ("10.1.2.3/24", "internal", "10.1.2.0/24;10.1.3.0/24"):
        monkeypatch.setenv("SANDLOT_WEBHOOK_ALLOW", wrong)
        with pytest.raises(InvalidRequest, match=r"SANDLOT_WEBHOOK_ALLOW: .*is not a range of addresses"):
            server_settings()


@pytest.mark.parametrize(
    "url",
    [
        *("", "example.com/x", "ftp://example.com/x", "https://", "https:///x", "https://exa mple.com/"),
        *("https://a:b@example.com/", "https://user@example.com/", "https://example.com/#x"),
        *("https://example.com:0/", "https://example.com:99999/", "https://example.com:x/", "https://[::1/"),
        *("https://exämple.com/", "https://example.com\\@10.0.0.1/", "https://example.com/\r\nX: y"),
        *("https://10.0.0.1/", "https://[::1]/", "https://[fe80::1%25eth0]/", "http://93.184.216.34/"),
        "https://example.com/" + "x" * 2048,
    ],
)
def test_a_url_that_cannot_be_a_receivers(url: str) -> None:
    with pytest.raises(InvalidRequest):
        check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com:8443/a?b=c",
        "HTTPS://EXAMPLE.com/",
        "https://[2606:4700::1111]/",
    ],
)
def test_a_url_that_can(url: str) -> None:
    assert check_url(url) == url


def test_types_of_events() -> None:
    with pytest.raises(InvalidRequest, match=r"'session\.end'.* Did you mean 'session\.ended'"):
        new_webhook(OWNER, 1.0, url="https://example.com", events=["session.end"])
    with pytest.raises(InvalidRequest, match="at least one type"):
        new_webhook(OWNER, 1.0, url="https://example.com", events=[])
    webhook = new_webhook(OWNER, 1.0, url="https://example.com", events=["exec.ended", "exec.ended"])
    assert webhook.events == ("exec.ended",)
    assert webhook.secret not in repr(webhook)


def test_a_webhook_sees_what_its_creator_sees() -> None:
    event = Event("evt", 1.0, "exec.started", "acme", details={"command": "ls", "path": "x", "shell": "s"})
    for scopes, shown in (
        ({Scope.EXEC, Scope.FILES}, {"command", "path", "shell"}),
        ({Scope.EXEC}, {"command", "shell"}),
        (set(), {"shell"}),
    ):
        creator = Principal("acme", frozenset({Scope.ADMIN, Scope.SESSIONS_READ, *scopes}))
        webhook = new_webhook(creator, 1.0, url="https://example.com", events=["exec.started"])
        assert set(webhook.visible(event).details) == shown
    with pytest.raises(Forbidden):
        new_webhook(
            Principal("acme", frozenset({Scope.ADMIN})), 1.0, url="https://example.com", events=["exec.ended"]
        )


def test_an_id_is_the_same_for_each_attempt_and_for_no_other_delivery() -> None:
    first, second = (
        new_webhook(OWNER, 1.0, url="https://example.com", events=["exec.ended"]) for _ in range(2)
    )
    ids = [webhook.delivery_id(event) for webhook in (first, second) for event in ("evt_1", "evt_2")]
    assert len(set(ids)) == 4
    assert first.delivery_id("evt_1") == ids[0]
    assert all("." not in delivery_id for delivery_id in ids)  # the signature is over id.time.body


def test_the_schedule() -> None:
    schedule = Schedule()
    for chance, low_h, high_h in ((0.0, 2.0, 3.0), (1.0, 3.0, 4.0)):
        delays = [schedule.delay_s(attempts, chance) for attempts in range(1, 9)]
        assert delays[-1] is None
        waits = [delay for delay in delays if delay is not None]
        assert len(waits) == 7
        assert waits == sorted(waits)
        assert 3.9 < waits[0] < 6.1
        assert waits[-1] < 1.21 * 3600
        assert low_h * 3600 < sum(waits) < high_h * 3600


def test_what_an_answer_means() -> None:
    assert {outcome_of(code).verdict for code in (200, 201, 204, 299)} == {Verdict.DELIVERED}
    assert outcome_of(410).verdict is Verdict.GONE
    for code in (100, 199, 300, 301, 307, 400, 404, 409, 429, 500, 503):
        assert outcome_of(code).verdict is Verdict.FAILED, code
    moved = outcome_of(302, "http://10.0.0.1/\x1b[31m" + "x" * 1000)
    assert "Redirects are not followed" in outcome_of(302, "http://10.0.0.1/").error
    assert "\x1b" not in moved.error
    assert len(moved.error) <= MAX_ERROR_CHARS
