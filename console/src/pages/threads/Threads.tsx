import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get } from "../../api/client";
import type { Session } from "../../api/types";
import { ago } from "../../format";
import { Badge } from "../../parts/Badge";
import { Loaded } from "../../parts/Loaded";
import { Name } from "../../parts/Name";
import { Empty } from "../../parts/Panel";
import { go, Link } from "../../router";
import { Story } from "./Story";

const MOST = 1_000;

export default function Threads({ thread }: { thread: string | undefined }) {
  return thread === undefined ? <ThreadList /> : <Story key={thread} thread={thread} />;
}

function ThreadList() {
  const [text, setText] = useState("");
  const sessions = useQuery({
    queryKey: ["threads"],
    queryFn: ({ signal }) => get<{ sessions: Session[] }>("/v1/sessions", { limit: MOST }, signal),
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
          <input type="search" placeholder="A thread's id; one whose session has ended too" value={text} onChange={(event) => setText(event.target.value)} />
        </label>
        <button type="submit" disabled={text.trim() === ""}>
          Open
        </button>
      </form>
      <Loaded query={sessions}>
        {(list) => {
          const found = list.sessions.filter((one) => one.thread?.toLowerCase().includes(text.toLowerCase())).reverse();
          if (found.length === 0) return <Empty>No conversation has a session now.</Empty>;
          return (
            <ul className="rows panel">
              {found.slice(0, 200).map((one) => (
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
          );
        }}
      </Loaded>
    </>
  );
}
