"""Keys of tenants, derived from the one key of the settings.

Each tenant has its own: equal content of two tenants has different names, so nobody learns what others have.
Without a key in the settings, the root is a constant. Names and checksums then say nothing to a reader of the
store that the content does not.
"""

from __future__ import annotations

import hmac
from typing import Final

_WITHOUT_A_KEY: Final = b"sandlot object storage without a key"


def _derive(root: bytes, purpose: bytes, tenant: str = "") -> bytes:
    return hmac.digest(root, purpose + b"\0" + tenant.encode(), "sha256")


class RootKeys:
    """``seal``: of the objects that belong to no tenant."""

    def __init__(self, key: bytes | None) -> None:
        self.encrypts = key is not None
        self._root = _WITHOUT_A_KEY if key is None else key
        self.seal = _derive(self._root, b"root seal")

    def of(self, tenant: str) -> TenantKeys:
        return TenantKeys(self._root, tenant, encrypts=self.encrypts)


class TenantKeys:
    """``folder``: the tenant's folder in the store. ``seal``: of its objects. ``chunks`` and ``parts``: name
    them. ``cuts``: where large files are cut, so that the sizes of chunks do not tell which file it is.
    """

    def __init__(self, root: bytes, tenant: str, *, encrypts: bool) -> None:
        self.encrypts = encrypts
        self.folder = "tenants/" + _derive(root, b"folder", tenant)[:16].hex()
        self.seal = _derive(root, b"seal", tenant)
        self.chunks = _derive(root, b"chunks", tenant)
        self.parts = _derive(root, b"parts", tenant)
        self.cuts = int.from_bytes(_derive(root, b"cuts", tenant)[:8]) >> 2 | 1
