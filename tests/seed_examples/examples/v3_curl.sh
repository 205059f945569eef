# Create
curl -X POST http://localhost:8000/api/sessions \
  -d '{"environment": "Python3", "provider": "e2b"}'

# Execute
curl -X POST http://localhost:8000/api/e2b/execute \
  -d '{"session_id": "abc-123", "code": "print(42)"}'

# Destroy
curl -X DELETE http://localhost:8000/api/sessions/abc-123?sandbox_id=xyz
