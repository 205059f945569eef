"""MCP: a sandbox as the tools of any client that speaks the Model Context Protocol.

server.py   the tools, said in the words of the protocol
outputs.py  what each of them answers, as data
live.py     a running command's output, as progress notifications
whose.py    which sandbox a call is about
stdio.py    ``sandlot mcp``: a process of its own for one client
http.py     /mcp of ``sandlot serve``: for any number of them; on_demand.py makes it when it is first asked
"""
