#!/usr/bin/python3
"""Stands in the agent's place and breaks the protocol in the way named by BEHAVIOUR."""

import hashlib
import hmac
import json
import os
import socket
import struct
import time

BEHAVIOUR = "silence"

def frame(stream, kind, payload=b""):
    return struct.pack(">IIB", len(payload) + 5, stream, kind) + payload

def read_frame(s):
    head = b""
    while len(head) < 9:
        got = s.recv(9 - len(head))
        if not got:
            raise EOFError
        head += got
    length, stream, kind = struct.unpack(">IIB", head)
    payload = b""
    while len(payload) < length - 5:
        got = s.recv(length - 5 - len(payload))
        if not got:
            raise EOFError
        payload += got
    return stream, kind, payload

def connect():
    s = socket.socket(socket.AF_UNIX)
    s.connect("/.sandlot/link/host/agent.sock")
    return s

def shake(s, proof=None):
    nonce = os.urandom(32)
    hello = {"protocol": [1, 0], "agent": "evil", "role": "core", "boot": "0" * 32, "nonce": nonce.hex(), "known": False}
    s.sendall(frame(0, 10, json.dumps(hello).encode()))
    _, kind, payload = read_frame(s)
    welcome = json.loads(payload)
    secret = bytes.fromhex(welcome["secret"])
    message = b"agent" + bytes.fromhex(welcome["nonce"]) + struct.pack(">Q", welcome["epoch"]) + b"core"
    proof = proof or hmac.new(secret, message, hashlib.sha256).hexdigest()
    s.sendall(frame(0, 12, json.dumps({"proof": proof}).encode()))

def until_exec(s):
    """Up to the first command, it does as it is asked: so a worker takes it for a sandbox like any other."""
    while True:
        stream, kind, payload = read_frame(s)
        if kind == 8:
            s.sendall(frame(0, 9, payload))
        if kind == 1 and json.loads(payload)["op"] == "exec.start":
            return stream
        if kind == 1:
            s.sendall(frame(stream, 3, b"{}") + frame(stream, 6))

def started(s, stream):
    s.sendall(frame(stream, 3, b'{"event":"started","pid":1,"existing":false}'))

def exited(s, stream, output_bytes):
    end = {"event": "exit", "code": 0, "signal": 0, "reason": "exited", "output_bytes": output_bytes}
    used = {"duration_ms": 1.0, "user_ms": 1.0, "system_ms": 1.0, "peak_memory_bytes": 1}
    s.sendall(frame(stream, 3, json.dumps({**end, **used}).encode()) + frame(stream, 6))

def main():
    s = connect()
    if BEHAVIOUR == "silence":
        time.sleep(3600)
    if BEHAVIOUR == "garbage":
        s.sendall(os.urandom(1 << 20))
    if BEHAVIOUR == "oversize":
        s.sendall(struct.pack(">IIB", 0xFFFFFFFF, 0, 10) + b"x" * 100000)
    if BEHAVIOUR == "half a frame":
        s.sendall(struct.pack(">IIB", 60000, 0, 10) + b"x")
    if BEHAVIOUR == "deep json":
        s.sendall(frame(0, 10, b'{"protocol":' + b"[" * 60000 + b"}"))
    if BEHAVIOUR == "wrong proof":
        shake(s, proof="00" * 32)
    if BEHAVIOUR.startswith("then "):
        shake(s)
        stream = until_exec(s)
        what = BEHAVIOUR.removeprefix("then ")
        if what == "garbage":
            s.sendall(os.urandom(1 << 20))
        if what == "oversize":
            s.sendall(struct.pack(">IIB", 0xFFFFFFFF, stream, 4) + b"x" * 100000)
        if what == "a frame that never ends":
            s.sendall(struct.pack(">IIB", 60000, stream, 4))
            while True:
                s.sendall(b"x")
                time.sleep(0.1)
        if what == "a stream never opened":
            s.sendall(frame(stream + 100, 4, b"\x01" + b"\0" * 8 + b"x"))
        if what == "more than the credit":
            for n in range(200):
                s.sendall(frame(stream, 4, b"\x01" + struct.pack(">Q", n * 60000) + b"x" * 60000))
        if what == "a wrong exit":
            started(s, stream)
            s.sendall(frame(stream, 3, b'{"event":"exit","code":"zero","signal":[],"reason":7}'))
        if what == "deep json":
            s.sendall(frame(stream, 3, b'{"event":' + b"[" * 60000))
        if what == "streams that nobody asked for":
            for n in range(2, 1002, 2):
                s.sendall(frame(n, 1, b'{"op":"port.accepted"}'))
            refused = 0
            while refused < 500:
                _, kind, payload = read_frame(s)
                refused += kind == 7 and json.loads(payload)["code"] == "unsupported"
                if kind == 8:
                    s.sendall(frame(0, 9, payload))
            said = b"%d refused" % refused
            started(s, stream)
            s.sendall(frame(stream, 4, b"\x01" + struct.pack(">Q", 0) + said))
            exited(s, stream, len(said))
        if what == "flood of pings":
            while True:
                s.sendall(frame(0, 8, b"\0" * 8) * 1000)
        if what == "flood of streams":
            for n in range(2, 1 << 30, 2):
                s.sendall(frame(n, 1, b"{}"))
        if what == "flood for a stream that has ended":
            s.sendall(frame(stream, 7, b'{"code":"busy","message":""}'))
            while True:
                s.sendall(frame(stream, 4, b"\0" * 60009))
        if what == "flood of pongs":
            while True:
                s.sendall(frame(0, 9, b"\0" * 8) * 1000)
        if what == "flood of empty credit":
            while True:
                s.sendall(frame(stream, 5, b"\0" * 4) * 1000)
        if what == "flood of connections":
            while True:
                connect().close()
        if what == "far too much output":
            started(s, stream)
            offset = 0
            credit = 262144
            while offset < 120000000:
                if credit > 60009:
                    s.sendall(frame(stream, 4, b"\x01" + struct.pack(">Q", offset) + b"y" * 60000))
                    offset += 60000
                    credit -= 60009
                    continue
                _, kind, payload = read_frame(s)
                if kind == 5:
                    credit += struct.unpack(">I", payload)[0]
                if kind == 8:
                    s.sendall(frame(0, 9, payload))
            exited(s, stream, offset)
    time.sleep(3600)

try:
    main()
except (OSError, EOFError):
    time.sleep(3600)
