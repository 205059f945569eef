"""Templates: they are the server's environments, with those that clients built, and snapshots."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from sandlot.api.e2b.control.builds import builds_of
from sandlot.api.e2b.control.calls import ControlCall
from sandlot.api.e2b.control.creating import environment_in, snapshot_in
from sandlot.api.responses.json import json_response
from sandlot.domain.errors import NotFound
from sandlot.domain.workspaces.snapshots import no_snapshot_error

# Paths below these are about templates, if no route has them.
PREFIXES: Final = ("/templates", "/v2/templates", "/v3/templates")


async def by_alias(call: ControlCall) -> Response:
    """Whether there is a template of this name."""
    alias: str = call.request.path_params["alias"]
    names = [environment.name for environment in (await call.service.catalogue()).environments]
    name = environment_in(alias)
    if name not in names:
        raise NotFound(f"There is no template {alias[:80]!r}. Templates are: {', '.join(names)}.")
    return json_response({"templateID": name, "public": False})


async def delete(call: ControlCall) -> Response:
    """Delete a snapshot, which E2B counts among the templates, or a template that was built."""
    template: str = call.request.path_params["template_id"]
    snapshot_id = snapshot_in(template)
    if snapshot_id is None:
        if not await builds_of(call).remove(environment_in(template)):
            raise NotFound(f"No client built the template {template[:80]!r}, so clients cannot remove it.")
        return Response(status_code=204)
    if await call.find_snapshot(snapshot_id) is None:
        raise no_snapshot_error(snapshot_id)
    await call.service.delete_snapshot(snapshot_id)
    return Response(status_code=204)
