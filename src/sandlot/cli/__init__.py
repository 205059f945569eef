"""The command line.

main.py       the application: global options, the list of commands, errors as one line
connection.py a client from the global options
display.py    tables, JSON and sizes; colour on a terminal alone
attach.py     an exec on this terminal or on these pipes
run.py        run, exec, shell          sessions.py  sessions …       files.py   files …
catalogue.py  env …, registry …         images.py    images build     serve.py   serve      mcp.py  mcp
doctor.py     looks at this machine; checks.py says what follows from it

Commands that talk to a server use the SDK and nothing else. Heavy imports stand inside the commands, so that
``sandlot --help`` answers at once.
"""
