"""``SandlotShellPolicy``: LangChain's own ``ShellToolMiddleware``, with its shell in the thread's sandbox."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from langchain.agents.middleware._execution import BaseExecutionPolicy

from sandlot.config.client_settings import client_settings
from sandlot.domain.errors import InvalidRequest
from sandlot.integrations.langchain import shell_process
from sandlot.integrations.langchain.shell_process import Task
from sandlot.integrations.langgraph_thread import current_thread

REMEMBERED: Final = 1000  # threads whose shells are known, in case one is to be restarted


@dataclass
class SandlotShellPolicy(BaseExecutionPolicy):
    """``ShellToolMiddleware(execution_policy=SandlotShellPolicy())``.

    The middleware wants a local process, and gets one that passes commands on (``shell_process``). The shell
    itself is the sandbox's: its folder, variables and jobs are there in the next run of the conversation,
    after an interrupt, and in another process. ``url`` and ``api_key`` as for ``Client``; ``environment`` and
    ``name`` as for ``sandbox_tools``.
    """

    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    environment: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._settings = client_settings(self.url, self.api_key)
        self._started: dict[str, Mapping[str, str]] = {}

    def spawn(
        self, *, workspace: Path, env: Mapping[str, str], command: Sequence[str]
    ) -> subprocess.Popen[str]:
        """``workspace`` is a folder of this machine, of which the sandbox knows nothing."""
        if [Path(word).name for word in command] != ["bash"]:
            raise InvalidRequest(f"the sandbox's shell is a bash: leave out shell_command={tuple(command)!r}")
        thread = current_thread()
        task = Task(
            url=self._settings.url,
            api_key=self._settings.api_key,
            thread=thread,
            environment=self.environment,
            name=self.name,
            timeout_s=max(self.command_timeout, self.startup_timeout),
            env=dict(env),
            new_shell=self._is_restart(thread, env),
        )
        process = subprocess.Popen(
            # By its path: as a module it would bring all of LangChain along, which takes seconds.
            [sys.executable, "-P", shell_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=workspace,
            encoding="utf-8",
            errors="replace",
            bufsize=1,
            start_new_session=True,  # the middleware kills its group
        )
        assert process.stdin is not None
        process.stdin.write(task.to_line())  # where no other process sees the key
        return process

    def _is_restart(self, thread: str, env: Mapping[str, str]) -> bool:
        """A run's shell brings one mapping of its own; when it comes again, that shell is to be a new one."""
        again = self._started.pop(thread, None) is env
        self._started[thread] = env
        if len(self._started) > REMEMBERED:
            del self._started[next(iter(self._started))]
        return again
