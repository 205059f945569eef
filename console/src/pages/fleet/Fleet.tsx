import { useQuery, useQueryClient } from "@tanstack/react-query";
import { drainWorker, listWorkers, undrainWorker } from "../../actions/fleet";
import { get } from "../../api/client";
import { ApiError } from "../../api/errors";
import type { Fleet as FleetInfo, Worker } from "../../api/types";
import { bytes, count, seconds, visible } from "../../format";
import { Badge } from "../../parts/Badge";
import { Confirm } from "../../parts/Confirm";
import { CopyAs } from "../../parts/CopyAs";
import { Loaded } from "../../parts/Loaded";
import { Empty, Figure } from "../../parts/Panel";

export default function Fleet() {
  const fleet = useQuery({
    queryKey: ["fleet"],
    queryFn: ({ signal }) => get<FleetInfo>("/v1/fleet", {}, signal),
    refetchInterval: 2_000,
    retry: false,
  });
  const single = fleet.error instanceof ApiError && fleet.error.status === 404;
  return (
    <>
      <header className="page-head">
        <h1>Fleet</h1>
        <CopyAs command={listWorkers()} />
      </header>
      {single ? (
        <Empty>This is a single server, so there is no fleet. A coordinator shows its workers here.</Empty>
      ) : (
        <Loaded query={fleet}>
          {(state) => (
            <>
              <dl className="figures">
                <Figure label="Workers" value={count(state.workers.length)} />
                <Figure label="Sessions" value={count(state.sessions)} />
                <Figure label="Being created" value={count(state.reservations)} note="sessions" />
                <Figure label="Directory" value={state.settled ? "complete" : "rebuilding"} note="list of all sessions" />
              </dl>
              <div className="cards">
                {state.workers.map((worker) => (
                  <WorkerCard key={worker.id} worker={worker} />
                ))}
              </div>
            </>
          )}
        </Loaded>
      )}
    </>
  );
}

function WorkerCard({ worker }: { worker: Worker }) {
  const queries = useQueryClient();
  const verb = worker.draining ? "Undrain" : "Drain";
  const machine = worker.machine;
  return (
    <article className="card">
      <header className="row between">
        <h2>{visible(worker.id)}</h2>
        <span className="row">
          <Badge state={worker.state} />
          {worker.draining && <Badge state="draining" />}
        </span>
      </header>
      {machine && (
        <>
          <Load label="Memory" given={machine.given.memory_bytes} total={machine.total.memory_bytes} text={bytes} />
          <Load label="Processors" given={machine.given.cpus} total={machine.total.cpus} text={(value) => value.toFixed(1)} />
        </>
      )}
      <dl className="pairs">
        <dt>Sessions</dt>
        <dd>
          {worker.sessions}, room for {worker.free} more
        </dd>
        <dt>Warm</dt>
        <dd>{worker.warm}</dd>
        <dt>Lease</dt>
        <dd>{worker.lease_left_s > 0 ? `${seconds(worker.lease_left_s)} left` : "over"}</dd>
        <dt>Version</dt>
        <dd>{visible(worker.version)}</dd>
        <dt>Epoch</dt>
        <dd>{worker.epoch}</dd>
        <dt>Disk free</dt>
        <dd>{bytes(machine?.disk_free_bytes)}</dd>
        <dt>Address</dt>
        <dd className="breaks">{visible(worker.url)}</dd>
      </dl>
      {worker.problems.map((problem) => (
        <p key={problem} className="failure">
          {visible(problem)}
        </p>
      ))}
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

function Load({ label, given, total, text }: { label: string; given: number; total: number; text: (value: number) => string }) {
  const words = `${text(given)} of ${text(total)}`;
  return (
    <div className="share">
      <meter min={0} max={Math.max(total, 1)} high={total * 0.9} value={given} aria-label={`${label}: ${words}`} />
      <span>
        {label}: {words}
      </span>
    </div>
  );
}
