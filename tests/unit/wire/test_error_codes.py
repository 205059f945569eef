"""Errors over the wire: a closed table, and nothing that a caller acts on is lost on the way."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain import errors
from sandlot.domain.errors import FILE_REASONS, FileProblem, SandlotError
from sandlot.wire.error_codes import FILE_STATUS, STATUS, Problem, error_of, problem_of, status_of


def tree(root: type[SandlotError] = SandlotError) -> set[type[SandlotError]]:
    return {root, *(kind for child in root.__subclasses__() for kind in tree(child))}


# Those of the domain: other tests may have made subclasses of their own.
KINDS = sorted((kind for kind in tree() if kind.__module__ == errors.__name__), key=lambda kind: kind.code)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
DETAILS = st.dictionaries(st.text(max_size=8), JSON, max_size=4)


def over_the_wire(error: SandlotError, request_id: str = "") -> SandlotError:
    body = msgspec.json.encode(problem_of(error, request_id))
    return error_of(msgspec.json.decode(body, type=Problem))


def test_every_error_of_the_tree_has_a_status() -> None:
    assert set(STATUS) == set(KINDS)
    assert all(400 <= status < 600 for status in STATUS.values())


def test_codes_are_one_to_one() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)


def test_file_reasons_have_statuses_of_their_own() -> None:
    assert set(FILE_STATUS) <= FILE_REASONS
    for reason in FILE_REASONS:
        assert status_of(FileProblem("no", reason=reason, path="/a")) == FILE_STATUS.get(reason, 400)


def test_subclass_that_the_table_does_not_know_has_its_parents_status() -> None:
    class Narrower(errors.Busy):
        pass

    assert status_of(Narrower("x")) == STATUS[errors.Busy]


@given(
    kind=st.sampled_from([kind for kind in KINDS if kind is not FileProblem]),
    message=st.text(max_size=30),
    retryable=st.none() | st.booleans(),
    executed=st.none() | st.booleans(),
    retry_after_s=st.none() | st.floats(0, 1e6),
    details=DETAILS,
)
def test_round_trip(
    kind: type[SandlotError],
    message: str,
    retryable: bool | None,
    executed: bool | None,
    retry_after_s: float | None,
    details: dict[str, object],
) -> None:
    error = kind(
        message,
        retryable=retryable,
        may_have_executed=executed,
        retry_after_s=retry_after_s,
        details=details,
    )
    back = over_the_wire(error)
    assert type(back) is kind
    assert told(back) == told(error)


@given(st.sampled_from(sorted(FILE_REASONS)), st.text(max_size=20), st.text(max_size=20), st.booleans())
def test_round_trip_of_a_file_problem(reason: str, path: str, message: str, executed: bool) -> None:
    error = FileProblem(message, reason=reason, path=path)
    error.may_have_executed = executed  # as of a write that broke off
    back = over_the_wire(error)
    assert isinstance(back, FileProblem)
    assert (back.reason, back.path) == (reason, path)
    assert told(back) == told(error)


def told(error: SandlotError) -> tuple[object, ...]:
    return (
        error.code,
        error.message,
        error.retryable,
        error.may_have_executed,
        error.retry_after_s,
        error.details,
    )


@pytest.mark.parametrize("reason", ["from_the_future", None, 7, ["list"], {"a": "mapping"}], ids=repr)
def test_file_problem_of_an_unknown_reason(reason: object) -> None:
    back = error_of(
        Problem("file problem", 400, "no", "file_problem", False, False, details={"reason": reason})
    )
    assert isinstance(back, FileProblem)
    assert back.reason == "invalid_path"


@pytest.mark.parametrize("code", ["from_the_future", "", "SandlotError", "builtins.SystemExit"])
def test_unknown_code_is_the_plain_error_with_its_fields(code: str) -> None:
    problem = Problem("?", 418, "what", code, True, True, retry_after_s=2.5, details={"a": 1})
    back = error_of(problem)
    assert type(back) is SandlotError
    assert told(back) == (code, "what", True, True, 2.5, {"a": 1})
    assert SandlotError.code == "internal"  # the class itself is not changed


def test_request_id_is_kept_where_it_can_be_read() -> None:
    back = over_the_wire(errors.Busy("later"), "req_1")
    assert back.details["request_id"] == "req_1"
    assert "request_id" not in over_the_wire(errors.Busy("later")).details


def test_problem_says_what_it_is_in_words() -> None:
    problem = problem_of(errors.SandboxLost("gone"))
    assert (problem.title, problem.status, problem.type) == ("sandbox lost", 410, "about:blank")
