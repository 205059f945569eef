"""Builds of templates. ``build_calls.py URL KEY USER_KEY``; USER_KEY: of a key that may not build."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

URL, KEY, USER_KEY = sys.argv[1:4]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import raises, run  # noqa: E402

import e2b  # noqa: E402
from e2b import AsyncSandbox, AsyncTemplate, Sandbox, Template  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())
(FOLDER / "data/deep").mkdir(parents=True)
(FOLDER / "data/a.txt").write_text("a")
(FOLDER / "data/deep/b.txt").write_text("b")
(FOLDER / "tool.sh").write_text("#!/bin/sh\necho tool\n")
(FOLDER / "data/deep/link").symlink_to("b.txt")
# What a shell or the engine would expand.
ODD = "$HOME `id` \"quoted\" 'single' \\ back \\$ 50%"


def failed(template: object, name: str, **options: object) -> e2b.BuildException:
    return raises(e2b.BuildException, lambda: Template.build(template, name, **options))


def check_build() -> None:
    template = (
        Template(file_context_path=FOLDER)
        .from_image("sandlot/slim")
        .set_envs({"ODD": ODD, "PLAIN": "x"})
        .copy("data", "/opt/data", user="root")
        .copy("data/a.txt", "home.txt")
        .copy("tool.sh", "/usr/local/bin/tool", mode=0o755)
        .set_workdir("/opt/work")
        .run_cmd("echo built by $(id -un) in $PWD, $PLAIN > /opt/work/made.txt")
        .run_cmd(["set -e", 'test -n "$BASH_VERSION"'], user="root")
        .make_dir("/opt/made")
    )
    lines: list[e2b.LogEntry] = []
    built = Template.build(template, "built:latest", cpu_count=1, memory_mb=384, on_build_logs=lines.append)
    assert built.template_id == "built"
    text = "\n".join(line.message for line in lines)
    assert "Uploaded 'data'" in text, text
    assert "Step 5/" in text, text
    assert Template.exists("built") is True
    with Sandbox.create("built") as sandbox:
        assert sandbox.get_info().template_id == "built"
        assert sandbox.get_info().memory_mb == 384
        assert sandbox.get_info().cpu_count == 1
        assert sandbox.files.read("home.txt") == "a"
        sandbox.files.write("home.txt", "it is the sandbox's own")
        assert sandbox.files.read("/opt/data/deep/b.txt") == "b"
        assert sandbox.commands.run("tool").stdout == "tool\n"
        assert sandbox.commands.run("cat /opt/work/made.txt").stdout == "built by root in /opt/work, x\n"
        assert sandbox.commands.run('printf %s "$ODD"').stdout == ODD
        assert sandbox.commands.run("id -un").stdout != "root\n"


def check_build_on_a_template() -> None:
    """The second build of a name replaces the first; sandboxes that run keep theirs."""
    first = Sandbox.create("built")
    Template.build(Template().from_template("built").run_cmd("echo 2 > /opt/second"), "second")
    Template.build(Template().from_template("slim").run_cmd("echo new > /opt/new"), "built")
    assert first.files.read("/opt/data/a.txt") == "a"
    with Sandbox.create("built") as again:
        assert again.files.read("/opt/new") == "new\n"
        assert not again.files.exists("/opt/data")
    with Sandbox.create("second") as second:
        assert second.files.read("/opt/second") == "2\n"
        assert second.files.read("/opt/data/a.txt") == "a"
    first.kill()


def check_dockerfile() -> None:
    text = """FROM sandlot/slim
ARG WHO=world
ENV GREETING="hello $WHO"
WORKDIR /opt/app
COPY tool.sh .
RUN chmod +x tool.sh && ./tool.sh > out.txt
"""
    template = Template(file_context_path=FOLDER).from_dockerfile(text)
    # The SDK ends a Dockerfile without CMD with these; with one, it would ask for a start command.
    Template.build(template, "from-dockerfile")
    with Sandbox.create("from-dockerfile") as sandbox:
        assert sandbox.files.read("/opt/app/out.txt") == "tool\n"


def check_a_base_image_of_e2b_is_the_environment_base() -> None:
    Template.build(Template().from_base_image().run_cmd("echo 1 > /opt/one"), "on-base")
    with Sandbox.create("on-base") as sandbox:
        assert sandbox.commands.run("python3 -c 'print(open(\"/opt/one\").read())'").stdout == "1\n\n"


def check_in_background() -> None:
    template = Template().from_template("slim").run_cmd("sleep 1")
    built = Template.build_in_background(template, "later")
    assert Template.get_build_status(built).status.value in ("waiting", "building")
    until = time.monotonic() + 60
    while (status := Template.get_build_status(built)).status.value != "ready":
        assert status.status.value != "error", status.reason
        assert time.monotonic() < until
        time.sleep(0.1)
    assert len(Template.get_build_status(built, logs_offset=10_000).log_entries) == 0


def images_of(template_class: type) -> dict[str, Any]:
    """The image of each function that names one, and what the template then is."""
    return {
        "debian:stable": template_class().from_debian_image(),
        "ubuntu:24.04": template_class().from_ubuntu_image("24.04"),
        "fedora:44": template_class().from_fedora_image("44"),
        "alpine:3.24": template_class().from_alpine_image("3.24"),
        "archlinux:base": template_class().from_arch_image("base"),
        "python:3.12": template_class().from_python_image("3.12"),
        "node:lts": template_class().from_node_image(),
        "oven/bun:1": template_class().from_bun_image("1"),
    }


def check_images_of_others() -> None:
    """The server gets the name of an image, whichever function wrote it. Only Debian's need not be pulled."""
    for template_class in (Template, AsyncTemplate):
        for image, template in images_of(template_class).items():
            assert json.loads(template_class.to_json(template))["fromImage"] == image
            assert f"FROM {image}\n" in template_class.to_dockerfile(template)
    Template.build(Template().from_debian_image("bookworm-slim").run_cmd("echo 1 > /opt/one"), "on-debian")
    with Sandbox.create("on-debian") as sandbox:
        assert sandbox.commands.run("cat /opt/one").stdout == "1\n"


