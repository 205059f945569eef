"""The paths of E2B's REST API."""

from __future__ import annotations

import re
from typing import Final

from sandlot.api.e2b.control import builds, listing, metrics, sandboxes, snapshots, templates, volumes
from sandlot.api.e2b.control.calls import Handler


class ControlRoute:
    """A method and a path, and what they do. ``path`` is also the label in metrics."""

    def __init__(self, method: str, path: str, handler: Handler) -> None:
        self.method = method
        self.path = path
        self.handler = handler
        self._pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))

    def matches(self, path: str) -> dict[str, str] | None:
        """The parameters of the path; None if it is another one."""
        match = self._pattern.fullmatch(path)
        return None if match is None else match.groupdict()


ROUTES: Final = (
    ControlRoute("POST", "/sandboxes", sandboxes.create),
    ControlRoute("POST", "/v2/sandboxes", sandboxes.create),
    ControlRoute("GET", "/sandboxes", listing.list_running),
    ControlRoute("GET", "/v2/sandboxes", listing.list_sandboxes),
    ControlRoute("GET", "/sandboxes/{sandbox_id}", sandboxes.get),
    ControlRoute("DELETE", "/sandboxes/{sandbox_id}", sandboxes.delete),
    ControlRoute("POST", "/sandboxes/{sandbox_id}/connect", sandboxes.connect),
    ControlRoute("POST", "/sandboxes/{sandbox_id}/resume", sandboxes.connect),
    ControlRoute("POST", "/v2/sandboxes/{sandbox_id}/connect", sandboxes.connect),
    ControlRoute("POST", "/sandboxes/{sandbox_id}/timeout", sandboxes.set_timeout),
    ControlRoute("POST", "/sandboxes/{sandbox_id}/pause", sandboxes.pause),
    ControlRoute("PUT", "/sandboxes/{sandbox_id}/network", sandboxes.change_network),
    ControlRoute("GET", "/sandboxes/{sandbox_id}/metrics", metrics.sandbox_metrics),
    ControlRoute("POST", "/sandboxes/{sandbox_id}/snapshots", snapshots.take_snapshot),
    ControlRoute("POST", "/sandboxes/{sandbox_id}/fork", snapshots.fork),
    ControlRoute("GET", "/snapshots", snapshots.list_snapshots),
    ControlRoute("DELETE", "/templates/{template_id}", templates.delete),
    ControlRoute("GET", "/templates/aliases/{alias}", templates.by_alias),
    ControlRoute("POST", "/v3/templates", builds.request),
    ControlRoute("GET", "/templates/{template_id}/files/{hash}", builds.upload_link),
    ControlRoute("POST", "/v2/templates/{template_id}/builds/{build_id}", builds.start),
    ControlRoute("GET", "/templates/{template_id}/builds/{build_id}/status", builds.status),
    ControlRoute("POST", "/volumes", volumes.create_volume),
    ControlRoute("GET", "/volumes", volumes.list_volumes),
    ControlRoute("GET", "/volumes/{volume_id}", volumes.get_volume),
    ControlRoute("DELETE", "/volumes/{volume_id}", volumes.delete_volume),
)
