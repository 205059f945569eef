import { post, remove, segment } from "../api/client";
import type { ExecStatus, Session } from "../api/types";
import type { Action, Command } from "./action";
import { cli, given, onClient, onSession, option, pythonText } from "./words";

export const TERMINAL = { rows: 24, cols: 80 };

function path(id: string): string {
  return `/v1/sessions/${segment(id)}`;
}

export function listSessions(): Command {
  return {
    what: "List the sessions",
    cli: cli("sessions", "list"),
    python: onClient("for session in client.sessions():", "    print(session.info)"),
  };
}

export function showSession(id: string): Command {
  return {
    what: "Show this session",
    cli: cli("sessions", "show", id),
    python: onSession(id, "print(session.info)"),
  };
}

export function createSession(environment: string, thread: string, record: boolean): Action<Session> {
  const python = given(environment && pythonText(environment), thread && `thread=${pythonText(thread)}`, record && "record=True");
  return {
    what: "Create a session",
    cli: cli("sessions", "create", ...option("--environment", environment), ...option("--thread", thread), ...(record ? ["--record"] : [])),
    python: onClient(`session = client.create(${python})`, "print(session.id)"),
    run: () => post("/v1/sessions", { environment: environment || null, thread: thread || null, record }),
  };
}

export function recreateSession(id: string): Action {
  return {
    what: "Give the session a new sandbox",
    cli: cli("sessions", "recreate", id),
    python: onSession(id, "session.recreate()"),
    run: () => post(`${path(id)}/recreate`),
  };
}

export function hibernateSession(id: string): Action {
  return {
    what: "Hibernate the session",
    cli: cli("sessions", "hibernate", id),
    python: onSession(id, "session.hibernate()"),
    run: () => post(`${path(id)}/hibernate`),
  };
}

export function deleteSession(id: string): Action {
  return {
    what: "Delete the session",
    cli: cli("sessions", "delete", id),
    python: onSession(id, "session.delete()"),
    run: () => remove(path(id)),
  };
}

/** The caller chooses the id: if the answer is lost, the command is found again by it. */
export function openTerminal(id: string, execId: string): Action<ExecStatus> {
  return {
    what: "Open a terminal",
    cli: cli("shell", "--session", id),
    python: onSession(id, "terminal = session.terminal()"),
    run: () =>
      post(`${path(id)}/exec`, {
        exec_id: execId,
        argv: ["bash", "-l"],
        pty: TERMINAL,
        stdin: true,
        background: true,
        output_limit: null,
      }),
  };
}
