"""The one place that builds a worker, a coordinator, a server or a local service from settings.

A fleet's members are built in ``wiring.fleet``, which needs more packages than a server does.
"""

from sandlot.wiring.local import LocalWorker, local_service
from sandlot.wiring.single import serve

__all__ = ["LocalWorker", "local_service", "serve"]
