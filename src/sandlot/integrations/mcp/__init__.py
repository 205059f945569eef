"""MCP: a sandbox as tools for any client of the Model Context Protocol.

server.py          the tools
outputs.py         the structured output of each tool
progress.py        a running command's output, as progress notifications
thread_binding.py  which sandbox a call uses
stdio.py           ``sandlot mcp``: one process for one client
http.py            /mcp of ``sandlot serve``: one endpoint for any number of clients
lazy_endpoint.py   creates that endpoint at its first request
"""
