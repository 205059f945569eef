from sandlot import Client

with Client.local() as client:  # or Client("http://my-server:8000", api_key=...), and nothing else changes
    session = client.thread("conversation-1")  # made once, found again by every later call
    session.files.write("hello.py", "print(6 * 7)")
    print(session.run("python3 hello.py").output, end="")

    shell = session.shell()  # keeps folder, variables and functions
    shell.run("cd /tmp && export NAME=Ada")
    print(shell.run('echo "$NAME in $PWD"').output, end="")

    result = session.run("echo begun; sleep 60", timeout_s=1)  # ends everything that the command started
    print(result.verdict, repr(result.output))
