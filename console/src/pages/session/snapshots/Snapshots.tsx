import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { get, post, remove, segment } from "../../../api/client";
import { messageOf } from "../../../api/errors";
import type { Difference, Session, Snapshot } from "../../../api/types";
import { cli, onClient, onSession, pythonText } from "../../../commands";
import { ago, bytes, plural, visible } from "../../../format";
import { Confirm } from "../../../parts/Confirm";
import { CopyAs } from "../../../parts/CopyAs";
import { Failure } from "../../../parts/Failure";
import { Loaded } from "../../../parts/Loaded";
import { Empty, Panel } from "../../../parts/Panel";
import { go, Link } from "../../../router";
import { type Branch, treeOf, treesWith } from "./tree";

const MOST = 1_000;

export default function Snapshots({ session }: { session: Session }) {
  const queries = useQueryClient();
  const id = session.id;
  const path = `/v1/sessions/${segment(id)}`;
  const [name, setName] = useState("");
  const [failed, setFailed] = useState("");
  const snapshots = useQuery({
    queryKey: ["snapshots"],
    queryFn: ({ signal }) => get<{ snapshots: Snapshot[] }>("/v1/snapshots", { limit: MOST }, signal),
  });
  const refresh = async () => {
    await queries.invalidateQueries({ queryKey: ["snapshots"] });
    await queries.invalidateQueries({ queryKey: ["session", id] });
  };
  const take = async () => {
    setFailed("");
    try {
      await post(`${path}/snapshots`, { name });
      setName("");
      await refresh();
    } catch (error) {
      setFailed(messageOf(error));
    }
  };
  const fork = async (snapshot: Snapshot) => {
    const made = await post<Session>("/v1/sessions", { snapshot: snapshot.id, environment: snapshot.environment });
    go(`/sessions/${encodeURIComponent(made.id)}`);
  };
  return (
    <Panel title="Snapshots">
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
        <CopyAs
          what="Take a snapshot"
          command={{
            cli: cli("snapshots", "create", id, ...(name ? ["--name", name] : [])),
            python: onSession(id, `snapshot = session.workspace.snapshot(${name ? pythonText(name) : ""})`),
          }}
        />
        <button type="submit" className="primary">
          Take a snapshot
        </button>
      </form>
      {failed && <Failure message={failed} />}
      <Loaded query={snapshots}>
        {(list) => {
          const trees = treesWith(treeOf(list.snapshots), id, session.workspace?.snapshot ?? null);
          if (trees.length === 0) return <Empty>No snapshot yet. A snapshot keeps the files as they are now.</Empty>;
          return (
            <Tree
              branches={trees}
              session={session}
              restore={(snapshot) => post(`${path}/restore`, { snapshot: snapshot.id }).then(refresh)}
              fork={fork}
              drop={(snapshot) => remove(`/v1/snapshots/${segment(snapshot.id)}`).then(refresh)}
            />
          );
        }}
      </Loaded>
    </Panel>
  );
}

interface TreeProps {
  branches: Branch[];
  session: Session;
  restore: (snapshot: Snapshot) => Promise<unknown>;
  fork: (snapshot: Snapshot) => Promise<unknown>;
  drop: (snapshot: Snapshot) => Promise<unknown>;
}

function Tree(props: TreeProps) {
  return (
    <ul className="tree">
      {props.branches.map((branch) => (
        <li key={branch.snapshot.id}>
          <Node {...props} snapshot={branch.snapshot} />
          {branch.children.length > 0 && <Tree {...props} branches={branch.children} />}
        </li>
      ))}
    </ul>
  );
}

function Node({ snapshot, session, restore, fork, drop }: Omit<TreeProps, "branches"> & { snapshot: Snapshot }) {
  const [compared, setCompared] = useState(false);
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
            {base && ", this session began here"}
          </span>{" "}
          {!own && (
            <Link to={`/sessions/${encodeURIComponent(snapshot.session_id)}`} className="mono small-text">
              {snapshot.session_id}
            </Link>
          )}
        </span>
        <span className="row">
          <button type="button" className="small" aria-expanded={compared} onClick={() => setCompared(!compared)}>
            Compare
          </button>
          <Confirm label="Restore" title="Restore these files?" act={() => restore(snapshot)} danger={false}>
            The session gets the files of this snapshot and a new sandbox. Every process of it ends, and files that
            changed since are lost unless another snapshot has them.
          </Confirm>
          <Confirm label="Fork" title="Begin a new session with these files?" act={() => fork(snapshot)} danger={false}>
            This session stays as it is.
          </Confirm>
          <Confirm label="Delete" title="Delete the snapshot?" act={() => drop(snapshot)}>
            Sessions that began with its files keep them.
          </Confirm>
          <CopyAs
            what="Restore or fork"
            command={{
              cli: `${cli("snapshots", "restore", session.id, snapshot.id)}\n${cli("snapshots", "diff", snapshot.id)}`,
              python: `${onSession(session.id, `session.workspace.restore(${pythonText(snapshot.id)})`)}\n\n# or a new session:\n${onClient(`client.create(snapshot=${pythonText(snapshot.id)})`)}`,
            }}
          />
        </span>
      </header>
      {compared && <Changes snapshot={snapshot} />}
    </article>
  );
}

function Changes({ snapshot }: { snapshot: Snapshot }) {
  const difference = useQuery({
    queryKey: ["diff", snapshot.id],
    queryFn: ({ signal }) => get<Difference>(`/v1/snapshots/${segment(snapshot.id)}/diff`, {}, signal),
    staleTime: 0,
  });
  return (
    <Loaded query={difference}>
      {(found) => (
        <div className="changes">
          <p className="hint">
            Since then: {plural(found.added.length, "file")} added, {found.changed.length} changed, {found.removed.length}{" "}
            removed{found.truncated && ", and more"}.
          </p>
          <ul>
            {found.added.map((path) => (
              <li key={path} className="added">
                + {visible(path)}
              </li>
            ))}
            {found.changed.map((path) => (
              <li key={path} className="changed">
                ~ {visible(path)}
              </li>
            ))}
            {found.removed.map((path) => (
              <li key={path} className="removed">
                − {visible(path)}
              </li>
            ))}
          </ul>
        </div>
      )}
    </Loaded>
  );
}
