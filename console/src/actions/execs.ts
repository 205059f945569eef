import { post, remove, segment } from "../api/client";
import type { ExecStatus } from "../api/types";
import type { Action, Command } from "./action";
import { cli, onSession, pythonText } from "./words";

/** How the ids of commands begin that a person ran here, and no program. */
export const OURS = "console-";

export function newExecId(): string {
  return OURS + crypto.randomUUID();
}

function path(id: string): string {
  return `/v1/sessions/${segment(id)}`;
}

export function listCommands(id: string): Command {
  return {
    what: "List the commands",
    cli: cli("ps", id),
    python: onSession(id, "for command in session.execs():", "    print(command)"),
  };
}

export function runCommand(id: string, command: string): Action<ExecStatus> {
  return {
    what: "Run this command",
    cli: cli("exec", id, command),
    python: onSession(id, `print(session.run(${pythonText(command)}).output, end="")`),
    run: () => post(`${path(id)}/exec`, { command, background: true, exec_id: newExecId() }),
  };
}

export function readOutput(id: string, execId: string): Command {
  return {
    what: "Read the output of this command",
    cli: cli("logs", id, execId),
    python: onSession(id, `print(session.exec(${pythonText(execId)}).read().text, end="")`),
  };
}

export function killCommand(id: string, execId: string): Action {
  return {
    what: "Kill this command",
    cli: cli("kill", id, execId),
    python: onSession(id, `session.exec(${pythonText(execId)}).kill()`),
    run: () => remove(`${path(id)}/execs/${segment(execId)}`),
  };
}
