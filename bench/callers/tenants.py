"""Keys for benchmarks."""

from __future__ import annotations

from sandlot.client.http.administrator import Administrator
from sandlot.wire.key_bodies import CreateKeyBody
from sandlot.wire.tenant_bodies import LimitsBody

ADMINISTRATOR = "the-administrators-key-of-a-benchmark"


async def new_key(url: str, tenant: str, limits: LimitsBody | None = None) -> str:
    """A key of this tenant, which gets ``limits`` if there are any."""
    administrator = Administrator(url, ADMINISTRATOR)
    try:
        if limits is not None:
            await administrator.set_limits(tenant, limits)
        return (await administrator.create_key(CreateKeyBody("benchmark", tenant=tenant))).secret
    finally:
        await administrator.close()


async def sessions_of(url: str, tenant: str) -> int:
    administrator = Administrator(url, ADMINISTRATOR)
    try:
        return (await administrator.tenant(tenant)).use.sessions
    finally:
        await administrator.close()
