import { get } from "./client";
import type { Snapshot } from "./types";

const PAGE = 1_000;
const MOST_PAGES = 10;
/** Longer lists are cut, and the page says so. */
export const MOST_SNAPSHOTS = PAGE * MOST_PAGES;

export interface SnapshotList {
  /** Oldest first. */
  snapshots: Snapshot[];
  /** Whether there are more than the page asks for. */
  cut: boolean;
}

/** All snapshots of a session, or without one all that there are, page by page. */
export async function allSnapshots(session: string | undefined, signal: AbortSignal): Promise<SnapshotList> {
  const snapshots: Snapshot[] = [];
  let after: string | undefined;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const found = await get<{ snapshots: Snapshot[]; next: string | null }>("/v1/snapshots", { session, limit: PAGE, after }, signal);
    snapshots.push(...found.snapshots);
    if (found.next === null) return { snapshots, cut: false };
    after = found.next;
  }
  return { snapshots, cut: true };
}
