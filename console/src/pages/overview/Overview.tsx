import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { watchServer } from "../../actions/history";
import { get } from "../../api/client";
import type { Health, HistoryEvent } from "../../api/types";
import { OFTEN_MS, SLOWLY_MS } from "../../api/useFresh";
import { ago, clock, count, visible } from "../../format";
import { Badge } from "../../parts/Badge";
import { Chart } from "../../parts/Chart";
import { CopyAs } from "../../parts/CopyAs";
import { Loaded } from "../../parts/Loaded";
import { Empty, Figure, Panel } from "../../parts/Panel";
import { Link } from "../../router";
import { Latencies } from "./Latencies";
import { Pools } from "./Pools";
import { useActivity } from "./useActivity";
import { ServerLoad, Workers } from "./Workers";

export function Overview() {
  const activity = useActivity("health metrics fleet");
  // Events have it asked at once. What other tenants do, and what machines do, sends none.
  const everyMs = activity.live ? SLOWLY_MS : OFTEN_MS;
  const health = useQuery({
    queryKey: ["health"],
    queryFn: ({ signal }) => get<Health>("/v1/health", {}, signal),
    refetchInterval: everyMs,
  });
  const fleet = health.data !== undefined && health.data.workers !== null;
  return (
    <>
      <header className="page-head">
        <h1>Overview</h1>
        <div className="row">
          <span className={`live ${activity.live ? "on" : ""}`}>{activity.live ? "live" : "connecting…"}</span>
          <CopyAs command={watchServer()} />
        </div>
      </header>
      <Loaded query={health}>{(state) => <Figures health={state} activity={activity} />}</Loaded>
      <Activity activity={activity} />
      {fleet && <Workers everyMs={everyMs} />}
      {health.data && <ServerLoad health={health.data} />}
      {health.data && <Pools pools={health.data.pools} fleet={fleet} />}
      <Troubles events={activity.troubles} />
      <Latencies everyMs={everyMs} />
    </>
  );
}

function Figures({ health, activity }: { health: Health; activity: ReturnType<typeof useActivity> }) {
  const sum = (list: number[]) => list.reduce((total, one) => total + one, 0);
  return (
    <>
      <dl className="figures">
        <Figure
          label="Server"
          value={<Badge state={health.ready ? (health.creates ? "ready" : "no new sessions") : "not ready"} />}
          note={`${health.worker_id} · ${health.version}`}
        />
        <Figure label="Sessions" value={count(health.active_sessions)} note={<Link to="/sessions">See all</Link>} />
        <Figure label="Creates" value={count(sum(activity.creates))} note="in 30 minutes" />
        <Figure label="Commands" value={count(sum(activity.execs))} note={`${count(sum(activity.failed))} failed`} />
        <Figure label="Calls now" value={count(health.calls_under_way)} note="being served" />
        {health.workers !== null && (
          <Figure label="Workers" value={count(health.workers)} note={<Link to="/fleet">See the fleet</Link>} />
        )}
      </dl>
      {health.problems.length > 0 && (
        <Panel title="Needs attention">
          <ul className="problems">
            {health.problems.map((problem) => (
              <li key={problem}>{visible(problem)}</li>
            ))}
          </ul>
        </Panel>
      )}
    </>
  );
}

function Activity({ activity }: { activity: ReturnType<typeof useActivity> }) {
  const { times, creates, execs, failed } = activity;
  const key = `${times[0]} ${creates.join()} ${execs.join()} ${failed.join()}`;
  const data = useMemo(() => [times, execs, creates, failed], [key]);
  return (
    <Panel title="Activity">
      <Chart
        title="Per minute"
        top={4}
        lines={[
          { label: "commands", tone: "first" },
          { label: "creates", tone: "second" },
          { label: "failed", tone: "third" },
        ]}
        data={data}
        value={(value) => count(Math.round(value))}
      />
    </Panel>
  );
}

function Troubles({ events }: { events: HistoryEvent[] }) {
  return (
    <Panel title="Losses and refusals">
      {events.length === 0 && <Empty>Nothing was lost or refused in the last 30 minutes.</Empty>}
      <ul className="timeline">
        {events.map((event) => (
          <li key={event.id}>
            <time title={clock(event.at)}>{ago(event.at)}</time>
            <b>{event.kind}</b>{" "}
            {event.session_id && <Link to={`/sessions/${encodeURIComponent(event.session_id)}`}>{event.session_id}</Link>}{" "}
            {visible(String(event.details.reason ?? ""))}
          </li>
        ))}
      </ul>
    </Panel>
  );
}
