"""What crosses a wire: the HTTP API's bodies, error codes, and the agent's frames and messages."""
