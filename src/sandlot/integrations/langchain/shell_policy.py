"""``SandlotShellPolicy``: puts the shell of LangChain's ``ShellToolMiddleware`` in a sandbox."""

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
from sandlot.integrations.langchain.shell_process import ShellParameters
from sandlot.integrations.langgraph_thread import current_thread

MAX_REMEMBERED_THREADS: Final = 1000  # to detect when a thread's shell is restarted


@dataclass
class SandlotShellPolicy(BaseExecutionPolicy):
    """``ShellToolMiddleware(execution_policy=SandlotShellPolicy())``.

    The middleware needs a local process, so it gets one that forwards commands (``shell_process``).
    The shell itself is in the thread's sandbox: its folder, variables and jobs persist in the
    conversation's next run, after an interrupt, and in another process. ``url`` and ``api_key`` are
    as for ``Client``, ``environment`` and ``name`` as for ``sandbox_tools``.
    """

    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    environment: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._settings = client_settings(self.url, self.api_key)
        self._shell_envs: dict[str, Mapping[str, str]] = {}

    def spawn(
        self, *, workspace: Path, env: Mapping[str, str], command: Sequence[str]
    ) -> subprocess.Popen[str]:
        """Start the local process. The sandbox does not see ``workspace``, a local folder."""
        if [Path(word).name for word in command] != ["bash"]:
            raise InvalidRequest(
                f"The sandbox's shell is always bash. Leave out shell_command={tuple(command)!r}."
            )
        thread = current_thread()
        parameters = ShellParameters(
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
            # Started by path: as a module it would import all of LangChain, which takes seconds.
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
        process.stdin.write(parameters.to_line())  # on stdin, where no other process sees the key
        return process

    def _is_restart(self, thread: str, env: Mapping[str, str]) -> bool:
        """Whether a run restarts its shell.

        Each run passes its own ``env`` object, so the same object again means a restart.
        """
        restarted = self._shell_envs.pop(thread, None) is env
        self._shell_envs[thread] = env
        if len(self._shell_envs) > MAX_REMEMBERED_THREADS:
            del self._shell_envs[next(iter(self._shell_envs))]
        return restarted
