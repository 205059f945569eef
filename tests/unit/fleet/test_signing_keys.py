"""The fleet's pairs of keys: what is a key, who may have which, and what a worker says of tokens of others."""

from __future__ import annotations

import base64
import traceback

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sandlot.domain.errors import InvalidRequest, Unauthorized
from sandlot.fleet.signing_keys import MEMBER_AUDIENCE, PublicKeys, SigningKey

CLAIMS = {"aud": MEMBER_AUDIENCE, "sub": "w1", "exp": 1.0}
OLD, NEW = SigningKey.generate("old"), SigningKey.generate("new")
RAW = "A" * 43
PRIVATE, PUBLIC = f"k1:private.{RAW}", f"k1:public.{RAW}"


def why(keys: PublicKeys, token: str) -> str:
    refused = keys.verified(token.encode())
    assert isinstance(refused, Unauthorized)
    assert not refused.retryable
    return refused.message


def test_a_pair_survives_its_text() -> None:
    again = SigningKey.parse(OLD.text + "\n")
    workers = PublicKeys.parse(f"{OLD.public.text}, {NEW.public.text}\n")
    for key in (OLD, again, NEW):
        assert workers.verified(key.sign(CLAIMS).encode()) == CLAIMS
    assert workers.fingerprints == OLD.public.fingerprints + NEW.public.fingerprints
    assert again.public.fingerprints == OLD.public.fingerprints


def test_workers_cannot_sign() -> None:
    assert not hasattr(OLD.public, "sign")
    assert OLD.text.partition(".")[2] not in OLD.public.text


def test_the_private_key_is_not_shown() -> None:
    secret = OLD.text.partition(".")[2]
    for shown in (repr(OLD), str(OLD), repr(OLD.public), *OLD.public.fingerprints):
        assert secret not in shown
        assert "old" in shown


def test_a_fingerprint_is_of_the_key_and_its_id() -> None:
    same_key = SigningKey.parse(OLD.text.replace("old:", "k2:"))
    (fingerprint,) = OLD.public.fingerprints
    assert fingerprint.startswith("old:")
    assert len(fingerprint) == len("old:") + 12
    assert same_key.public.fingerprints != (fingerprint,)
    assert same_key.public.fingerprints[0][3:] == fingerprint[4:]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (",", "Key 1"),
        (RAW, "Key 1"),
        (f":public.{RAW}", "Key 1"),
        (f"k 1:public.{RAW}", "Key 1"),
        (f"k/1:public.{RAW}", "Key 1"),
        (f"{'k' * 65}:public.{RAW}", "Key 1"),
        (f"k1:public.{RAW[1:]}", "Key 1"),
        (f"k1:public.{RAW}A", "Key 1"),
        (f"k1:public.{RAW}=", "Key 1"),
        (f"k1:public.{RAW[1:]}+", "Key 1"),
        (f"k1:Public.{RAW}", "Key 1"),
        (f"{PUBLIC},", "Key 2"),
        (f"{PUBLIC},k1:public.{RAW}", "same id as an earlier key"),
        (PRIVATE, "a worker only verifies"),
        (f"{PUBLIC},k2:private.{RAW}", "Key 2 in SANDLOT_FLEET_PUBLIC_KEYS is a private key"),
        (f"k1:{'5' * 64}", "no longer work"),
    ],
)
def test_what_is_no_public_key_is_refused_and_not_repeated(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told) as refused:
        PublicKeys.parse(text)
    shown = "".join(traceback.format_exception_only(refused.value)) + repr(refused.value)
    assert RAW[:20] not in shown
    assert "5" * 20 not in shown
    assert "SANDLOT_FLEET_PUBLIC_KEYS" in shown


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        (PUBLIC, "a coordinator signs"),
        (f"{PRIVATE},k2:private.{RAW}", "several keys"),
        (f"k1:{'5' * 64}", "no longer work"),
    ],
)
def test_what_is_no_private_key_is_refused_and_not_repeated(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told) as refused:
        SigningKey.parse(text)
    assert RAW[:20] not in refused.value.message
    assert "SANDLOT_FLEET_PRIVATE_KEY" in refused.value.message


@pytest.mark.parametrize("kid", ["", "a b", "a:b", "a,b", "k" * 65, "é"])
def test_an_id_that_no_setting_can_carry(kid: str) -> None:
    with pytest.raises(InvalidRequest, match="Invalid key id"):
        SigningKey.generate(kid)


def test_a_worker_says_which_key_it_lacks() -> None:
    assert "does not have the public key new" in why(OLD.public, NEW.sign(CLAIMS))
    impostor = SigningKey.generate("old")
    assert "this fleet did not sign it" in why(OLD.public, impostor.sign(CLAIMS))


def test_a_coordinator_of_an_earlier_version_is_told_apart() -> None:
    secret = "0123456789abcdef" * 4
    for kid in ("old", "k1"):
        token = jwt.encode(CLAIMS, secret, algorithm="HS256", headers={"kid": kid})
        assert "version 0.2 or older" in why(OLD.public, token)


def test_only_ed25519_counts() -> None:
    """A public key is no secret. It must not verify what is signed with it as if it were one."""
    raw = base64.urlsafe_b64decode(OLD.public.text.partition(".")[2] + "=")
    pem = NEW.public.text.encode()
    for secret in (raw, pem, raw.hex().encode()):
        for algorithm in ("HS256", "HS384", "HS512"):
            why(OLD.public, jwt.encode(CLAIMS, secret + bytes(64), algorithm, headers={"kid": "old"}))
    why(OLD.public, jwt.encode(CLAIMS, None, "none", headers={"kid": "old"}))
    why(OLD.public, jwt.encode(CLAIMS, Ed448PrivateKey.generate(), "EdDSA", headers={"kid": "old"}))
    why(OLD.public, jwt.encode(CLAIMS, Ed25519PrivateKey.generate(), "EdDSA", headers={"kid": "old"}))


def test_a_message_never_carries_what_a_stranger_wrote() -> None:
    for kid in ("a b", "<script>", "k" * 65, "x\ny"):
        token = jwt.encode(CLAIMS, Ed25519PrivateKey.generate(), "EdDSA", headers={"kid": kid})
        assert kid not in why(OLD.public, token)
