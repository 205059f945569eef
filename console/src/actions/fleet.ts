import { segment, send } from "../api/client";
import type { Action, Command } from "./action";
import { cli, option } from "./words";

export function listWorkers(): Command {
  return { what: "List the workers", cli: cli("fleet", "workers"), python: null };
}

export function listPlacedSessions(worker: string, tenant: string): Command {
  return {
    what: "List the sessions of this worker",
    cli: cli("fleet", "sessions", "--worker", worker, ...option("--tenant", tenant)),
    python: null,
  };
}

export function drainWorker(worker: string): Action {
  return changed(worker, "drain", "Drain this worker");
}

export function undrainWorker(worker: string): Action {
  return changed(worker, "undrain", "Undrain this worker");
}

function changed(worker: string, verb: string, what: string): Action {
  return {
    what,
    cli: cli("fleet", verb, worker),
    python: null,
    run: () => send("POST", `/v1/fleet/workers/${segment(worker)}/${verb}`),
  };
}
