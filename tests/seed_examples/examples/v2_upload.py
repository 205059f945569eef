from sandlot import SandboxClient

with SandboxClient() as sandbox:
    # Upload a file
    sandbox.upload_file("local_script.py", "script.py")

    # Execute it
    result = sandbox.execute("python3 script.py")
    print(result['output'])
