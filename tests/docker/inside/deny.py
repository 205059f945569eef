"""Runs inside a sandbox: calls every system call of a list with harmless arguments and prints the answers."""

import ctypes
import errno
import json
import os

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
answers = {}
for number in DENIED:  # noqa: F821 - the test puts the list here
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
        answer = "ok" if result != -1 else errno.errorcode.get(ctypes.get_errno(), str(ctypes.get_errno()))
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    answers[number] = os.read(reader, 100).decode() or f"status {status}"
    os.close(reader)
print(json.dumps(answers))
