"""Pages of files, cut from bytes as they come, against the framework's own reading of the same bytes."""

from __future__ import annotations

import io

import pytest
from deepagents.backends.protocol import ReadResult
from deepagents.backends.sandbox import MAX_OUTPUT_BYTES, TRUNCATION_MSG
from hypothesis import given
from hypothesis import strategies as st

from sandlot.integrations.deepagents.text_page import LINE_COUNT_BYTES, MAX_SCAN_BYTES, TextPage

TEXTS = st.text(st.sampled_from("ab\n\r\té世👋\x0b\x85\u2028"), max_size=60)


def page(content: bytes, offset: int, limit: int, piece: int = 65536) -> ReadResult:
    text_page, complete = TextPage(offset, limit), True
    for start in range(0, len(content), piece):
        if not text_page.add(content[start : start + piece]):
            complete = False
            break
    return text_page.result("/f", complete=complete)


@given(TEXTS, st.integers(0, 12), st.integers(1, 12), st.integers(1, 9))
def test_a_page_has_the_lines_that_python_reads(text: str, offset: int, limit: int, piece: int) -> None:
    lines = [line.rstrip("\n") for line in io.StringIO(text, newline=None)]
    result = page(text.encode(), offset, limit, piece)
    if not text:
        assert result.file_data is not None
        assert "empty" in result.file_data["content"]
    elif offset >= len(lines):
        assert result.error is not None
        assert f"exceeds file length ({len(lines)} lines)" in result.error
    else:
        shown = lines[offset : offset + limit]
        end = offset + len(shown)
        assert result.file_data == {"content": "\n".join(shown), "encoding": "utf-8"}
        assert (result.start_line, result.end_line, result.total_lines) == (offset + 1, end, len(lines))
        assert result.next_offset == (end if end < len(lines) else None)


def test_bytes_that_are_no_text_behind_the_start_are_shown_as_such() -> None:
    result = page(b"a" * 9000 + b"\xff\nb", 0, 10)
    assert result.file_data is not None
    assert result.file_data["content"] == "a" * 9000 + "\ufffd\nb"


def test_what_is_too_long_for_a_page_is_cut_and_the_next_one_begins_with_the_line_that_was() -> None:
    line = "世" * 1000
    result = page("\n".join([line] * 400).encode(), 5, 300)
    assert result.file_data is not None
    content = result.file_data["content"]
    assert len(content.encode()) <= MAX_OUTPUT_BYTES
    assert content.endswith(TRUNCATION_MSG)
    whole = content.removesuffix(TRUNCATION_MSG).split("\n")
    assert whole[:-1] == [line] * (len(whole) - 1)
    assert line.startswith(whole[-1])
    assert result.next_offset == result.end_line == 5 + len(whole) - 1


def test_a_line_that_never_fits_is_passed_by() -> None:
    result = page(b"x" * (2 * MAX_OUTPUT_BYTES) + b"\nnext", 0, 10)
    assert (result.start_line, result.end_line, result.next_offset) == (1, 1, 1)
    after = page(b"x" * (2 * MAX_OUTPUT_BYTES) + b"\nnext", 1, 10)
    assert after.file_data is not None
    assert after.file_data["content"] == "next"


@pytest.mark.parametrize("extra", [0, 1])
def test_lines_behind_a_page_are_counted_in_files_that_are_not_long(extra: int) -> None:
    lines = LINE_COUNT_BYTES // 2
    result = page(b"x\n" * lines + b"y\n" * extra * 65536, 0, 10, piece=65536)
    assert result.total_lines == (None if extra else lines)
    assert result.next_offset == 10


def test_a_page_that_begins_too_far_down_is_refused_with_a_way_to_go() -> None:
    block = b"x" * (1024 * 1024)
    text_page, taken = TextPage(10, 10), 0
    while text_page.add(block):
        taken += len(block)
        assert taken <= MAX_SCAN_BYTES
    result = text_page.result("/f", complete=False)
    assert result.error is not None
    assert "sed" in result.error
