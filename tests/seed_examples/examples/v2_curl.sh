curl http://localhost:8000/health
