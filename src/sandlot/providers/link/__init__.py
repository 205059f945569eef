"""The host's side of the agent link: every operation in a sandbox goes through this package.

connection  converts bytes to frames and back on one transport, with bounded buffers
allowance   limits how much of the worker's time one agent may take
stream, mux many streams on one connection, each with its own credit
handshake   identifies the peer and checks that it holds the secret
link        one sandbox's socket: which peer is connected, and whether the sandbox is trusted
calls, problems   one request, and how its failures become domain errors
executions, agent_files, ports, sandbox_agent   implement the provider contract on top
"""
