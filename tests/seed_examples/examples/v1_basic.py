from sandlot import SandboxClient

# Create a sandbox and execute commands
with SandboxClient(server_url="http://localhost:5000") as sandbox:
    result = sandbox.execute("ls -la")
    print(result['output'])
