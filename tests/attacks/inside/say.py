"""Runs inside a sandbox: says to the proxy what a file has, and prints what it answers.

The file is a list of messages in hexadecimal. Each is said on a connection of its own, which is read to its end.
"""

import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

SECONDS = 20.0
MAX_BYTES = 4000  # of an answer; all of them are one output


def say(message):
    answer = b""
    with socket.create_connection(("127.0.0.1", 3128), SECONDS) as connection:
        try:
            connection.sendall(message)
            connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(65536):
                answer += data
        except TimeoutError:
            answer += b" and then nothing"
        except OSError:
            pass  # what had come before the proxy broke off is the answer
    return answer[:MAX_BYTES].decode("latin-1")


with open(sys.argv[1]) as file:
    messages = [bytes.fromhex(text) for text in json.load(file)]
with ThreadPoolExecutor(8) as threads:
    print(json.dumps(list(threads.map(say, messages))))
