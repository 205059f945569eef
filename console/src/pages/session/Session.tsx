import { useQuery, useQueryClient } from "@tanstack/react-query";
import { lazy, type ReactNode, Suspense, useEffect, useState } from "react";
import { deleteSession, hibernateSession, recreateSession, showSession } from "../../actions/sessions";
import { get, segment } from "../../api/client";
import { ApiError } from "../../api/errors";
import type { Session as SessionInfo } from "../../api/types";
import { ago, until, visible } from "../../format";
import { Badge } from "../../parts/Badge";
import { Confirm } from "../../parts/Confirm";
import { CopyAs } from "../../parts/CopyAs";
import { Loaded } from "../../parts/Loaded";
import { Name } from "../../parts/Name";
import { Empty, Panel } from "../../parts/Panel";
import { Tabs } from "../../parts/Tabs";
import { go, Link } from "../../router";
import { About } from "./About";
import Execs from "./execs/Execs";
import Files from "./files/Files";
import { Loss } from "./Loss";
import NetworkTab from "./network/NetworkTab";
import Snapshots from "./snapshots/Snapshots";
import Timeline from "./Timeline";

// Only these two need the terminal, which is larger than all pages. The pages are small, and one that comes later
// waits for 300 ms more: React shows no fallback for less.
const Terminal = lazy(() => import("./terminal/TerminalTab"));
const Recording = lazy(() => import("./recording/Recording"));

const TABS = [
  ["about", "About"],
  ["terminal", "Terminal"],
  ["execs", "Commands"],
  ["files", "Files"],
  ["snapshots", "Snapshots"],
  ["network", "Network"],
  ["history", "History"],
  ["recording", "Recording"],
] as const;

export default function Session({ id, tab }: { id: string; tab: string }) {
  const path = `/v1/sessions/${segment(id)}`;
  const session = useQuery({
    queryKey: ["session", id],
    queryFn: ({ signal }) => get<SessionInfo>(path, {}, signal),
    refetchInterval: 2_000,
  });
  // What asks the sandbox again and again stops first: a request behind the last one would wake the session.
  const [hibernating, setHibernating] = useState(false);
  const unknown = session.data === undefined && session.error instanceof ApiError && session.error.status === 404;
  return (
    <>
      <p className="crumbs">
        <Link to="/sessions">Sessions</Link>
      </p>
      {!session.data && <h1 className="mono">{visible(id)}</h1>}
      <Loaded query={session}>
        {(info) => (
          <>
            <Head info={info} setHibernating={setHibernating} />
            {info.loss && <Loss info={info} />}
          </>
        )}
      </Loaded>
      {unknown ? (
        <p>It may have ended long ago, or belong to somebody else.</p>
      ) : (
        <>
          <Tabs
            label="About this session"
            tabs={TABS.filter(([name]) => name !== "recording" || session.data?.record)}
            current={tab}
            to={(name) => `/sessions/${encodeURIComponent(id)}/${name}`}
          />
          <Suspense fallback={<p className="hint">Loading…</p>}>
            <Tab tab={tab} id={id} info={session.data} hibernating={hibernating} />
          </Suspense>
        </>
      )}
    </>
  );
}

/** What needs no more than the session's id, and wakes no session, does not wait for the rest of it. */
function Tab({ tab, id, info, hibernating }: { tab: string; id: string; info: SessionInfo | undefined; hibernating: boolean }) {
  const asleep = hibernating || info?.state === "hibernated";
  switch (tab) {
    case "terminal":
      return info && <Terminal session={info} />;
    case "execs":
      return info && <Awake asleep={asleep} what="commands">{() => <Execs id={id} />}</Awake>;
    case "files":
      return info && <Awake asleep={asleep} what="files">{() => <Files id={id} />}</Awake>;
    case "snapshots":
      return info && <Snapshots session={info} />;
    case "network":
      return <NetworkTab id={id} />;
    case "history":
      return <Timeline id={id} />;
    case "recording":
      return <Recording id={id} />;
    default:
      return info && <About info={info} />;
  }
}

/** What only a sandbox can tell. Somebody who just looks around does not wake a session that is hibernated. */
function Awake({ asleep, what, children }: { asleep: boolean; what: string; children: () => ReactNode }) {
  const [woken, setWoken] = useState(false);
  // The next time that it hibernates, nobody has asked for it yet.
  useEffect(() => {
    if (!asleep) setWoken(false);
  }, [asleep]);
  if (!asleep || woken) return children();
  return (
    <Panel title={`The session's ${what}`}>
      <Empty>To show its {what}, the session needs a sandbox.</Empty>
      <div className="row">
        <button type="button" className="primary" onClick={() => setWoken(true)}>
          Wake it and show the {what}
        </button>
      </div>
    </Panel>
  );
}

function Head({ info, setHibernating }: { info: SessionInfo; setHibernating: (now: boolean) => void }) {
  const queries = useQueryClient();
  const refresh = () => queries.invalidateQueries({ queryKey: ["session", info.id] });
  const ended = info.state === "ended";
  const hibernate = hibernateSession(info.id);
  const hibernateUndisturbed = async () => {
    setHibernating(true);
    try {
      await hibernate.run();
      await refresh();
    } finally {
      setHibernating(false);
    }
  };
  return (
    <header className="page-head">
      <div>
        <h1 className="mono">{info.id}</h1>
        <p className="facts">
          <Badge state={info.state} />
          <Name text={info.environment} />
          {info.thread !== null && (
            <Link to={`/threads/${encodeURIComponent(info.thread)}`}>
              <Name text={info.thread} />
            </Link>
          )}
          <span>generation {info.generation}</span>
          <span>used {ago(info.last_active_at)}</span>
          <span>{ended ? `ended: ${info.end_reason ?? ""}` : `${info.state === "active" && info.on_idle === "hibernate" ? "hibernates" : "ends"} ${until(info.expires_at)}`}</span>
        </p>
      </div>
      <div className="row">
        {(info.state === "lost" || info.state === "unresponsive") && (
          <Confirm label="Recreate" title="Give the session a new sandbox?" action={recreateSession(info.id)} done={refresh} danger={false}>
            Its files stay, unless the loss report says that they are gone. What still runs in it ends.
          </Confirm>
        )}
        {info.state === "active" && (
          <Confirm label="Hibernate" title="Hibernate the session?" action={{ ...hibernate, run: hibernateUndisturbed }} done={() => {}} danger={false}>
            Running commands and shells end. The files stay, and the next use gives the session a new sandbox.
          </Confirm>
        )}
        {!ended && (
          <Confirm label="Delete" title="Delete the session?" action={deleteSession(info.id)} done={() => go("/sessions")}>
            Its sandbox and its files are deleted. Its snapshots stay.
          </Confirm>
        )}
        <CopyAs command={showSession(info.id)} />
      </div>
    </header>
  );
}
