"""The one place that builds a worker, a coordinator, a server or a local service from settings.

``wiring.fleet`` builds the members of a fleet. It needs more packages than a single server.
"""

from sandlot.wiring.local import LocalWorker, local_service
from sandlot.wiring.single import serve

__all__ = ["LocalWorker", "local_service", "serve"]
