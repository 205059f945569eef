import { useQuery } from "@tanstack/react-query";
import { get, segment } from "../../api/client";
import type { Network, Session, WorkspaceStatus } from "../../api/types";
import { bytes, count, moment, until, visible } from "../../format";
import { Chart } from "../../parts/Chart";
import { Loaded } from "../../parts/Loaded";
import { Name } from "../../parts/Name";
import { Empty, Figure, Panel } from "../../parts/Panel";
import { Link } from "../../router";
import { useRates } from "./useRates";

export function About({ info }: { info: Session }) {
  return (
    <>
      <Use info={info} />
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

function Use({ info }: { info: Session }) {
  const path = `/v1/sessions/${segment(info.id)}`;
  const enabled = info.state === "active";
  const workspace = useQuery({
    queryKey: ["workspace", info.id],
    queryFn: ({ signal }) => get<WorkspaceStatus>(`${path}/workspace`, {}, signal),
    refetchInterval: 5_000,
    enabled,
  });
  const network = useQuery({
    queryKey: ["network", info.id],
    queryFn: ({ signal }) => get<Network>(`${path}/network`, {}, signal),
    refetchInterval: 2_000,
    enabled,
  });
  const traffic = network.data?.traffic;
  const rates = useRates(traffic ? [traffic.received_bytes, traffic.sent_bytes] : null, network.dataUpdatedAt);
  if (!enabled) return null;
  return (
    <Panel title="Use">
      <dl className="figures">
        <Figure
          label="Files"
          value={bytes(workspace.data?.used_bytes)}
          note={workspace.data && `stored on ${workspace.data.store === "volume" ? "Docker volumes" : workspace.data.store}`}
        />
        <Figure label="Received" value={bytes(traffic?.received_bytes)} note="from hosts outside" />
        <Figure label="Sent" value={bytes(traffic?.sent_bytes)} note={`${traffic?.requests ?? 0} requests`} />
        <Figure label="Denied" value={count(traffic?.denied ?? 0)} note="connections" />
      </dl>
      {workspace.data?.note && (
        <details>
          <summary>What this store cannot do</summary>
          <p className="hint">{visible(workspace.data.note)}</p>
        </details>
      )}
      <Loaded query={network}>
        {() => (
          <Chart
            title="Network, bytes per second"
            lines={[
              { label: "received", tone: "first" },
              { label: "sent", tone: "second" },
            ]}
            data={rates}
            value={bytes}
            height={110}
          />
        )}
      </Loaded>
    </Panel>
  );
}
