import { useState } from "react";
import { listSessions } from "../../actions/sessions";
import { messageOf } from "../../api/errors";
import type { Session } from "../../api/types";
import { MOST_SESSIONS, useAllSessions } from "../../api/useAllSessions";
import { LIVES, useFresh } from "../../api/useFresh";
import { ago, count, plural } from "../../format";
import { Badge } from "../../parts/Badge";
import { CopyAs } from "../../parts/CopyAs";
import { Failure } from "../../parts/Failure";
import { Name } from "../../parts/Name";
import { Empty } from "../../parts/Panel";
import { go, Link } from "../../router";
import { Story } from "./Story";

const SHOWN = 50;

export default function Threads({ thread }: { thread: string | undefined }) {
  return thread === undefined ? <ThreadList /> : <Story key={thread} thread={thread} />;
}

function ThreadList() {
  const [text, setText] = useState("");
  const [shown, setShown] = useState(SHOWN);
  const everyMs = useFresh(["sessions"], LIVES);
  const { sessions, query, loading, cut } = useAllSessions<Session>("sessions", "/v1/sessions", {}, everyMs);
  const found = sessions.filter((one) => one.thread?.toLowerCase().includes(text.trim().toLowerCase()));
  found.sort((one, other) => other.last_active_at - one.last_active_at);
  return (
    <>
      <header className="page-head">
        <h1>Threads</h1>
        <CopyAs command={listSessions()} />
      </header>
      <form
        className="filters"
        role="search"
        onSubmit={(event) => {
          event.preventDefault();
          if (text.trim()) go(`/threads/${encodeURIComponent(text.trim())}`);
        }}
      >
        <label className="grow">
          <span className="unseen">Thread</span>
          <input type="search" placeholder="Search, or open one by its id" value={text} onChange={(event) => setText(event.target.value)} />
        </label>
        <button type="submit" disabled={text.trim() === ""}>
          Open
        </button>
      </form>
      {query.error && <Failure message={messageOf(query.error)} />}
      {query.isPending && <p className="hint">Loading…</p>}
      {query.isSuccess && !loading && found.length === 0 && (
        <Empty>
          {text
            ? "No thread with a session matches. To open one whose session has ended, enter its whole id."
            : 'No threads have a session now. To start one, call client.thread("…"), or create a session here and enter a thread.'}
        </Empty>
      )}
      {found.length > 0 && (
        <ul className="rows panel">
          {found.slice(0, shown).map((one) => (
            <li key={one.id} className="row between">
              <Link to={`/threads/${encodeURIComponent(one.thread ?? "")}`}>
                <Name text={one.thread ?? ""} />
              </Link>
              <span className="row">
                <span className="hint">{ago(one.last_active_at)}</span>
                <Badge state={one.state} />
              </span>
            </li>
          ))}
        </ul>
      )}
      <footer className="row between">
        <p className="hint" role="status">
          {found.length > 0 && `${plural(found.length, "thread")}${loading ? " so far" : ""}`}
          {cut && `. These are of the oldest ${count(MOST_SESSIONS)} sessions. To open another one, enter its whole id.`}
        </p>
        {found.length > shown && (
          <button type="button" onClick={() => setShown(shown + SHOWN)}>
            Show more
          </button>
        )}
      </footer>
    </>
  );
}
