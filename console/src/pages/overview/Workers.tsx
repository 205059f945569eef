import { useQuery } from "@tanstack/react-query";
import { listWorkers } from "../../actions/fleet";
import { get } from "../../api/client";
import type { Fleet } from "../../api/fleetTypes";
import type { Health } from "../../api/types";
import { visible } from "../../format";
import { Badge } from "../../parts/Badge";
import { CopyAs } from "../../parts/CopyAs";
import { Loaded } from "../../parts/Loaded";
import { Panel } from "../../parts/Panel";
import { WorkerLoad } from "../../parts/WorkerLoad";

/** The workers of a fleet with their load. */
export function Workers({ everyMs }: { everyMs: number }) {
  const fleet = useQuery({
    queryKey: ["fleet"],
    queryFn: ({ signal }) => get<Fleet>("/v1/fleet", {}, signal),
    refetchInterval: everyMs,
    retry: false,
  });
  return (
    <Panel title="Workers" actions={<CopyAs command={listWorkers()} />}>
      <Loaded query={fleet}>
        {(state) => (
          <div className="cards">
            {state.workers.map((worker) => (
              <article key={worker.id} className="card">
                <header className="row between">
                  <h3>{visible(worker.id)}</h3>
                  <Badge state={worker.draining ? "draining" : worker.state} />
                </header>
                <WorkerLoad sessions={worker.sessions} free={worker.free} machine={worker.machine} />
              </article>
            ))}
          </div>
        )}
      </Loaded>
    </Panel>
  );
}

/** The load of a single server. A coordinator has none of its own, and a key without `metrics:read` does not see it. */
export function ServerLoad({ health }: { health: Health }) {
  if (health.free === null) return null;
  return (
    <Panel title="Load">
      <WorkerLoad sessions={health.active_sessions} free={health.free} machine={health.machine} />
    </Panel>
  );
}
