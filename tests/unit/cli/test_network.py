"""``sandlot network``, and ``--allow`` of ``run``."""

from __future__ import annotations

import json

from tests.unit.cli.conftest import Served


def test_a_session_is_allowed_more_and_less(served: Served) -> None:
    session = served.create()
    shown = served.sandlot("network", "show", session).decode()
    assert "nothing" in shown
    allowed = json.loads(
        served.sandlot("network", "allow", session, "a.example", "pypi", "--for", "10m", "--json")
    )
    assert [grant["entry"] for grant in allowed["grants"]] == ["a.example", "pypi"]
    assert allowed["grants"][0]["until"] > 0
    shown = served.sandlot("network", "show", session).decode()
    assert "a.example" in shown
    assert "granted until" in shown
    served.sandlot("network", "revoke", session, "pypi", "a.example")
    assert json.loads(served.sandlot("network", "set", session, "b.example", "npm", "--json"))["policy"][
        "allow"
    ] == ["b.example", "npm"]
    forwarded = served.sandlot("network", "forward", session, "5443", "b.example:443").decode()
    assert "leads to b.example:443" in forwarded
    assert "leads to" not in served.sandlot("network", "unforward", session, "5443").decode()
    served.sandlot("network", "set", session, "none")
    process = served.start("network", "revoke", session, "pypi")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"was not granted" in err


def test_a_denied_command_says_how_to_allow_it(served: Served) -> None:
    process = served.start("run", "curl -sS https://a.example")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 56
    assert b"Denied: a.example:443 (not allowed). To allow it, pass --allow a.example" in err
    process = served.start("run", "--allow", "a.example", "--network", "npm", "curl -sS https://a.example")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 6  # allowed: the fake has no such host
    assert b"Denied" not in err
    result = json.loads(served.sandlot("run", "--json", "curl -sS https://a.example", code=56))
    assert (result["verdict"], result["denied"][0]["target"]) == ("egress_denied", "a.example:443")
