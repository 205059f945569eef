import type { Snapshot } from "../../../api/types";

export interface Branch {
  snapshot: Snapshot;
  children: Branch[];
}

/** A snapshot, with what else began from it. What goes on from it is the next knot of its line. */
export interface Knot {
  snapshot: Snapshot;
  sides: Knot[][];
}

/** Snapshots under the ones whose files they began with. One whose parent is gone begins a tree of its own. */
export function treeOf(snapshots: Snapshot[]): Branch[] {
  const branches = new Map(snapshots.map((snapshot) => [snapshot.id, { snapshot, children: [] as Branch[] }]));
  const roots: Branch[] = [];
  for (const branch of branches.values()) {
    const parent = branch.snapshot.parent === null ? undefined : branches.get(branch.snapshot.parent);
    (parent?.children ?? roots).push(branch);
  }
  return roots;
}

/** The trees in which this session has a part. */
export function treesWith(roots: Branch[], sessionId: string, base: string | null): Branch[] {
  return roots.filter((root) => latestIn(root, (snapshot) => snapshot.session_id === sessionId || snapshot.id === base) > 0);
}

/**
 * A tree as a line that goes on, with other lines at its side: an agent takes a snapshot with each step, and nobody
 * can read a hundred steps that are each a little further to the right. The line is this session's own, if it has one.
 */
export function lineOf(root: Branch, sessionId: string): Knot[] {
  const line: Knot[] = [];
  const own = (snapshot: Snapshot) => snapshot.session_id === sessionId;
  for (let at: Branch | undefined = root; at; ) {
    const later = [...at.children].sort((one, other) => latestIn(other, own) - latestIn(one, own) || latestIn(other) - latestIn(one));
    const next: Branch | undefined = later.shift();
    line.push({ snapshot: at.snapshot, sides: later.map((side) => lineOf(side, sessionId)) });
    at = next;
  }
  return line;
}

/** When the last of them was taken; 0 if there is none. */
function latestIn(branch: Branch, which: (snapshot: Snapshot) => boolean = () => true): number {
  let latest = 0;
  for (let waiting = [branch]; waiting.length > 0; ) {
    const { snapshot, children } = waiting.pop() as Branch;
    if (which(snapshot)) latest = Math.max(latest, snapshot.created_at);
    waiting.push(...children);
  }
  return latest;
}
