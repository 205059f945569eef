import { useEffect, useState } from "react";
import { newExecId } from "../../../actions/execs";
import { openTerminal } from "../../../actions/sessions";
import { get, segment } from "../../../api/client";
import { messageOf } from "../../../api/errors";
import type { ExecStatus, Session } from "../../../api/types";
import { CopyAs } from "../../../parts/CopyAs";
import { Failure } from "../../../parts/Failure";
import { Panel } from "../../../parts/Panel";
import { AttachedScreen } from "./AttachedScreen";

/** A terminal of the tab's own: the same one after a reload, as long as its command runs. */
export default function TerminalTab({ session }: { session: Session }) {
  const place = `sandlot.terminal.${session.id}`;
  const [execId, setExecId] = useState<string | null>(null);
  const [ended, setEnded] = useState(false);
  const [failed, setFailed] = useState("");

  const open = async () => {
    setFailed("");
    // The id is kept first: if the answer is lost, the command is found again by it.
    const id = newExecId();
    sessionStorage.setItem(place, id);
    try {
      await openTerminal(session.id, id).run();
      setExecId(id);
      setEnded(false);
    } catch (error) {
      sessionStorage.removeItem(place);
      setFailed(messageOf(error));
    }
  };

  useEffect(() => {
    const known = sessionStorage.getItem(place);
    if (!known || session.state !== "active") return;
    get<ExecStatus>(`/v1/sessions/${segment(session.id)}/execs/${segment(known)}`)
      .then((status) => status.running && setExecId(known))
      .catch(() => sessionStorage.removeItem(place));
  }, [place, session.id, session.state]);

  const usable = session.state === "active" || session.state === "hibernated";
  return (
    <Panel
      title="Terminal"
      actions={
        <>
          <CopyAs command={openTerminal(session.id, "")} />
          <button type="button" className={execId && !ended ? "small" : "primary"} disabled={!usable} onClick={() => void open()}>
            {execId ? "New terminal" : "Open a terminal"}
          </button>
        </>
      }
    >
      {failed && <Failure message={failed} />}
      {execId ? (
        <AttachedScreen key={execId} sessionId={session.id} execId={execId} label="Terminal" input pty onEnd={() => setEnded(true)} />
      ) : (
        <p className="empty">Opens Bash in the sandbox. It keeps running if you leave this page. To continue, come back in the same browser tab.</p>
      )}
    </Panel>
  );
}
