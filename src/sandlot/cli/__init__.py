"""The command line.

main.py       the application: global options, the list of commands, errors as one line
connection.py a client from the global options, from the server that runs here, or a local one
discovery.py  finds the server that runs here, and proves that it is the right one
chosen.py     which session a command is about
terminal/     display.py: tables, JSON and sizes; attach.py: an exec on this terminal or on pipes
doctor/       command.py examines this machine; checks.py decides what is right or wrong with it

run.py        run, exec, shell       sessions.py  sessions …       files.py    files …
catalogue.py  env …, registry …      images.py    images build     bench.py    bench
serve.py      serve                  mcp.py       mcp
fleet.py      fleet …                members.py   worker, coordinator

Commands that talk to a server use only the SDK. Heavy imports are inside the commands, so that
``sandlot --help`` answers at once.
"""
