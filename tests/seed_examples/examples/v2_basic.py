from sandlot import SandboxClient

# Create session and execute commands
with SandboxClient(server_url="http://localhost:8000") as sandbox:
    # Verify non-root
    result = sandbox.execute("whoami")
    print(f"User: {result['output']}")  # sandboxuser

    # Run commands
    result = sandbox.execute("python3 -c 'print(2+2)'")
    print(result['output'])  # 4
