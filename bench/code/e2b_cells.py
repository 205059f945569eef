"""A program for ``.venv-e2b``: for each line that it reads, it runs a cell and writes the milliseconds.

``e2b_cells.py URL KEY CODE VALUE``
"""

from __future__ import annotations

import os
import sys
import time

URL, KEY, CODE, VALUE = sys.argv[1:5]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from e2b_code_interpreter import Sandbox  # noqa: E402

sandbox = Sandbox.create(timeout=600)
try:
    sandbox.run_code(CODE)
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        execution = sandbox.run_code(CODE)
        spent = time.perf_counter() - begin
        assert execution.text == VALUE, execution
        print(spent * 1000, flush=True)
finally:
    sandbox.kill()
