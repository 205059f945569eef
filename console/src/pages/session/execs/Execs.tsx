import { useQuery, useQueryClient } from "@tanstack/react-query";
import { lazy, Suspense, useState } from "react";
import { killCommand, listCommands, readOutput, runCommand } from "../../../actions/execs";
import { get, segment } from "../../../api/client";
import { messageOf } from "../../../api/errors";
import type { ExecSummary } from "../../../api/types";
import { ago, bytes, seconds, visible } from "../../../format";
import { Badge } from "../../../parts/Badge";
import { Confirm } from "../../../parts/Confirm";
import { CopyAs } from "../../../parts/CopyAs";
import { Failure } from "../../../parts/Failure";
import { Loaded } from "../../../parts/Loaded";
import { Empty, Panel } from "../../../parts/Panel";

const AttachedScreen = lazy(() =>
  import("../terminal/AttachedScreen").then((module) => ({ default: module.AttachedScreen })),
);

/** The server lists those that run last. */
function newestFirst(one: ExecSummary, other: ExecSummary): number {
  return (other.started_at ?? 0) - (one.started_at ?? 0);
}

export default function Execs({ id }: { id: string }) {
  const queries = useQueryClient();
  const [open, setOpen] = useState<string | null>(null);
  const path = `/v1/sessions/${segment(id)}`;
  const execs = useQuery({
    queryKey: ["execs", id],
    queryFn: ({ signal }) => get<{ execs: ExecSummary[] }>(`${path}/execs`, {}, signal),
    refetchInterval: 2_000,
  });
  const refresh = () => queries.invalidateQueries({ queryKey: ["execs", id] });
  return (
    <>
      <RunCommand id={id} started={setOpen} />
      <Panel title="Commands" actions={<CopyAs command={listCommands(id)} />}>
        <Loaded query={execs}>
          {(list) =>
            list.execs.length === 0 ? (
              <Empty>No running or recent commands.</Empty>
            ) : (
              <ul className="rows">
                {[...list.execs].sort(newestFirst).map((exec) => (
                  <li key={exec.exec_id}>
                    <div className="row between">
                      <button
                        type="button"
                        className="quiet command"
                        aria-expanded={open === exec.exec_id}
                        onClick={() => setOpen(open === exec.exec_id ? null : exec.exec_id)}
                      >
                        <Disclosure open={open === exec.exec_id} />
                        {visible(exec.command) || "(no command)"}
                      </button>
                      <span className="row">
                        <span className="hint">
                          {exec.started_at !== null && ago(exec.started_at)}
                          {exec.duration_ms !== null && `, took ${seconds(exec.duration_ms / 1000)}`}
                          {exec.output_end !== null && `, ${bytes(exec.output_end)}`}
                        </span>
                        <Badge state={exec.running ? "running" : exec.exit_code === 0 ? "ok" : `exit ${exec.exit_code ?? "?"}`} />
                        <CopyAs command={readOutput(id, exec.exec_id)} />
                        {exec.running && (
                          <Confirm label="Kill" title="Kill this command?" action={killCommand(id, exec.exec_id)} done={refresh}>
                            <code className="breaks">{visible(exec.command)}</code>
                            <br />
                            Every process that it started is killed.
                          </Confirm>
                        )}
                      </span>
                    </div>
                    {open === exec.exec_id && (
                      <Suspense fallback={<p className="hint">Loading…</p>}>
                        <AttachedScreen sessionId={id} execId={exec.exec_id} label="Output" input={false} pty={false} />
                      </Suspense>
                    )}
                  </li>
                ))}
              </ul>
            )
          }
        </Loaded>
      </Panel>
    </>
  );
}

function Disclosure({ open }: { open: boolean }) {
  return (
    <span aria-hidden="true" className="sign">
      {open ? "▾" : "▸"}
    </span>
  );
}

function RunCommand({ id, started }: { id: string; started: (execId: string) => void }) {
  const queries = useQueryClient();
  const [command, setCommand] = useState("");
  const [failed, setFailed] = useState("");
  const action = runCommand(id, command);
  const run = async () => {
    setFailed("");
    try {
      const status = await action.run();
      setCommand("");
      started(status.exec_id);
      void queries.invalidateQueries({ queryKey: ["execs", id] });
    } catch (error) {
      setFailed(messageOf(error));
    }
  };
  return (
    <form
      className="filters"
      onSubmit={(event) => {
        event.preventDefault();
        void run();
      }}
    >
      <label className="grow">
        <span className="unseen">Command</span>
        <input
          className="mono"
          placeholder="Run a command, such as ls -la"
          value={command}
          spellCheck={false}
          autoCapitalize="off"
          onChange={(event) => setCommand(event.target.value)}
        />
      </label>
      <CopyAs command={action} />
      <button type="submit" className="primary" disabled={command.trim() === ""}>
        Run
      </button>
      {failed && <Failure message={failed} />}
    </form>
  );
}
