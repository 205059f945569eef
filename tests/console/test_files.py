"""The tab of files: what goes up, how it is shown, and what comes down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandlot import AsyncSession
from sandlot.testing.eventually import eventually
from tests.console.conftest import Console
from tests.console.stage.agents import REPORT
from tests.console.stage.plot import HEIGHT, WIDTH, bars
from tests.service.browsing import shows

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

WITHIN_S = 20.0
EVERY_BYTE = bytes(range(256))
CARRIED = """files => {
    const carried = new DataTransfer();
    for (const [name, bytes] of Object.entries(files)) carried.items.add(new File([new Uint8Array(bytes)], name));
    return carried;
}"""


async def _carry(page: Any, files: dict[str, bytes]) -> dict[str, Any]:
    """What a drop brings with it."""
    carried = await page.evaluate_handle(CARRIED, {name: list(data) for name, data in files.items()})
    return {"dataTransfer": carried}


async def _has(session: AsyncSession, path: str, content: bytes) -> None:
    async def same() -> bool:
        return await session.files.exists(path) and await session.files.read(path) == content

    await eventually(same, WITHIN_S, f"{path} has come")


async def test_files_go_up_are_edited_and_come_down(console: Console, tmp_path: Path) -> None:
    page = console.page
    (tmp_path / "notes.txt").write_text("first\n")
    async with console.client.create() as session:
        await console.go(f"/sessions/{session.id}/files")
        await page.locator("input[type=file]").set_input_files(tmp_path / "notes.txt")
        await page.get_by_role("button", name="notes.txt", exact=False).first.click()
        editor = page.get_by_label("Content of notes.txt")
        await editor.fill("second\n")
        await page.get_by_role("button", name="Save").click()
        await shows(page, "Saved.")
        assert await session.files.read_text("notes.txt") == "second\n"
        async with page.expect_download() as waiting:
            await page.get_by_role("button", name="Download notes.txt").click()
        download = await waiting.value
        assert download.suggested_filename == "notes.txt"
        assert Path(await download.path()).read_text() == "second\n"


async def test_files_are_dropped_on_a_folder(console: Console) -> None:
    """Several at once, into the folder that is open, byte by byte."""
    page = console.page
    drop = page.locator(".drop")
    async with console.client.create() as session:
        await session.files.write("data/old.txt", "old")
        await console.go(f"/sessions/{session.id}/files")
        await page.get_by_role("button", name="data/").click()
        await page.get_by_role("button", name="old.txt", exact=False).first.wait_for()
        carried = await _carry(page, {"every.bin": EVERY_BYTE, "a name.txt": b"with a space"})
        await drop.dispatch_event("dragover", carried)
        await page.locator(".drop.over").wait_for()
        await drop.dispatch_event("drop", carried)
        await page.locator(".drop:not(.over)").wait_for()
        for name, content in (("every.bin", EVERY_BYTE), ("a name.txt", b"with a space")):
            await page.get_by_role("button", name=f"Download {name}").wait_for()
            await _has(session, f"data/{name}", content)
        await drop.dispatch_event("dragover", carried)
        await drop.dispatch_event("dragleave", carried)
        await page.locator(".drop:not(.over)").wait_for()


async def test_a_table_is_shown_as_one(console: Console) -> None:
    page = console.page
    quoted = 'name,said\n"Smith, Jane","He said ""no"".\nTwice."\n'
    async with console.client.create() as session:
        await session.files.write("report.csv", REPORT)
        await session.files.write("quoted.csv", quoted)
        await session.files.write("tabs.TSV", "one\ttwo\n1,5\t2\n")
        await console.go(f"/sessions/{session.id}/files")
        expected = {
            "report.csv": [line.split(",") for line in REPORT.splitlines()],
            "quoted.csv": [["name", "said"], ["Smith, Jane", 'He said "no".⏎ Twice.']],
            "tabs.TSV": [["one", "two"], ["1,5", "2"]],
        }
        for name, rows in expected.items():
            await page.get_by_role("button", name=name, exact=False).first.click()
            await page.get_by_role("heading", name=name, exact=True).wait_for()
            await page.get_by_role("columnheader", name=rows[0][0]).wait_for()
            shown = await page.locator("table tr").evaluate_all(
                "rows => rows.map((row) => [...row.children].map((cell) => cell.textContent))"
            )
            assert shown == rows
        await page.get_by_role("button", name="report.csv", exact=False).first.click()
        await page.get_by_role("button", name="Edit as text").click()
        assert await page.get_by_label("Content of report.csv").input_value() == REPORT


async def test_a_picture_is_shown_as_one(console: Console) -> None:
    """By its first bytes, and not by its name."""
    page = console.page
    async with console.client.create() as session:
        await session.files.write("plot.txt", bars([1, 2]))
        await session.files.write("plot.png", json.dumps({"no": "picture"}))
        await console.go(f"/sessions/{session.id}/files")
        await page.get_by_role("button", name="plot.txt", exact=False).first.click()
        picture = page.get_by_role("img", name="plot.txt")
        await picture.wait_for()
        size = "one => one.decode().then(() => [one.naturalWidth, one.naturalHeight])"
        assert await picture.evaluate(size) == [WIDTH, HEIGHT]
        await page.get_by_role("button", name="plot.png", exact=False).first.click()
        await page.get_by_label("Content of plot.png").wait_for()
        assert await page.locator("img.picture").count() == 0