def check_skip_cache() -> None:
    lines: list[e2b.LogEntry] = []
    template = Template().skip_cache().from_image("sandlot/slim").run_cmd("echo again")
    Template.build(template, "not-cached", on_build_logs=lines.append)
    assert any("again" in line.message for line in lines)


def check_alias_exists() -> None:
    assert Template.alias_exists("built") is True
    assert Template.alias_exists("never-built") is False


async def check_async() -> None:
    template = AsyncTemplate(file_context_path=FOLDER).skip_cache().from_image("sandlot/slim")
    await AsyncTemplate.build(template.copy("data", "/opt/").run_cmd("test -e /opt"), "async-built")
    assert await AsyncTemplate.exists("async-built") is True
    assert await AsyncTemplate.alias_exists("async-built") is True
    async with await AsyncSandbox.create("async-built") as sandbox:
        assert (await sandbox.commands.run("cat /opt/deep/link")).stdout == "b"


async def check_async_in_background() -> None:
    dockerfile = AsyncTemplate().from_dockerfile("FROM sandlot/slim\nRUN echo 3 > /opt/three\n")
    on_template = AsyncTemplate().from_template("async-later").run_cmd("echo 4 > /opt/four")
    on_base = AsyncTemplate().from_base_image().run_cmd("echo 5 > /opt/five")
    for name, template in (("async-later", dockerfile), ("async-on", on_template), ("async-base", on_base)):
        built = await AsyncTemplate.build_in_background(template, name)
        until = time.monotonic() + 60
        while (status := await AsyncTemplate.get_build_status(built)).status.value != "ready":
            assert status.status.value != "error", status.reason
            assert time.monotonic() < until
            await asyncio.sleep(0.1)
    async with await AsyncSandbox.create("async-on") as sandbox:
        assert (await sandbox.commands.run("cat /opt/three /opt/four")).stdout == "3\n4\n"


def check_a_failed_step() -> None:
    template = Template().from_image("sandlot/slim").run_cmd("true").run_cmd("echo why >&2; exit 7")
    lines: list[str] = []
    error = failed(template, "broken", on_build_logs=lambda line: lines.append(line.message))
    assert "exit" in str(error) or "non-zero code: 7" in str(error), error
    assert "why" in "\n".join(lines)
    assert Template.exists("broken") is False
    trace = error.__traceback__
    places = []
    while trace is not None:
        places.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert "check_a_failed_step" in places, "the SDK shows the line of the step"


def check_a_missing_image() -> None:
    assert "nowhere" in str(failed(Template().from_image("sandlot/nowhere"), "broken"))
    assert "Did you mean" in str(failed(Template().from_template("slmi"), "broken"))


def check_what_is_refused() -> None:
    slim = Template().from_image("sandlot/slim")
    assert "operator" in str(failed(slim, "base")), "an environment of the operator"
    assert "lower-case" in str(failed(slim, "No Name"))
    assert "tags" in str(failed(slim, "tagged:v1"))
    assert "tags" in str(failed(slim, "tagged", tags=["v1"]))
    assert "disk" in str(failed(slim, "disk", min_free_disk_mb=5))
    started = Template().from_image("sandlot/slim").set_start_cmd("sleep 1", e2b.wait_for_timeout(1))
    assert "start command" in str(failed(started, "started"))
    user = Template().from_image("sandlot/slim").set_user("postgres")
    assert "postgres" in str(failed(user, "other-user"))
    private = Template().from_image("sandlot/slim", username="me", password="secret")
    assert "operator" in str(failed(private, "private"))
    lines = Template().from_image("sandlot/slim").set_envs({"LINES": "one\ntwo"})
    assert "more than one line" in str(failed(lines, "two-lines"))


def check_other_keys_do_not_build() -> None:
    slim = Template().from_image("sandlot/slim")
    error = raises(e2b.BuildException, lambda: Template.build(slim, "foreign", api_key=USER_KEY))
    assert "fleet:operate" in str(error)
    with Sandbox.create("built", api_key=USER_KEY) as sandbox:
        assert sandbox.commands.run("cat /opt/new").stdout == "new\n", "all tenants can use it"


def check_delete() -> None:
    assert Sandbox.delete_snapshot("second") is True
    assert Template.exists("second") is False
    assert Sandbox.delete_snapshot("second") is False
    assert Sandbox.delete_snapshot("base") is False


run(globals())
