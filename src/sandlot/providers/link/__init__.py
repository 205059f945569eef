"""The host's side of the agent link: everything that a sandbox does for its caller goes through here.

connection  bytes ↔ frames on one transport, with bounded buffers
stream, mux many streams on one connection, each with its own credit
handshake   who is there, and do they hold the secret
link        one sandbox's socket: who is connected now, and whether the sandbox may still be believed
calls, problems   one request, and how its failures are told
executions, agent_files, ports, sandbox_agent   the provider contract on top
"""
