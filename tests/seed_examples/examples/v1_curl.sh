curl -X POST http://localhost:5000/create_session
# Returns: {"session_id": "uuid", "status": "created"}

curl -X POST http://localhost:5000/execute \
  -H "Content-Type: application/json" \
  -d '{
    "session_id": "your-session-id",
    "command": "echo Hello"
  }'
# Returns: {"exit_code": 0, "output": "Hello\n"}

curl -X POST http://localhost:5000/cleanup \
  -H "Content-Type: application/json" \
  -d '{"session_id": "your-session-id"}'
