import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { listWorkers } from "../../actions/fleet";
import { get } from "../../api/client";
import { ApiError, messageOf } from "../../api/errors";
import type { Fleet as FleetInfo, PlacedSession } from "../../api/fleetTypes";
import { MOST_SESSIONS, useAllSessions } from "../../api/useAllSessions";
import { LIVES, useFresh } from "../../api/useFresh";
import { count } from "../../format";
import { CopyAs } from "../../parts/CopyAs";
import { Failure } from "../../parts/Failure";
import { Loaded } from "../../parts/Loaded";
import { Empty, Figure } from "../../parts/Panel";
import { WorkerCard } from "./WorkerCard";

// Leases last seconds, and no event tells of them.
const LEASES_MS = 3_000;

export default function Fleet() {
  const fleet = useQuery({
    queryKey: ["fleet"],
    queryFn: ({ signal }) => get<FleetInfo>("/v1/fleet", {}, signal),
    refetchInterval: LEASES_MS,
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
              <Workers fleet={state} />
            </>
          )}
        </Loaded>
      )}
    </>
  );
}

/** The workers, each with the sessions of one tenant that it has. */
function Workers({ fleet }: { fleet: FleetInfo }) {
  const [typed, setTyped] = useState("");
  const [tenant, setTenant] = useState("");
  const everyMs = useFresh(["fleet", "placed"], LIVES);
  const placed = useAllSessions<PlacedSession>("placed", "/v1/fleet/sessions", { tenant: tenant || undefined }, everyMs);
  const at = (worker: string) => placed.sessions.filter((one) => one.worker === worker).reverse();
  return (
    <>
      <form
        className="filters"
        role="search"
        onSubmit={(event) => {
          event.preventDefault();
          setTenant(typed.trim());
        }}
      >
        <label className="grow">
          <span className="unseen">Tenant whose sessions are listed</span>
          <input type="search" placeholder="List the sessions of another tenant" value={typed} onChange={(event) => setTyped(event.target.value)} />
        </label>
        <button type="submit" disabled={typed.trim() === tenant}>
          List
        </button>
      </form>
      {placed.query.error && <Failure message={messageOf(placed.query.error)} />}
      {placed.cut && <p className="hint">Only the oldest {count(MOST_SESSIONS)} sessions are listed.</p>}
      <div className="cards">
        {fleet.workers.map((worker) => (
          <WorkerCard
            key={worker.id}
            worker={worker}
            sessions={at(worker.id)}
            tenant={tenant}
            complete={placed.query.isSuccess && !placed.loading && !placed.cut}
          />
        ))}
      </div>
    </>
  );
}
