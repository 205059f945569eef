"""Each method of ``sandbox.git``. ``git_calls.py URL KEY sync|async``; it needs the template ``base``."""

from __future__ import annotations

import os
import sys

URL, KEY, FORM = sys.argv[1:4]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import caller, run  # noqa: E402

from e2b import AsyncSandbox, Sandbox  # noqa: E402

got = caller(FORM)
SDK = Sandbox if FORM == "sync" else AsyncSandbox
REPO = "/workspace/repo"
REMOTE = "/workspace/remote.git"
CREDENTIAL = "printf 'protocol=https\\nhost=git.test\\n\\n' | git credential fill"


class Made:
    sandbox: Sandbox | AsyncSandbox


async def git(method: str, *arguments, **options):
    return await got(getattr(Made.sandbox.git, method), *arguments, **options)


async def written(path: str, text: str) -> None:
    await got(Made.sandbox.files.write, path, text)


async def text_of(path: str) -> str:
    return await got(Made.sandbox.files.read, path)


async def check_configure() -> None:
    Made.sandbox = await got(SDK.create, "base", timeout=300)
    await git("init", "remote.git", bare=True, initial_branch="main")
    await git("init", "repo", initial_branch="main")
    own = {"scope": "local", "path": REPO}
    await git("configure_user", "A Tester", "tester@example.com", **own)
    await git("set_config", "core.editor", "true", **own)
    assert await git("get_config", "user.email", **own) == "tester@example.com"


async def check_commit() -> None:
    await written("repo/a.txt", "1")
    assert [each.name for each in (await git("status", "repo")).file_status] == ["a.txt"]
    await git("add", "repo")
    await git("commit", "repo", "first")
    assert (await git("status", "repo")).is_clean


async def check_branches() -> None:
    await git("create_branch", "repo", "other")
    made = await git("branches", "repo")
    assert (sorted(made.branches), made.current_branch) == (["main", "other"], "other")
    await git("checkout_branch", "repo", "main")
    await git("delete_branch", "repo", "other")
    left = await git("branches", "repo")
    assert (left.branches, left.current_branch) == (["main"], "main")


async def check_remote() -> None:
    await git("remote_add", "repo", "origin", REMOTE)
    assert await git("remote_get", "repo", "origin") == REMOTE
    await git("push", "repo", "origin", "main")
    await git("clone", REMOTE, "/workspace/cloned")
    assert await text_of("cloned/a.txt") == "1"
    await written("repo/a.txt", "2")
    await git("add", "repo")
    await git("commit", "repo", "second")
    await git("push", "repo", "origin", "main")
    await git("pull", "/workspace/cloned")
    assert await text_of("cloned/a.txt") == "2"


async def check_restore_and_reset() -> None:
    await written("repo/a.txt", "not committed")
    await git("restore", "repo", ["a.txt"])
    assert await text_of("repo/a.txt") == "2"
    await git("reset", "repo", mode="hard", target="HEAD~1")
    assert await text_of("repo/a.txt") == "1"


async def check_authenticate() -> None:
    await git("dangerously_authenticate", "someone", "a-token", host="git.test")
    assert "password=a-token" in (await got(Made.sandbox.commands.run, CREDENTIAL)).stdout


async def check_the_end() -> None:
    assert await got(Made.sandbox.kill)


run(globals())
