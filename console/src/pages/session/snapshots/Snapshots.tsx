import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { deleteSnapshot, forkSnapshot, listSnapshots, restoreSnapshot, takeSnapshot } from "../../../actions/snapshots";
import { messageOf } from "../../../api/errors";
import { allSnapshots, MOST_SNAPSHOTS } from "../../../api/snapshots";
import type { Session, Snapshot } from "../../../api/types";
import { ago, bytes, count, visible } from "../../../format";
import { Changes } from "../../../parts/Changes";
import { Confirm } from "../../../parts/Confirm";
import { CopyAs } from "../../../parts/CopyAs";
import { Failure } from "../../../parts/Failure";
import { Loaded } from "../../../parts/Loaded";
import { Empty, Panel } from "../../../parts/Panel";
import { go, Link } from "../../../router";
import { type Knot, lineOf, treeOf, treesWith } from "./tree";

export default function Snapshots({ session }: { session: Session }) {
  const queries = useQueryClient();
  const id = session.id;
  const [name, setName] = useState("");
  const [failed, setFailed] = useState("");
  const own = useQuery({
    queryKey: ["snapshots", id],
    queryFn: ({ signal }) => allSnapshots(id, signal),
  });
  // What this session began from, and what began from it, is only in the list of all sessions. That may be long.
  const all = useQuery({
    queryKey: ["all snapshots"],
    queryFn: ({ signal }) => allSnapshots(undefined, signal),
    refetchOnWindowFocus: false,
  });
  const others = all.data?.snapshots.filter((snapshot) => snapshot.session_id !== id) ?? [];
  const refresh = async () => {
    await queries.invalidateQueries({ queryKey: ["snapshots", id] });
    await queries.invalidateQueries({ queryKey: ["all snapshots"], refetchType: "none" });
    await queries.invalidateQueries({ queryKey: ["session", id] });
  };
  const action = takeSnapshot(id, name);
  const take = async () => {
    setFailed("");
    try {
      await action.run();
      setName("");
      await refresh();
    } catch (error) {
      setFailed(messageOf(error));
    }
  };
  return (
    <Panel title="Snapshots" actions={<CopyAs command={listSnapshots(id)} />}>
      <form
        className="filters"
        onSubmit={(event) => {
          event.preventDefault();
          void take();
        }}
      >
        <label className="grow">
          <span className="unseen">Name</span>
          <input placeholder="Name (may be empty)" value={name} onChange={(event) => setName(event.target.value)} />
        </label>
        <CopyAs command={action} />
        <button type="submit" className="primary">
          Take a snapshot
        </button>
      </form>
      {failed && <Failure message={failed} />}
      {own.data?.cut && <p className="hint">Only the oldest {count(MOST_SNAPSHOTS)} snapshots of this session are shown.</p>}
      {all.data?.cut && <p className="hint">Those of other sessions are shown if they are among the oldest {count(MOST_SNAPSHOTS)} of all.</p>}
      {all.error && <Failure message={`Those of other sessions are not shown. ${messageOf(all.error)}`} />}
      <Loaded query={own}>
        {(list) => {
          const trees = treesWith(treeOf([...others, ...list.snapshots]), id, session.workspace?.snapshot ?? null);
          if (trees.length === 0) return <Empty>No snapshot yet. A snapshot keeps the files as they are now.</Empty>;
          return trees.map((root) => (
            <Line key={root.snapshot.id} knots={lineOf(root, id)} session={session} refresh={refresh} />
          ));
        }}
      </Loaded>
    </Panel>
  );
}

interface LineProps {
  knots: Knot[];
  session: Session;
  refresh: () => Promise<void>;
}

function Line({ knots, ...rest }: LineProps) {
  return (
    <ul className="tree">
      {knots.map(({ snapshot, sides }) => (
        <li key={snapshot.id}>
          <Node {...rest} snapshot={snapshot} />
          {sides.map((side) => (
            <Line key={side[0]?.snapshot.id} {...rest} knots={side} />
          ))}
        </li>
      ))}
    </ul>
  );
}

function Node({ snapshot, session, refresh }: Omit<LineProps, "knots"> & { snapshot: Snapshot }) {
  const [compared, setCompared] = useState(false);
  // A snapshot of another session would be compared with the files of that one.
  const own = snapshot.session_id === session.id;
  const base = session.workspace?.snapshot === snapshot.id;
  return (
    <article className={base ? "node base" : "node"}>
      <header className="row between">
        <span className="breaks">
          <b>{visible(snapshot.name) || <span className="mono">{snapshot.id.slice(0, 16)}</span>}</b>{" "}
          <span className="hint">
            {ago(snapshot.created_at)}
            {snapshot.unique_bytes !== null && `, ${bytes(snapshot.unique_bytes)} of its own`}
            {!own && (
              <>
                {", of "}
                <Link to={`/sessions/${encodeURIComponent(snapshot.session_id)}`} className="mono id" title={snapshot.session_id}>
                  {snapshot.session_id}
                </Link>
              </>
            )}
            {base && ", this session began here"}
          </span>
        </span>
        <span className="row">
          {own && (
            <button type="button" className="small" aria-expanded={compared} onClick={() => setCompared(!compared)}>
              Compare
            </button>
          )}
          <Confirm label="Restore" title="Restore these files?" action={restoreSnapshot(session.id, snapshot.id)} done={refresh} danger={false}>
            The session gets the files of this snapshot and a new sandbox. Every process of it ends, and files that
            changed since are lost unless another snapshot has them.
          </Confirm>
          <Confirm
            label="Fork"
            title="Start a new session with these files?"
            action={forkSnapshot(snapshot.id, snapshot.environment)}
            done={(made) => go(`/sessions/${encodeURIComponent(made.id)}`)}
            danger={false}
          >
            This session stays as it is.
          </Confirm>
          <Confirm label="Delete" title="Delete the snapshot?" action={deleteSnapshot(snapshot.id)} done={refresh}>
            Sessions that began with its files keep them.
          </Confirm>
        </span>
      </header>
      {compared && <Changes sessionId={session.id} from={snapshot.id} to={null} since="Since then" />}
    </article>
  );
}
