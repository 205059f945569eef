import { useState } from "react";
import { listPlacedSessions } from "../../actions/fleet";
import type { PlacedSession, Worker } from "../../api/fleetTypes";
import { count, plural } from "../../format";
import { Badge } from "../../parts/Badge";
import { CopyAs } from "../../parts/CopyAs";
import { Name } from "../../parts/Name";
import { Link } from "../../router";

const FEW = 5;
const MANY = 200;

interface Props {
  worker: Worker;
  /** Newest first. */
  sessions: PlacedSession[];
  tenant: string;
  /** Whether these are all that the tenant has there. */
  complete: boolean;
}

/** The sessions of a tenant at one worker. */
export function WorkerSessions({ worker, sessions, tenant, complete }: Props) {
  const [shown, setShown] = useState(FEW);
  const others = worker.recorded - sessions.length;
  return (
    <section className="placed" aria-label={`Sessions of ${worker.id}`}>
      <header className="row between">
        <h3>{plural(sessions.length, "session")}</h3>
        <CopyAs command={listPlacedSessions(worker.id, tenant)} />
      </header>
      <ul className="rows">
        {sessions.slice(0, shown).map(({ session }) => (
          <li key={session.id} className="row between">
            <span>
              <Link to={`/sessions/${encodeURIComponent(session.id)}`} className="mono id" title={session.id}>
                {session.id}
              </Link>{" "}
              <span className="hint">
                <Name text={session.thread ?? session.environment} />
              </span>
            </span>
            <Badge state={session.state} />
          </li>
        ))}
      </ul>
      {sessions.length > shown && (
        <button type="button" className="small" onClick={() => setShown(shown + MANY)}>
          Show {count(Math.min(MANY, sessions.length - shown))} more
        </button>
      )}
      {complete && others > 0 && <p className="hint">{plural(others, "more session")} of other tenants.</p>}
    </section>
  );
}
