"""The contract over HTTP: ``HttpService`` calls a server and behaves like the service behind it."""

from sandlot.client.http.service import HttpService

__all__ = ["HttpService"]
