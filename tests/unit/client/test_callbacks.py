"""Text for callbacks: whole characters across pieces, and none made up across a gap."""

from __future__ import annotations

from sandlot.client.callbacks import OutputDispatcher
from sandlot.domain.execution import Channel, ExecRequest, Exited, Output
from sandlot.domain.session import Session

EURO = "€".encode()


def heard(*events: Output) -> tuple[str, str]:
    out: list[str] = []
    err: list[str] = []
    session = Session(id="ses_1", environment="base", created_at=0, last_active_at=0)
    dispatcher = OutputDispatcher(session, ExecRequest(command="true"), out.append, err.append)
    for event in events:
        dispatcher.dispatch(event)
    dispatcher.dispatch(Exited(0, 0, "exited", output_bytes=100))
    assert dispatcher.result().exit_code == 0
    return "".join(out), "".join(err)


def test_a_character_that_was_cut_by_the_way_is_whole() -> None:
    pieces = Output(Channel.STDOUT, 0, EURO[:1]), Output(Channel.STDERR, 1, EURO[:2])
    rests = Output(Channel.STDOUT, 3, EURO[1:]), Output(Channel.STDERR, 5, EURO[2:])
    assert heard(*pieces, *rests) == ("€", "€")


def test_two_halves_at_a_gap_are_not_a_third_character() -> None:
    # E2 82 | 82 AC would be read as "₂" and a stray byte; E2 | 82 AC as a euro that nobody wrote.
    for cut in (1, 2):
        head, tail = Output(Channel.STDOUT, 0, EURO[:cut]), Output(Channel.STDOUT, 50, EURO[1:] + EURO)
        assert heard(head, tail) == ("\ufffd" + "\ufffd\ufffd" + "€", "")


def test_a_gap_ends_the_characters_of_both_channels() -> None:
    events = (
        Output(Channel.STDERR, 0, EURO[:2]),
        Output(Channel.STDOUT, 2, EURO[:1]),
        Output(Channel.STDOUT, 50, b"a"),
        Output(Channel.STDERR, 51, EURO[2:] + b"b"),
    )
    assert heard(*events) == ("\ufffda", "\ufffd\ufffdb")
