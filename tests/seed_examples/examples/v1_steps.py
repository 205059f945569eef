from sandlot import SandboxClient

client = SandboxClient("http://localhost:5000")
client.create_session()
result = client.execute("echo bash command")
print(result['output'])
client.cleanup()
