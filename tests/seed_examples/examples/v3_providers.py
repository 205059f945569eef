# Same API, different providers
manager.start_sandbox(session_id, "Python3", provider="e2b")
manager.start_sandbox(session_id, "python:latest", provider="docker")
