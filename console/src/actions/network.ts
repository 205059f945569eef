import { patch, put, remove, segment } from "../api/client";
import type { Network } from "../api/types";
import type { Action, Command } from "./action";
import { cli, given, onSession, pythonText } from "./words";

function path(id: string): string {
  return `/v1/sessions/${segment(id)}`;
}

export function showNetwork(id: string): Command {
  return {
    what: "Show what the session may connect to",
    cli: cli("network", "show", id),
    python: onSession(id, "print(session.network.status())"),
  };
}

export function allowHost(id: string, entry: string): Action<Network> {
  return {
    what: "Allow this host",
    cli: cli("network", "allow", id, entry),
    python: onSession(id, `session.network.allow(${pythonText(entry)})`),
    run: () => patch(`${path(id)}/network`, { allow: [entry] }),
  };
}

export function revokeHost(id: string, entry: string): Action<Network> {
  return {
    what: "Stop allowing this host",
    cli: cli("network", "revoke", id, entry),
    python: onSession(id, `session.network.revoke(${pythonText(entry)})`),
    run: () => patch(`${path(id)}/network`, { revoke: [entry] }),
  };
}

export function listPorts(id: string): Command {
  return {
    what: "List the ports with previews",
    cli: cli("previews", id),
    python: onSession(id, "print(session.previews())"),
  };
}

export function exposePort(id: string, port: number, isPublic: boolean): Action<{ url: string }> {
  return {
    what: "Get a link to this port",
    cli: cli("expose", id, port, ...(isPublic ? ["--public"] : [])),
    python: onSession(id, `print(session.expose(${given(String(port), isPublic && "public=True")}).url)`),
    run: () => put(`${path(id)}/ports/${port}`, { public: isPublic }),
  };
}

export function unexposePort(id: string, port: number): Action {
  return {
    what: "End the preview of this port",
    cli: cli("unexpose", id, port),
    python: onSession(id, `session.unexpose(${port})`),
    run: () => remove(`${path(id)}/ports/${port}`),
  };
}
