"""Keys pressed in a terminal of the console while 10 MB of output arrive.

A key's time counts from the browser's own stamp of the event. ``handled``: the page's
handlers begin. ``painted``: the frame after them is done.

The flood ends with a question that every terminal answers. The answer says that the terminal has taken
all of the flood, and only keys before it count.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from bench.console.browser import logged_in
from bench.rig import progress
from bench.server import Served

FLOOD_BYTES: Final = 10 * 1024 * 1024
PACE_S: Final = 0.03
OVER_WITHIN_MS: Final = 120_000
ROUNDS_AT_MOST: Final = 40

WATCH: Final = """
window.bench = { keys: [], received: 0, over: false };
addEventListener('keydown', (event) => {  // before xterm's own handler, which runs in the same task
    const [pressed, during] = [event.timeStamp, !window.bench.over];
    const handled = performance.now() - pressed;
    requestAnimationFrame(() => {
        const after = new MessageChannel();  // its task is the first one behind the frame
        after.port1.onmessage = () => window.bench.keys.push({ handled, painted: performance.now() - pressed, during });
        after.port2.postMessage(null);
    });
}, true);
window.WebSocket = class extends WebSocket {
    constructor(...rest) {
        super(...rest);
        this.addEventListener('message', ({ data }) => { window.bench.received += data.byteLength ?? 0; });
    }
    send(data) {
        if (typeof data !== 'string' && new TextDecoder().decode(data).includes('\\u001b[0n')) window.bench.over = true;
        super.send(data);
    }
};
"""
FLOOD: Final = f"head -c {FLOOD_BYTES} /dev/zero | tr '\\0' x | fold -w 79; printf '\\033[5n'"


@dataclass(frozen=True)
class Keys:
    """``milliseconds``: of each key, by what is measured. ``mb_per_s``: what the terminal took."""

    milliseconds: dict[str, list[float]]
    mb_per_s: float


async def measure(served: Served, keys: int) -> Keys:
    """Keys in a quiet terminal, then as many beside floods."""
    async with served.client() as client, client.create() as session, logged_in(served, WATCH) as page:
        await page.goto(f"{served.url}/console/sessions/{session.id}/terminal")
        await page.get_by_role("button", name="Open a terminal", exact=True).click()
        await page.get_by_text("Connected.").wait_for()
        await page.locator(".xterm-helper-textarea").focus()
        quiet = await _press(page, keys)
        beside: list[dict[str, float]] = []
        seconds: list[float] = []
        while len(beside) < keys and len(seconds) < ROUNDS_AT_MOST:
            found, spent = await _flood(page, keys - len(beside))
            beside += found
            seconds.append(spent)
            progress(f"{len(found)} keys beside a flood of {spent:.1f} s")
    milliseconds = {
        "quiet: handled": [one["handled"] for one in quiet],
        "quiet: painted": [one["painted"] for one in quiet],
        "flood: handled": [one["handled"] for one in beside],
        "flood: painted": [one["painted"] for one in beside],
    }
    return Keys(milliseconds, FLOOD_BYTES / 1e6 / (sum(seconds) / len(seconds)))


async def _flood(page: Any, most: int) -> tuple[list[dict[str, float]], float]:
    await page.keyboard.press("Control+u")
    await page.keyboard.insert_text(FLOOD)
    await page.evaluate("Object.assign(window.bench, { keys: [], received: 0, over: false })")
    await page.keyboard.press("Enter")
    began = asyncio.get_running_loop().time()
    await page.wait_for_function("() => window.bench.received > 65536", polling=20)
    await page.evaluate("window.bench.keys = []")
    found = await _press(page, most, during=True)
    await page.wait_for_function("() => window.bench.over", timeout=OVER_WITHIN_MS, polling=20)
    spent = asyncio.get_running_loop().time() - began
    assert await page.evaluate("window.bench.received") >= FLOOD_BYTES
    return [one for one in found if one["during"]], spent


async def _press(page: Any, most: int, *, during: bool = False) -> list[dict[str, float]]:
    """Press keys at a person's fastest pace, or until the flood is over."""
    await page.evaluate("window.bench.keys = []")
    pressed = 0
    while pressed < most and not (during and await page.evaluate("window.bench.over")):
        await page.keyboard.press("a")
        pressed += 1
        await asyncio.sleep(PACE_S)
    await page.wait_for_function("count => window.bench.keys.length >= count", arg=pressed, polling=20)
    return list(await page.evaluate("window.bench.keys"))
