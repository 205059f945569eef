import { useQuery } from "@tanstack/react-query";
import { compareSnapshot } from "../actions/snapshots";
import { get, segment } from "../api/client";
import type { Difference } from "../api/types";
import { count, plural, visible } from "../format";
import { CopyAs } from "./CopyAs";
import { Loaded } from "./Loaded";

const SHOWN = 500;
const MARKS = { added: "+", changed: "~", removed: "−" } as const;

interface Props {
  sessionId: string;
  /** A snapshot's id. */
  from: string;
  /** A later snapshot's id; null: the files that the session has now. */
  to: string | null;
  since: string;
}

/** What was added, changed and removed in the files of a session. */
export function Changes({ sessionId, from, to, since }: Props) {
  const difference = useQuery({
    queryKey: ["diff", from, to],
    queryFn: ({ signal }) => get<Difference>(`/v1/snapshots/${segment(from)}/diff`, { to: to ?? undefined }, signal),
    // Snapshots never change; the files of a session do.
    staleTime: to === null ? 0 : Infinity,
    retry: false,
  });
  return (
    <Loaded query={difference}>
      {(found) => {
        const paths = (["added", "changed", "removed"] as const).flatMap((kind) => found[kind].map((path) => ({ kind, path })));
        const hidden = paths.length - SHOWN;
        return (
          <div className="changes">
            <p className="hint">
              {since}: {plural(found.added.length, "file")} added, {count(found.changed.length)} changed, {count(found.removed.length)} removed
              {found.truncated && ", and more"}. <CopyAs command={compareSnapshot(sessionId, from, to)} />
            </p>
            <ul tabIndex={0} aria-label="Changed files">
              {paths.slice(0, SHOWN).map(({ kind, path }) => (
                <li key={`${kind} ${path}`} className={kind}>
                  <span aria-label={kind}>{MARKS[kind]}</span> {visible(path)}
                </li>
              ))}
            </ul>
            {hidden > 0 && <p className="hint">{plural(hidden, "more file")}. The command line lists all.</p>}
          </div>
        );
      }}
    </Loaded>
  );
}
