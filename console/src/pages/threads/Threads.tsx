import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get } from "../../api/client";
import type { Session } from "../../api/types";
import { ago, count, plural } from "../../format";
import { Badge } from "../../parts/Badge";
import { Loaded } from "../../parts/Loaded";
import { Name } from "../../parts/Name";
import { Empty } from "../../parts/Panel";
import { go, Link } from "../../router";
import { Story } from "./Story";

const MOST = 1_000;
const SHOWN = 50;

export default function Threads({ thread }: { thread: string | undefined }) {
  return thread === undefined ? <ThreadList /> : <Story key={thread} thread={thread} />;
}

function ThreadList() {
  const [text, setText] = useState("");
  const [shown, setShown] = useState(SHOWN);
  const sessions = useQuery({
    queryKey: ["threads"],
    queryFn: ({ signal }) => get<{ sessions: Session[]; next: string | null }>("/v1/sessions", { limit: MOST }, signal),
    refetchInterval: 5_000,
  });
  return (
    <>
      <header className="page-head">
        <h1>Threads</h1>
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
      <Loaded query={sessions}>
        {(list) => {
          const found = list.sessions.filter((one) => one.thread?.toLowerCase().includes(text.toLowerCase()));
          found.sort((one, other) => other.last_active_at - one.last_active_at);
          if (found.length === 0) return <Empty>{text ? "No conversation with a session matches." : "No threads have a session now. To start one, call client.thread(\"…\"), or create a session here and enter a thread."}</Empty>;
          return (
            <>
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
              <footer className="row between">
                <p className="hint" role="status">
                  {plural(found.length, "thread")}
                  {list.next !== null && ` of the oldest ${count(MOST)} sessions. A search opens any other by its id.`}
                </p>
                {found.length > shown && (
                  <button type="button" onClick={() => setShown(shown + SHOWN)}>
                    Show more
                  </button>
                )}
              </footer>
            </>
          );
        }}
      </Loaded>
    </>
  );
}
