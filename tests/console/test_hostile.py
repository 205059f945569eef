"""What programs and clients write is shown as text, wherever it is shown: none of it runs.

Each test first sees that the text is on the page: where nothing is shown, nothing could run.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from sandlot import AsyncSession
from sandlot.testing.eventually import eventually
from tests.console.conftest import SCREEN_SECONDS, Console
from tests.console.stage.payloads import ALL, AS_FILES, PAYLOADS, SEQUENCES, WITHOUT_SPACES, batches, visible
from tests.faults.rig import ServerProcess

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

WRITES = """
import json, sys
for number, (name, payload) in enumerate(json.load(sys.stdin)):
    open(name, 'w').write(payload)
    open(f'/tmp/{number}', 'w').write(payload + chr(10))
"""
# Text of the page, or of its parts, and what its fields hold.
MISSING = """([texts, part]) => {
    const parts = part ? [...document.querySelectorAll(part)] : [document.body];
    const fields = [...document.querySelectorAll('input, textarea')];
    const all = [...parts.map((one) => one.innerText), ...fields.map((one) => one.value)].join('\\n');
    return texts.filter((text) => !all.includes(text));
}"""
# A row of the screen after the other, from its first.
SCROLL = """at => {
    const view = document.querySelector('.xterm-viewport');
    view.scrollTop = at * view.clientHeight / 2;
    return view.scrollTop + view.clientHeight >= view.scrollHeight - 1;
}"""
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


async def _sees(console: Console, texts: Iterable[str], part: str = "") -> None:
    """All of them are on the page now, and nothing has run."""
    wanted, missing = list(texts), ["not looked yet"]
    assert wanted

    async def none_is_missing() -> bool:
        nonlocal missing
        missing = await console.page.evaluate(MISSING, [wanted, part])
        return not missing

    await eventually(none_is_missing, SCREEN_SECONDS, lambda: f"{console.page.url} shows {missing}")
    await console.page.evaluate(SETTLED)
    await console.check()


async def _sees_on_screen(console: Console, texts: Iterable[str]) -> None:
    """All of them are in a terminal that writes for screen readers, above what it shows too."""
    page, wanted = console.page, set(texts)

    async def scrolled_through() -> bool:
        ended, at = False, 0
        while not ended:
            ended = await page.evaluate(SCROLL, at)
            await page.evaluate(SETTLED)
            rows = "\n".join(await console.screen_rows())
            wanted.difference_update([text for text in wanted if text in rows])
            at += 1
        return not wanted

    await page.locator(".xterm-accessibility-tree").wait_for(state="attached")
    await eventually(scrolled_through, SCREEN_SECONDS, lambda: f"the screen shows {wanted}")
    await console.check()


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def hostile(server: ServerProcess) -> AsyncIterator[AsyncSession]:
    """A session that has every payload everywhere that one can have it."""
    metadata = {f"name of {payload}": payload for payload in ALL}
    async with (
        server.client() as client,
        client.create(thread=f"t{WITHOUT_SPACES[0]}", metadata=metadata, record=True) as session,
    ):
        for label in batches(PAYLOADS, 200, " "):
            await session.workspace.snapshot(label)
        written = await session.run(
            ["python3", "-c", WRITES], stdin=json.dumps(list(zip(AS_FILES, ALL, strict=True)))
        )
        assert written.exit_code == 0, written.output
        await session.run("rm -f /tmp/said; for n in $(seq 0 37); do cat /tmp/$n >> /tmp/said; done")
        for number, payload in enumerate(ALL):
            await session.run(f"cat /tmp/{number} # {payload}")
        await session.run("cat /tmp/said", exec_id="said-all")
        yield session


async def test_metadata(console: Console, hostile: AsyncSession) -> None:
    await console.go(f"/sessions/{hostile.id}")
    await _sees(console, [visible(payload) for payload in ALL], "dd")
    await _sees(console, [f"name of {visible(payload)}" for payload in ALL], "dt")


async def test_commands_and_their_output(console: Console, hostile: AsyncSession) -> None:
    page = console.page
    commands = [visible(f"# {payload}") for payload in ALL]
    base = f"/sessions/{hostile.id}"
    await console.go(f"{base}/execs")
    await _sees(console, commands, "button.command")
    await page.get_by_label("Command", exact=True).fill(" ".join(ALL))
    await page.get_by_role("button", name="cat /tmp/said", exact=True).click()
    await page.get_by_label("For screen readers").check()
    await _sees_on_screen(console, PAYLOADS)
    assert await page.locator(".screen a").count() == 0
    await console.go(f"{base}/history")
    await _sees(console, commands, ".timeline li")
    await console.go(f"/threads/{_segment(str(hostile.thread))}")
    await _sees(console, [str(hostile.thread)], "h1")
    await _sees(console, commands, "pre.ran")
    for button in await page.get_by_role("button", name="Show output").all():
        await page.get_by_role("button", name="Show output").first.click()  # which takes the button away
        del button
    await _sees(console, PAYLOADS, "pre.saw")
    assert await page.title() == "Threads · Sandlot"


async def test_a_terminal_and_a_recording(console: Console, hostile: AsyncSession) -> None:
    page = console.page
    await console.go(f"/sessions/{hostile.id}/terminal")
    await console.open_terminal()
    await page.keyboard.type("clear; cat /tmp/said; echo all-$((1 + 1))\n")
    await console.screen_shows("all-2")
    await _sees_on_screen(console, PAYLOADS)
    assert await page.title() == "Sessions · Sandlot"
    assert await page.locator(".screen a").count() == 0
    await console.go(f"/sessions/{hostile.id}/recording")
    await page.get_by_label("Position").fill(await page.get_by_label("Position").get_attribute("max"))
    await _sees_on_screen(console, PAYLOADS)


async def test_files(console: Console, hostile: AsyncSession) -> None:
    page = console.page
    others = {
        "evil.svg": "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(60)'/>",
        "evil.html": "<script>alert(61)</script>",
        "evil.csv": "\n".join(f'"{payload}",=alert(62)' for payload in PAYLOADS if '"' not in payload),
    }
    for name, content in others.items():
        await hostile.files.write(name, content)
    await hostile.files.write("evil.png", b"\x89PNG<script>alert(63)</script>")
    await console.go(f"/sessions/{hostile.id}/files")
    names = [visible(name) for name in AS_FILES]
    await _sees(console, names, "button.file")
    for name, payload in zip(names, ALL, strict=True):
        await page.locator("button.file").get_by_text(name, exact=True).click()
        await page.get_by_role("heading", name=name, exact=True).wait_for()
        await _sees(console, [_as_field(payload)], "main")
        row = page.locator("li", has=page.locator("button.file").get_by_text(name, exact=True))
        await row.get_by_role("button", name="Remove").click()
        await _sees(console, [f"/workspace/{name}"], "dialog")
        await page.keyboard.press("Escape")
    for name in ("evil.svg", "evil.html"):
        await page.locator("button.file", has_text=name).click()
        await _sees(console, [others[name]], "main")
    await page.locator("button.file", has_text="evil.csv").click()
    await _sees(console, [payload for payload in PAYLOADS if '"' not in payload], "td, th")
    await page.locator("button.file", has_text="evil.png").click()
    await page.locator("img.picture").wait_for()
    await _sees(console, ["evil.png"], "h2")


async def test_snapshots_and_what_has_changed_since(console: Console, hostile: AsyncSession) -> None:
    page = console.page
    await console.go(f"/sessions/{hostile.id}/snapshots")
    await _sees(console, PAYLOADS, ".tree b")
    await page.get_by_role("button", name="Compare").first.click()
    await _sees(console, [f"+ {visible(name)}" for name in AS_FILES], ".changes li")


async def test_threads(console: Console) -> None:
    names = list(batches(WITHOUT_SPACES, 200))
    sessions = [await console.client.thread(name) for name in names]
    try:
        await console.go("/sessions")
        await _sees(console, WITHOUT_SPACES, "td")
        await console.page.get_by_label("Search").fill(names[-1])
        await _sees(console, [names[-1]], "td")
        await console.go("/threads")
        await _sees(console, WITHOUT_SPACES, "main li a")
        for name in names:
            await console.go(f"/threads/{_segment(name)}")
            await _sees(console, [name], "h1")
        await console.go(f"/sessions/{sessions[0].id}")
        await _sees(console, [names[0]], ".facts")
    finally:
        for session in sessions:
            await session.delete()


async def test_keys_and_webhooks(console: Console) -> None:
    headers = {"Authorization": f"Bearer {console.server.api_key}"}
    page = console.page
    async with httpx.AsyncClient(base_url=console.server.url, headers=headers) as http:
        made = []
        try:
            for name in PAYLOADS:
                key = (await http.post("/v1/keys", json={"name": name})).raise_for_status().json()
                made.append(f"/v1/keys/{key['key']['id']}")
            for path in batches(WITHOUT_SPACES, 1_000, "/"):
                hook = {"url": f"https://hooks.example.com/?{path}", "events": ["session.lost"]}
                answer = (await http.post("/v1/webhooks", json=hook)).raise_for_status().json()
                made.append(f"/v1/webhooks/{answer['webhook']['id']}")
            await console.go("/admin/keys")
            await _sees(console, PAYLOADS, ".rows li")
            await page.get_by_label("Name").fill(" ".join(PAYLOADS))
            await _sees(console, PAYLOADS)
            await console.go("/admin/webhooks")
            await _sees(console, WITHOUT_SPACES, ".rows li")
        finally:
            for path in made:
                (await http.delete(path)).raise_for_status()


@pytest.mark.usefixtures("administration")
@pytest.mark.parametrize("said", [" ".join(ALL), "javascript:alert(90)"], ids=["payloads", "address"])
async def test_what_the_api_never_says(console: Console, said: str) -> None:
    """Its rules keep such text out of names of tenants, workers and hosts. The page does not rely on them."""
    page = console.page

    def hostile(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: hostile(one) for name, one in value.items()}
        if isinstance(value, list):
            return [hostile(one) for one in value]
        return said if isinstance(value, str) else value

    async def answer(route: Any) -> None:
        if "text/event-stream" in (await route.request.header_value("accept") or ""):
            await route.continue_()
        elif route.request.url.endswith("/v1/fleet"):
            await route.fulfill(json=hostile(_fleet()))
        elif "/v1/fleet/sessions?" in route.request.url:
            known = await (await route.fetch(url=f"{console.server.url}/v1/sessions")).json()
            placed = [{"session": one, "worker": "w1", "worker_state": "alive"} for one in known["sessions"]]
            await route.fulfill(json=hostile({"sessions": placed, "next": None}))
        else:
            known = await route.fetch()
            is_json = "json" in known.headers.get("content-type", "")
            await (
                route.fulfill(json=hostile(await known.json())) if is_json else route.fulfill(response=known)
            )

    async with console.client.create(thread="told-lies", metadata={"name": "value"}) as session:
        await session.run("curl -sS -m 3 http://evil.example/")
        await session.workspace.snapshot("named")
        await session.expose(8000)
        tabs = ("about", "execs", "files", "snapshots", "network")
        await page.route("**/v1/**", answer)
        for path in (
            *("/", "/sessions", "/threads", "/fleet"),
            *(f"/sessions/{session.id}/{tab}" for tab in tabs),
            *(f"/admin/{tab}" for tab in ("environments", "keys", "tenants", "webhooks")),
        ):
            await console.go(path)
            await _sees(console, [visible(said)], "main")
            assert await page.locator("a[href^='javascript']").count() == 0
        await page.unroute_all(behavior="ignoreErrors")


async def test_a_preview_is_a_link_only_to_the_web(console: Console) -> None:
    page = console.page

    async def answer(route: Any) -> None:
        await route.fulfill(json={"port": 8000, "public": False, "url": "javascript:alert(80)"})

    async with console.client.create() as session:
        await session.expose(8000)
        await page.route("**/ports/8000", answer)
        await console.go(f"/sessions/{session.id}/network")
        async with page.expect_response("**/ports/8000"):
            await page.get_by_role("button", name="Make a link").click()
        await _sees(console, ["8000"])
        assert await page.locator("main a[href^='javascript']").count() == 0
        assert await page.get_by_role("link", name="Open the preview").count() == 0


async def test_an_address_that_somebody_made_up_runs_nothing(console: Console) -> None:
    for payload in ALL:
        for place in ("/sessions/", "/threads/", "/admin/", "/"):
            await console.page.evaluate(
                "path => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')); }",
                "/console" + place + _segment(payload),
            )
            await console.page.evaluate("new Promise(requestAnimationFrame)")
            if place == "/threads/":
                await _sees(console, [visible(payload)], "h1")
    await console.check()


async def test_no_answer_of_the_api_can_be_framed_or_run(console: Console) -> None:
    """A file of a sandbox is a download, also for a page that has the console's own origin."""
    async with console.client.create() as session:
        await session.files.write("x.html", "<script>alert(70)</script>")
        url = f"{console.server.url}/v1/sessions/{session.id}/files/content?path=x.html"
        headers: dict[str, Any] = {"Authorization": f"Bearer {console.server.api_key}"}
        answer = await console.page.request.get(url, headers=headers)
        assert answer.headers["content-disposition"].startswith("attachment")
        assert "sandbox" in answer.headers["content-security-policy"]


async def test_there_are_payloads_enough() -> None:
    assert len(PAYLOADS) >= 30
    assert len(set(ALL)) == len(PAYLOADS) + len(SEQUENCES) == 38
    assert "".join(batches(PAYLOADS, 200)) == "".join(PAYLOADS)


def _segment(text: str) -> str:
    return quote(text, safe="")


def _as_field(payload: str) -> str:
    """As a text area holds it."""
    return payload.replace("\r\n", "\n").replace("\r", "\n")


def _fleet() -> dict[str, Any]:
    machine = {"memory_bytes": 8, "cpus": 2.0, "pids": 100}
    worker = {
        **dict.fromkeys(("id", "url", "version", "state"), ""),
        **dict.fromkeys(("epoch", "lease_left_s", "sessions", "warm", "free"), 1),
        "problems": ["", ""],
        "draining": True,
        "machine": {"total": machine, "given": machine, "disk_free_bytes": 8},
    }
    return {"sessions": 1, "reservations": 0, "settled": True, "workers": [worker, worker, worker]}
