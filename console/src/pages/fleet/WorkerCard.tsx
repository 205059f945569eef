import { useQueryClient } from "@tanstack/react-query";
import { drainWorker, undrainWorker } from "../../actions/fleet";
import type { PlacedSession, Worker } from "../../api/fleetTypes";
import { bytes, seconds, visible } from "../../format";
import { Badge } from "../../parts/Badge";
import { Confirm } from "../../parts/Confirm";
import { WorkerLoad } from "../../parts/WorkerLoad";
import { WorkerSessions } from "./WorkerSessions";

interface Props {
  worker: Worker;
  sessions: PlacedSession[];
  tenant: string;
  complete: boolean;
}

export function WorkerCard({ worker, sessions, tenant, complete }: Props) {
  const queries = useQueryClient();
  const verb = worker.draining ? "Undrain" : "Drain";
  return (
    <article className="card">
      <header className="row between">
        <h2>{visible(worker.id)}</h2>
        <span className="row">
          <Badge state={worker.state} />
          {worker.draining && <Badge state="draining" />}
        </span>
      </header>
      <WorkerLoad sessions={worker.sessions} free={worker.free} machine={worker.machine} />
      <dl className="pairs">
        <dt>Warm</dt>
        <dd>{worker.warm}</dd>
        <dt>Lease</dt>
        <dd>{worker.lease_left_s > 0 ? `${seconds(worker.lease_left_s)} left` : "over"}</dd>
        <dt>Version</dt>
        <dd>{visible(worker.version)}</dd>
        <dt>Epoch</dt>
        <dd>{worker.epoch}</dd>
        <dt>Disk free</dt>
        <dd>{bytes(worker.machine?.disk_free_bytes)}</dd>
        <dt>Address</dt>
        <dd className="breaks">{visible(worker.url)}</dd>
      </dl>
      {worker.problems.map((problem) => (
        <p key={problem} className="failure">
          {visible(problem)}
        </p>
      ))}
      <WorkerSessions worker={worker} sessions={sessions} tenant={tenant} complete={complete} />
      <footer className="row end">
        <Confirm
          label={verb}
          title={`${verb} ${visible(worker.id)}?`}
          action={worker.draining ? undrainWorker(worker.id) : drainWorker(worker.id)}
          done={() => queries.invalidateQueries({ queryKey: ["fleet"] })}
          danger={false}
        >
          {worker.draining ? "It takes new sessions again." : "It takes no new sessions. Its existing sessions continue."}
        </Confirm>
      </footer>
    </article>
  );
}
