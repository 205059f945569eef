import { useEffect, useState } from "react";
import { newExecId } from "../../../actions/execs";
import { openTerminal } from "../../../actions/sessions";
import { get, segment } from "../../../api/client";
import { ApiError, messageOf } from "../../../api/errors";
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
    // The id is kept first: if the page is left before the answer, the command is found again by it.
    const before = sessionStorage.getItem(place);
    const id = newExecId();
    sessionStorage.setItem(place, id);
    const isLate = () => sessionStorage.getItem(place) !== id;
    try {
      await openTerminal(session.id, id).run();
      if (isLate()) return;
      setExecId(id);
      setEnded(false);
    } catch (error) {
      if (isLate()) return;
      if (before) sessionStorage.setItem(place, before);
      else sessionStorage.removeItem(place);
      setFailed(messageOf(error));
    }
  };

  useEffect(() => {
    const known = sessionStorage.getItem(place);
    if (!known || session.state !== "active") return;
    get<ExecStatus>(`/v1/sessions/${segment(session.id)}/execs/${segment(known)}`)
      .then((status) => {
        // A new terminal may have been opened meanwhile.
        if (status.running && sessionStorage.getItem(place) === known) setExecId(known);
      })
      .catch((error: unknown) => {
        if (isGone(error) && sessionStorage.getItem(place) === known) sessionStorage.removeItem(place);
      });
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

/** Whether the server says that there is no such command. One that is busy or not there says nothing of it. */
function isGone(error: unknown): boolean {
  return error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 401 && !error.retryable;
}
