import { useQuery } from "@tanstack/react-query";
import { get, segment } from "../../../api/client";
import type { Network, Session, WorkspaceStatus } from "../../../api/types";
import { bytes, count, visible } from "../../../format";
import { Chart } from "../../../parts/Chart";
import { Loaded } from "../../../parts/Loaded";
import { Figure, Panel } from "../../../parts/Panel";
import { Machine } from "./Machine";
import { columns, rates, useSamples } from "./series";

/** What a session uses now, and used while somebody looked. */
export function Use({ info }: { info: Session }) {
  const path = `/v1/sessions/${segment(info.id)}`;
  const workspace = useQuery({
    queryKey: ["workspace", info.id],
    queryFn: ({ signal }) => get<WorkspaceStatus>(`${path}/workspace`, {}, signal),
    refetchInterval: 30_000,
  });
  const network = useQuery({
    queryKey: ["network", info.id],
    queryFn: ({ signal }) => get<Network>(`${path}/network`, {}, signal),
    refetchInterval: 2_000,
  });
  const traffic = network.data?.traffic;
  const totals = traffic ? [traffic.received_bytes, traffic.sent_bytes] : null;
  const samples = rates(useSamples(totals, network.dataUpdatedAt / 1000));
  return (
    <>
      <Machine info={info} />
      <Panel title="Network">
        <dl className="figures">
          <Figure label="Received" value={bytes(traffic?.received_bytes)} note="from hosts outside" />
          <Figure label="Sent" value={bytes(traffic?.sent_bytes)} note={`${traffic?.requests ?? 0} requests`} />
          <Figure label="Denied" value={count(traffic?.denied ?? 0)} note="connections" />
        </dl>
        <Loaded query={network}>
          {() => (
            <Chart
              title="Bytes per second"
              lines={[
                { label: "received", tone: "first" },
                { label: "sent", tone: "second" },
              ]}
              data={columns(samples, 2)}
              value={bytes}
              binary
              height={110}
            />
          )}
        </Loaded>
      </Panel>
      {workspace.data?.note && (
        <details>
          <summary>Limits of this server's workspace storage</summary>
          <p className="hint">{visible(workspace.data.note)}</p>
        </details>
      )}
    </>
  );
}
