from sandlot import Client

with Client.local() as client:  # or Client("http://my-server:8000", api_key=...)
    session = client.thread("conversation-1")  # created by the first call, found by every later one
    session.files.write("hello.py", "print(6 * 7)")
    print(session.run("python3 hello.py").output, end="")

    shell = session.shell()  # keeps its folder, variables and functions
    shell.run("cd /tmp && export NAME=Ada")
    print(shell.run('echo "$NAME in $PWD"').output, end="")

    result = session.run("echo begun; sleep 60", timeout_s=1)  # kills all that it started
    print(result.verdict, repr(result.output))
