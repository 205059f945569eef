"""Which addresses a webhook may be sent to: public ones, and those that the operator allows. Pure."""

from __future__ import annotations

from ipaddress import ip_address

from sandlot.domain.network.addresses import Networks, is_public


def refusal_of(host: str, allowed: Networks, *, encrypted: bool) -> str | None:
    """Why nothing may be sent to this address; None if it may. A name is not refused: its addresses are.

    ``encrypted``: whether the URL is https. Without it, only addresses that the operator allows are reached:
    deliveries have commands in them, which must not cross the internet in the clear.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if any(address in network for network in allowed):
        return None
    if not is_public(address):
        return (
            "Webhooks may not be sent to a private, local or reserved address. The operator can allow one "
            "with SANDLOT_WEBHOOK_ALLOW."
        )
    if not encrypted:
        return "Use https: webhooks are sent in the clear only to addresses in SANDLOT_WEBHOOK_ALLOW."
    return None
