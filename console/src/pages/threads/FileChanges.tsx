import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { takeSnapshot } from "../../actions/snapshots";
import { get, segment } from "../../api/client";
import type { Session, Snapshot } from "../../api/types";
import { clock, visible } from "../../format";
import { Changes } from "../../parts/Changes";
import { CopyAs } from "../../parts/CopyAs";
import { baseOf, type Snapshots, sinceThe } from "./snapshots";

/** The files after a step, as a snapshot of them, and what has changed since the one before it. */
export function FilesAfter({ snapshot, all }: { snapshot: Snapshot; all: Snapshot[] }) {
  const [open, setOpen] = useState(false);
  const known = baseOf(snapshot, all, null);
  const unknown = known === null && snapshot.parent !== null;
  const session = useQuery({
    queryKey: ["session", snapshot.session_id],
    queryFn: ({ signal }) => get<Session>(`/v1/sessions/${segment(snapshot.session_id)}`, {}, signal),
    enabled: unknown,
    retry: false,
    refetchOnWindowFocus: false,
  });
  const base = known ?? baseOf(snapshot, all, session.data?.workspace?.snapshot ?? null);
  return (
    <section className="files-after">
      <p className="row">
        <span className="hint">
          Snapshot {snapshot.name && `“${visible(snapshot.name)}” `}taken {clock(snapshot.created_at)}
          {snapshot.parent === null && !base && ", the first one"}
          {unknown && !base && !session.isPending && ". The one before it is gone, or of another thread"}
        </span>
        {base && (
          <button type="button" className="small" aria-expanded={open} onClick={() => setOpen(!open)}>
            Show changed files
          </button>
        )}
      </p>
      {open && base && <Changes sessionId={snapshot.session_id} from={base.id} to={snapshot.id} since={base.text} />}
    </section>
  );
}

/** Above the steps: what no snapshot shows yet, or how a conversation gets any. */
export function FilesNow({ session, active, files }: { session: string; active: boolean; files: Snapshots }) {
  const [open, setOpen] = useState(false);
  const last = files.snapshots.findLast((snapshot) => snapshot.session_id === session);
  if (files.known && files.snapshots.length === 0) {
    return (
      <p className="hint">
        No snapshots of this thread, so only files that were changed through the API are shown. To see what each step changed, use{" "}
        <code>SandboxMiddleware(time_travel=True)</code>, or take snapshots between the steps. <CopyAs command={takeSnapshot(session, "")} />
      </p>
    );
  }
  if (!last || !active) return null;
  return (
    <section className="files-after">
      <button type="button" className="small" aria-expanded={open} onClick={() => setOpen(!open)}>
        Show files changed since the last snapshot
      </button>
      {open && <Changes sessionId={session} from={last.id} to={null} since={sinceThe(last)} />}
    </section>
  );
}
