"""The exec that runs the bridge in a sandbox. Its program is an argument, so any image may have kernels."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Final

from sandlot.domain.code.contexts import MAX_CONTEXTS
from sandlot.domain.execution import ExecRequest

# Clients cannot name it: it is hidden from them. It never ends by itself, and keeps no session alive.
BRIDGE_EXEC_ID: Final = "sandlot-kernels"
# ``agent/internal/cells`` connects to the socket in it. In /tmp: it must not be part of the workspace.
FOLDER: Final = "/tmp/.sandlot-kernels"  # noqa: S108  # mode 0700, and a sandbox has one user besides root
SOCKET: Final = f"{FOLDER}/socket"
WORKSPACE: Final = "/workspace"
# It writes one line. More would be a kernel's own, and is nobody's.
OUTPUT_LIMIT_BYTES: Final = 64 * 1024
# Its exit status if the image's Python has no jupyter_client.
NO_JUPYTER: Final = 78

_PACKAGE: Final = "sandlot.worker.contexts.bridge"
_MODULES: Final = (
    "languages",
    "events",
    "late",
    "kernel",
    "context",
    "server",
)  # each uses only those before it

# The session's own virtual environment may have other versions of what the bridge needs, so the Python
# beneath it is taken. The modules get their names in the project, which they import each other by.
_LOADER: Final = f"""
import json, os, sys, types
if os.path.realpath(sys.prefix).startswith((os.path.realpath({WORKSPACE!r}) + "/", {WORKSPACE!r} + "/")):
    python = os.path.realpath(sys.executable)
    os.execv(python, [python, *sys.orig_argv[1:]])
try:
    import jupyter_client, zmq
except ImportError as error:
    print("missing", error, flush=True)
    sys.exit({NO_JUPYTER})
names = {_PACKAGE!r}.split(".")
for end in range(1, len(names) + 1):
    package = sys.modules[".".join(names[:end])] = types.ModuleType(".".join(names[:end]))
    package.__path__ = []
for name, source in json.loads(sys.argv.pop()):
    module = sys.modules[{_PACKAGE!r} + "." + name] = types.ModuleType({_PACKAGE!r} + "." + name)
    setattr(package, name, module)
    exec(compile(source, "sandlot-bridge/" + name + ".py", "exec"), module.__dict__)
module.main()
"""


@cache
def bridge_request() -> ExecRequest:
    sources = Path(__file__).parent / "bridge"
    modules = json.dumps([(name, (sources / f"{name}.py").read_text()) for name in _MODULES])
    bash = (sources / "bash_kernel.py").read_text()
    return ExecRequest(
        argv=("python3", "-I", "-c", _LOADER, FOLDER, WORKSPACE, str(MAX_CONTEXTS), bash, modules),
        exec_id=BRIDGE_EXEC_ID,
        cwd="/",  # a workspace may be renamed away beneath it
        output_limit=OUTPUT_LIMIT_BYTES,
    )
