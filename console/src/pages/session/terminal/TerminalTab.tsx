import { useEffect, useState } from "react";
import { get, post, segment } from "../../../api/client";
import { messageOf } from "../../../api/errors";
import type { ExecStatus, Session } from "../../../api/types";
import { cli, onSession } from "../../../commands";
import { CopyAs } from "../../../parts/CopyAs";
import { Failure } from "../../../parts/Failure";
import { Panel } from "../../../parts/Panel";
import { AttachedScreen } from "./AttachedScreen";

const ROWS = 24;
const COLS = 80;

/** A terminal of the tab's own: the same one after a reload, as long as its command runs. */
export default function TerminalTab({ session }: { session: Session }) {
  const place = `sandlot.terminal.${session.id}`;
  const [execId, setExecId] = useState<string | null>(null);
  const [failed, setFailed] = useState("");

  const open = async () => {
    setFailed("");
    // The id is chosen here and kept first: if the answer is lost, the command is found again by it.
    const id = `console-${crypto.randomUUID()}`;
    sessionStorage.setItem(place, id);
    try {
      await post<ExecStatus>(`/v1/sessions/${segment(session.id)}/exec`, {
        exec_id: id,
        argv: ["bash", "-l"],
        pty: { rows: ROWS, cols: COLS },
        stdin: true,
        background: true,
        output_limit: null,
      });
      setExecId(id);
    } catch (error) {
      sessionStorage.removeItem(place);
      setFailed(messageOf(error));
    }
  };

  useEffect(() => {
    const known = sessionStorage.getItem(place);
    if (!known) return;
    get<ExecStatus>(`/v1/sessions/${segment(session.id)}/execs/${segment(known)}`)
      .then((status) => status.running && setExecId(known))
      .catch(() => sessionStorage.removeItem(place));
  }, [place, session.id]);

  const usable = session.state === "active" || session.state === "hibernated";
  return (
    <Panel
      title="Terminal"
      actions={
        <>
          <CopyAs
            what="Open a terminal"
            command={{ cli: cli("shell", "--session", session.id), python: onSession(session.id, "terminal = session.terminal()") }}
          />
          <button type="button" className={execId ? "small" : "primary"} disabled={!usable} onClick={() => void open()}>
            {execId ? "New terminal" : "Open a terminal"}
          </button>
        </>
      }
    >
      {failed && <Failure message={failed} />}
      {execId ? (
        <AttachedScreen key={execId} sessionId={session.id} execId={execId} label="Terminal" input pty />
      ) : (
        <p className="empty">Opens Bash in the sandbox. It keeps running if you leave this page. To continue, come back in the same browser tab.</p>
      )}
    </Panel>
  );
}
