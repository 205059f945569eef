import type { Snapshot } from "../../../api/types";

export interface Branch {
  snapshot: Snapshot;
  children: Branch[];
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
  const concerns = (branch: Branch): boolean =>
    branch.snapshot.session_id === sessionId || branch.snapshot.id === base || branch.children.some(concerns);
  return roots.filter(concerns);
}
