"""U2: which options of a thread's session count as other ones."""

from __future__ import annotations

from typing import Any

import pytest

from sandlot.domain.capacity.limits import LimitChange
from sandlot.domain.errors import InvalidRequest, ThreadDiffers
from sandlot.domain.session import CreateSession, Session
from sandlot.domain.thread_options import check_thread_options, differences

SESSION = Session("ses_" + "0" * 32, "base", created_at=0, last_active_at=0, thread="t")
ENV = {"TOKEN": "old", "OTHER": "x"}


@pytest.mark.parametrize(
    ("asked", "different"),
    [
        ({}, []),
        ({"environment": "base", "env": {"TOKEN": "old"}}, []),
        ({"limits": LimitChange(memory_bytes=SESSION.limits.memory_bytes)}, []),
        ({"idle_timeout_s": 1, "lifetime_s": 1, "metadata": {"a": "b"}}, []),
        ({"environment": "gvisor"}, ["environment"]),
        ({"env": {"TOKEN": "new"}}, ["env"]),
        ({"env": {"NEW": "x"}}, ["env"]),
        ({"limits": LimitChange(cpus=2, pids=64)}, ["limits.cpus", "limits.pids"]),
    ],
)
def test_what_is_different(asked: dict[str, Any], different: list[str]) -> None:
    request = CreateSession(thread="t", **asked)
    assert list(differences(request, SESSION, ENV)) == different
    if not different:
        check_thread_options(request, SESSION, ENV)
        return
    with pytest.raises(ThreadDiffers) as refused:
        check_thread_options(request, SESSION, ENV)
    assert refused.value.details == {"session_id": SESSION.id, "different": different}
    assert "if_different='keep'" in refused.value.message
    check_thread_options(CreateSession(thread="t", if_different="keep", **asked), SESSION, ENV)


def test_variables_that_nobody_has_any_more_are_not_compared() -> None:
    check_thread_options(CreateSession(thread="t", env={"TOKEN": "new"}), SESSION, None)


def test_another_word_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'error' or 'keep'"):
        CreateSession(thread="t", if_different="replace")  # type: ignore[arg-type]


def test_the_same_key_may_come_with_either() -> None:
    assert CreateSession(idempotency_key="k") == CreateSession(idempotency_key="k", if_different="keep")
