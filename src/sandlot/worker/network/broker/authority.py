"""The worker's own certificate authority, with which it reads the TLS of sandboxes that trust it.

Its key is made on the worker's first start and never leaves the worker's data folder. Certificates for hosts
exist in memory only, for a day at most.
"""

from __future__ import annotations

import datetime
import os
import ssl
from collections import OrderedDict
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from sandlot.domain.errors import EngineProblem

CERTIFICATE_NAME: Final = "ca.pem"
KEY_NAME: Final = "ca.key"
# A new one is made on a start at which less than a year is left: no sandbox lives as long.
AUTHORITY_DAYS: Final = 5 * 365
RENEW_DAYS: Final = 365
# Of a certificate for a host. Clocks may differ by the time before.
HOST_HOURS: Final = 24
RENEW_HOURS: Final = 12
SKEW: Final = datetime.timedelta(hours=1)
MAX_HOSTS: Final = 256


class Authority:
    """``pem``: the certificate that sandboxes must trust."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate
        self._host_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: OrderedDict[str, tuple[datetime.datetime, ssl.SSLContext]] = OrderedDict()
        self.pem = certificate.public_bytes(serialization.Encoding.PEM).decode()

    @classmethod
    def open(cls, folder: Path, worker_id: str) -> Authority:
        """The authority that is kept in the folder; a new one if there is none, or if it ends soon."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = _read(folder)
        if found is None:
            found = _new(worker_id)
            _write(folder, *found)
        return cls(*found)

    def context_for(self, host: str) -> ssl.SSLContext:
        """How the worker speaks TLS as ``host``."""
        now = datetime.datetime.now(datetime.UTC)
        known = self._contexts.get(host)
        if known is None or known[0] - now < datetime.timedelta(hours=RENEW_HOURS):
            ends = now + datetime.timedelta(hours=HOST_HOURS)
            known = (ends, self._new_context(host, now, ends))
            self._contexts[host] = known
        self._contexts.move_to_end(host)
        if len(self._contexts) > MAX_HOSTS:
            self._contexts.popitem(last=False)
        return known[1]

    def _new_context(self, host: str, now: datetime.datetime, ends: datetime.datetime) -> ssl.SSLContext:
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self._certificate.subject)
            .public_key(self._host_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(ends)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._host_key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        _load(context, certificate.public_bytes(serialization.Encoding.PEM) + _key_pem(self._host_key))
        return context


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """``ssl`` reads files only. This one is in memory, so that the key is never on a disk."""
    with os.fdopen(os.memfd_create("sandlot-host"), "wb") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def _new(worker_id: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"Sandlot worker {worker_id}"[:64])])
    use = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + datetime.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(use, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def _read(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate] | None:
    key_file, certificate_file = folder / KEY_NAME, folder / CERTIFICATE_NAME
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise EngineProblem(
            f"{folder} does not hold a certificate authority ({error}). Delete {KEY_NAME} and "
            f"{CERTIFICATE_NAME} there, and the worker makes a new one."
        ) from error
    if key_file.stat().st_mode & 0o077:
        raise EngineProblem(f"Others can read {key_file}. Run `chmod 600 {key_file}`.")
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        raise EngineProblem(f"The key and the certificate in {folder} do not belong together. Delete both.")
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return (key, certificate) if left > datetime.timedelta(days=RENEW_DAYS) else None


def _write(folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    """The certificate last: without it, the next start makes both anew."""
    (folder / CERTIFICATE_NAME).unlink(missing_ok=True)
    for name, content in (
        (KEY_NAME, _key_pem(key)),
        (CERTIFICATE_NAME, certificate.public_bytes(serialization.Encoding.PEM)),
    ):
        new = folder / f"{name}.new"
        new.unlink(missing_ok=True)
        with os.fdopen(
            os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
        ) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / name)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
