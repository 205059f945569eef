import { post, remove, segment } from "../api/client";
import type { Session, Snapshot } from "../api/types";
import type { Action, Command } from "./action";
import { cli, given, onClient, onSession, option, pythonText } from "./words";

export function listSnapshots(id: string): Command {
  return {
    what: "List the snapshots of this session",
    cli: cli("snapshots", "list", id),
    python: onClient(`for snapshot in client.snapshots(${pythonText(id)}):`, "    print(snapshot)"),
  };
}

export function takeSnapshot(id: string, name: string): Action<Snapshot> {
  return {
    what: "Take a snapshot",
    cli: cli("snapshots", "create", id, ...option("--name", name)),
    python: onSession(id, `snapshot = session.workspace.snapshot(${name ? pythonText(name) : ""})`),
    run: () => post(`/v1/sessions/${segment(id)}/snapshots`, { name }),
  };
}

/** `to`: a later snapshot; without it, the files that the session has now. */
export function compareSnapshot(id: string, snapshotId: string, to: string | null): Command {
  return {
    what: "See what changed in the files",
    cli: cli("snapshots", "diff", snapshotId, ...option("--to", to)),
    python: onSession(id, `print(session.workspace.diff(${given(pythonText(snapshotId), to && pythonText(to))}))`),
  };
}

export function restoreSnapshot(id: string, snapshotId: string): Action {
  return {
    what: "Restore the files of this snapshot",
    cli: cli("snapshots", "restore", id, snapshotId),
    python: onSession(id, `session.workspace.restore(${pythonText(snapshotId)})`),
    run: () => post(`/v1/sessions/${segment(id)}/restore`, { snapshot: snapshotId }),
  };
}

export function forkSnapshot(snapshotId: string, environment: string): Action<Session> {
  return {
    what: "Create a session with the files of this snapshot",
    cli: cli("sessions", "create", "--environment", environment, "--snapshot", snapshotId),
    python: onClient(`session = client.create(${pythonText(environment)}, snapshot=${pythonText(snapshotId)})`, "print(session.id)"),
    run: () => post("/v1/sessions", { environment, snapshot: snapshotId }),
  };
}

export function deleteSnapshot(snapshotId: string): Action {
  return {
    what: "Delete the snapshot",
    cli: cli("snapshots", "delete", snapshotId),
    python: onClient(`client.delete_snapshot(${pythonText(snapshotId)})`),
    run: () => remove(`/v1/snapshots/${segment(snapshotId)}`),
  };
}
