"""``HttpService``: implements the service contract by calling a server over HTTP."""

from sandlot.client.http.service import HttpService

__all__ = ["HttpService"]
