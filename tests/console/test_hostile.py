"""What programs and clients write is shown as text, wherever it is shown: none of it runs."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.console.conftest import Console
from tests.service.browsing import shows

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

# Each would say so by calling alert, which the page's guard records.
PAYLOADS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "<svg onload=alert(3)>",
    "<svg><script>alert(4)</script></svg>",
    "<iframe srcdoc='<script>parent.alert(5)</script>'></iframe>",
    "<iframe src=javascript:alert(6)></iframe>",
    "<a href=javascript:alert(7)>x</a>",
    "<body onload=alert(8)>",
    "<details open ontoggle=alert(9)>",
    "<video><source onerror=alert(10)>",
    "<input autofocus onfocus=alert(11)>",
    "<object data=javascript:alert(12)>",
    "<embed src=javascript:alert(13)>",
    "<math href=javascript:alert(14)>x</math>",
    "<style>@import 'javascript:alert(15)';</style>",
    "<link rel=stylesheet href=javascript:alert(16)>",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=javascript:alert(17)'>",
    "<form action=javascript:alert(18)><button>x",
    "javascript:alert(19)",
    "data:text/html,<script>alert(20)</script>",
    '"><script>alert(21)</script>',
    "'><img src=x onerror=alert(22)>",
    "</title><script>alert(23)</script>",
    "</textarea><script>alert(24)</script>",
    "</script><script>alert(25)</script>",
    "{{constructor.constructor('alert(26)')()}}",
    "${alert(27)}",
    "`;alert(28);`",
    "';alert(29);//",
    "<img src=x onerror=alert&lpar;30&rpar;>",
    "<x contenteditable onblur=alert(31)>",
    "<noscript><p title='</noscript><img src=x onerror=alert(32)>'>",
    "<template><script>alert(33)</script></template>",
)
# In a terminal: titles, links, clipboards, answers that a program asks for.
SEQUENCES = (
    "\x1b]0;<img src=x onerror=alert(40)>\x07",
    "\x1b]8;;javascript:alert(41)\x07click\x1b]8;;\x07",
    "\x1b]52;c;YWxlcnQoNDIp\x07",
    "\x1b[21t\x1b[c\x1b]11;?\x07",
)
TABS = ("about", "execs", "files", "network", "history", "terminal", "recording")


async def _open_all(console: Console, paths: list[str]) -> None:
    for path in paths:
        await console.go(path)
        await console.page.locator("main h1").first.wait_for()
        await console.page.wait_for_timeout(700)  # what is shown comes by streams that never end
        await console.check()


async def test_no_payload_runs(console: Console) -> None:
    assert len(PAYLOADS) + len(SEQUENCES) >= 30
    page = console.page
    # A name with a space would be stored as its digest.
    thread = "".join(payload for payload in PAYLOADS if " " not in payload)[:200]
    metadata = {f"name {index} {payload}"[:60]: payload for index, payload in enumerate(PAYLOADS)}
    async with console.client.create(
        thread=thread, metadata=dict(list(metadata.items())[:16]), record=True
    ) as session:
        await session.update(metadata=dict(list(metadata.items())[16:32]))
        script = "import os, sys, json\n"
        script += "for index, payload in enumerate(json.load(sys.stdin)):\n"
        script += "    open(f'{index} ' + payload.replace('/', '\\u2215'), 'w').write(payload)\n"
        script += "    print(payload)\n"
        everything = json.dumps([*PAYLOADS, *SEQUENCES])
        ran = await session.run(["python3", "-c", script], stdin=everything)
        assert ran.exit_code == 0, ran.output
        await session.run("# " + " ".join(PAYLOADS[:8]))
        await session.run("curl -m 3 'https://evil.example/<img src=x onerror=alert(50)>'")
        await session.files.write("evil.svg", "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(60)'/>")
        await session.files.write("evil.html", "<script>alert(61)</script>")
        await session.files.write("evil.csv", "\n".join(f'"{one}",=alert(62)' for one in PAYLOADS))
        await session.files.write("evil.png", b"\x89PNG<script>alert(63)</script>")
        base = f"/sessions/{session.id}"
        await _open_all(console, ["/", "/sessions", "/threads", *(f"{base}/{tab}" for tab in TABS)])
        for name in ("evil.svg", "evil.html", "evil.csv", "evil.png", "0 <script>"):
            await console.go(f"{base}/files")
            await page.locator("button.file", has_text=name).first.click()
            await page.wait_for_timeout(300)
            await console.check()
        await console.go(f"{base}/execs")
        for button in await page.locator("button.command").all():
            await button.click()
            await page.wait_for_timeout(300)
        await console.check()
        assert session.thread == thread
        await console.go("/threads/" + _segment(thread))
        await shows(page, PAYLOADS[0])
        saw = page.get_by_role("button", name="Show output")
        while await saw.count():
            await saw.first.click()  # which takes the button away
        await console.check()
        assert await page.evaluate("document.title") == "Threads · Sandlot"


async def test_an_address_that_somebody_made_up_runs_nothing(console: Console) -> None:
    for payload in PAYLOADS:
        for place in ("/sessions/", "/threads/", "/admin/", "/"):
            await console.page.evaluate(
                "path => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')); }",
                "/console" + place + _segment(payload),
            )
            await console.page.evaluate("new Promise(requestAnimationFrame)")
    await console.check()


def _segment(text: str) -> str:
    return quote(text, safe="")


async def test_no_answer_of_the_api_can_be_framed_or_run(console: Console) -> None:
    """A file of a sandbox is a download, also for a page that has the console's own origin."""
    async with console.client.create() as session:
        await session.files.write("x.html", "<script>alert(70)</script>")
        url = f"{console.server.url}/v1/sessions/{session.id}/files/content?path=x.html"
        headers: dict[str, Any] = {"Authorization": f"Bearer {console.server.api_key}"}
        answer = await console.page.request.get(url, headers=headers)
        assert answer.headers["content-disposition"].startswith("attachment")
        assert "sandbox" in answer.headers["content-security-policy"]
