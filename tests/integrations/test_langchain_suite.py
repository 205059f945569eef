"""LangChain's own suites for tools, for every tool that a model is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests

from sandlot import Client
from sandlot.integrations.langchain import sandbox_tools

pytestmark = pytest.mark.docker

EXAMPLES: dict[str, dict[str, Any]] = {
    "bash": {"command": "echo hello", "timeout_s": 30},
    "read_output": {"job": "job-that-is-not-there"},
    "stop": {"job": "job-that-is-not-there"},
    "read_file": {"path": "/etc/hostname"},
    "write_file": {"path": "notes/one.txt", "content": "one\n"},
    "edit_file": {"path": "notes/one.txt", "old": "one", "new": "two"},
    "list_files": {"path": "/workspace", "depth": 2},
    "search": {"pattern": "hello", "glob": "*.txt"},
    "upload_file": {"path": "data.bin", "content_base64": "AAEC"},
    "download_file": {"path": "/etc/hostname"},
}


def test_every_tool_is_in_the_suites(client: Client) -> None:
    assert {tool.name for tool in sandbox_tools(client)} == EXAMPLES.keys()


class OneTool:
    """The suites ask for one tool at a time: this one is ``name``."""

    @pytest.fixture(autouse=True, params=EXAMPLES)
    def name(self, request: pytest.FixtureRequest, client: Client) -> str:
        self.chosen: str = request.param
        self.client = client
        return self.chosen

    @property
    def tool_constructor(self) -> BaseTool:
        return next(tool for tool in sandbox_tools(self.client) if tool.name == self.chosen)

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return EXAMPLES[self.chosen]


class TestUnit(OneTool, ToolsUnitTests):
    pass


class TestIntegration(OneTool, ToolsIntegrationTests):
    @pytest.fixture(autouse=True)
    def conversation(self, thread: str) -> Iterator[None]:
        token = var_child_runnable_config.set({"configurable": {"thread_id": thread}})
        yield
        var_child_runnable_config.reset(token)
