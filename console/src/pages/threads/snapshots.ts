import { type Query, useQueries } from "@tanstack/react-query";
import { allSnapshots, type SnapshotList } from "../../api/snapshots";
import type { Snapshot } from "../../api/types";
import { clock, visible } from "../../format";
import type { Step } from "./steps";

// A thread has one session at a time. The latest ones are what somebody looks at.
const MOST_SESSIONS = 20;
// No event tells of a snapshot.
const EVERY_MS = 10_000;
const LONG = 1_000;
const LONG_LIST_MS = 60_000;

export interface Snapshots {
  /** Of all sessions of a conversation, oldest first. */
  snapshots: Snapshot[];
  /** Whether all have arrived. */
  known: boolean;
  /** Whether some session has more than the page asks for. */
  cut: boolean;
}

export function useSnapshots(sessions: string[]): Snapshots {
  return useQueries({
    queries: sessions.slice(-MOST_SESSIONS).map((session) => ({
      queryKey: ["snapshots", session],
      queryFn: ({ signal }: { signal: AbortSignal }) => allSnapshots(session, signal),
      refetchInterval: (query: Query<SnapshotList>) => ((query.state.data?.snapshots.length ?? 0) > LONG ? LONG_LIST_MS : EVERY_MS),
      retry: false,
    })),
    combine: (results) => ({
      snapshots: results.flatMap((result) => result.data?.snapshots ?? []),
      known: results.every((result) => result.isSuccess),
      cut: results.some((result) => result.data?.cut),
    }),
  });
}

/** Which snapshots were taken after which step, by the step's id. Those before a session's first step are with none. */
export function bySteps(steps: Step[], snapshots: Snapshot[]): Map<string, Snapshot[]> {
  const started = steps.flatMap(({ id, started }) => (started ? [{ id, session: started.session_id, at: started.at }] : []));
  started.sort((one, other) => one.at - other.at);
  const found = new Map<string, Snapshot[]>();
  for (const snapshot of snapshots) {
    const after = started.findLast((step) => step.session === snapshot.session_id && step.at <= snapshot.created_at);
    if (after) found.set(after.id, [...(found.get(after.id) ?? []), snapshot]);
  }
  return found;
}

/**
 * What a snapshot is compared with: the one before it in its line of files, or else the last one before it, or else
 * the one of another session that its own began with.
 */
export function baseOf(snapshot: Snapshot, all: Snapshot[], began: string | null): { id: string; text: string } | null {
  const parent = all.find((one) => one.id === snapshot.parent);
  const earlier = all.filter((one) => one.session_id === snapshot.session_id && one.created_at < snapshot.created_at);
  const base = parent ?? earlier.at(-1);
  if (base) return { id: base.id, text: sinceThe(base) };
  // Any other that is not here may have been deleted.
  return began !== null && snapshot.parent === began ? { id: began, text: "Since the session began" } : null;
}

export function sinceThe(snapshot: Snapshot): string {
  return `Since ${snapshot.name ? `“${visible(snapshot.name)}”, taken` : "the snapshot taken"} ${clock(snapshot.created_at)}`;
}
