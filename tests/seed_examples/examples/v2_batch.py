from sandlot import BatchSandboxClient

client = BatchSandboxClient()
results = client.execute_batch([
    "echo 'Step 1'",
    "python3 --version",
    "ls -la"
])

for result in results:
    print(result['output'])
