import type { Session } from "../../api/types";
import { bytes, count, moment, until, visible } from "../../format";
import { Name } from "../../parts/Name";
import { Empty, Panel } from "../../parts/Panel";
import { Link } from "../../router";
import { Use } from "./use/Use";

export function About({ info }: { info: Session }) {
  return (
    <>
      {info.state === "active" && <Use info={info} />}
      <div className="two">
        <Panel title="Limits">
          <dl className="pairs">
            <dt>Memory</dt>
            <dd>{bytes(info.limits.memory_bytes)}</dd>
            <dt>Processors</dt>
            <dd>{info.limits.cpus}</dd>
            <dt>Processes</dt>
            <dd>{count(info.limits.pids)}</dd>
            <dt>/tmp</dt>
            <dd>{bytes(info.limits.tmp_bytes)}</dd>
            <dt>Open files</dt>
            <dd>{count(info.limits.open_files)}</dd>
            <dt>Workspace</dt>
            <dd>{info.workspace?.quota_bytes ? bytes(info.workspace.quota_bytes) : "no quota"}</dd>
          </dl>
        </Panel>
        <Panel title="Life">
          <dl className="pairs">
            <dt>Created</dt>
            <dd>{moment(info.created_at)}</dd>
            <dt>Created by</dt>
            <dd className="mono">{info.created_by || "the server's own key"}</dd>
            <dt>Tenant</dt>
            <dd>{info.tenant}</dd>
            <dt>Sandbox</dt>
            <dd className="mono">{info.sandbox_id ?? "none"}</dd>
            <dt>Ends</dt>
            <dd>{until(info.expires_at)}</dd>
            <dt>When idle</dt>
            <dd>{info.on_idle === "hibernate" ? "hibernates" : "ends"}</dd>
            {info.predecessor && (
              <>
                <dt>Before it</dt>
                <dd>
                  <Link to={`/sessions/${encodeURIComponent(info.predecessor.id)}`} className="mono">
                    {info.predecessor.id}
                  </Link>
                </dd>
              </>
            )}
          </dl>
        </Panel>
      </div>
      <Panel title="Metadata">
        {Object.keys(info.metadata).length === 0 ? (
          <Empty>None.</Empty>
        ) : (
          <dl className="pairs">
            {Object.entries(info.metadata).map(([name, value]) => (
              <div key={name} className="pair">
                <dt>
                  <Name text={name} />
                </dt>
                <dd className="breaks">{visible(value)}</dd>
              </div>
            ))}
          </dl>
        )}
      </Panel>
    </>
  );
}
