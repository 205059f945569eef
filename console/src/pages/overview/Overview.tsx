import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { watchServer } from "../../actions/history";
import { get, read } from "../../api/client";
import type { Health, HistoryEvent } from "../../api/types";
import { ago, clock, count, seconds, visible } from "../../format";
import { Badge } from "../../parts/Badge";
import { Chart } from "../../parts/Chart";
import { CopyAs } from "../../parts/CopyAs";
import { Loaded } from "../../parts/Loaded";
import { Empty, Figure, Panel } from "../../parts/Panel";
import { Link } from "../../router";
import { figuresOf } from "./metrics";
import { Pools } from "./Pools";
import { useActivity } from "./useActivity";

export function Overview() {
  const activity = useActivity();
  const health = useQuery({
    queryKey: ["health"],
    queryFn: ({ signal }) => get<Health>("/v1/health", {}, signal),
    refetchInterval: 3_000,
  });
  const sum = (list: number[]) => list.reduce((total, one) => total + one, 0);
  return (
    <>
      <header className="page-head">
        <h1>Overview</h1>
        <div className="row">
          <span className={`live ${activity.live ? "on" : ""}`}>{activity.live ? "live" : "connecting…"}</span>
          <CopyAs command={watchServer()} />
        </div>
      </header>
      <Loaded query={health}>
        {(state) => (
          <>
            <dl className="figures">
              <Figure
                label="Server"
                value={<Badge state={state.ready ? (state.creates ? "ready" : "no new sessions") : "not ready"} />}
                note={`${state.worker_id} · ${state.version}`}
              />
              <Figure label="Sessions" value={count(state.active_sessions)} note={<Link to="/sessions">See all</Link>} />
              <Figure label="Creates" value={count(sum(activity.creates))} note="in 30 minutes" />
              <Figure label="Commands" value={count(sum(activity.execs))} note={`${count(sum(activity.failed))} failed`} />
              <Figure label="Calls now" value={count(state.calls_under_way)} note="being served" />
              {state.workers !== null && (
                <Figure label="Workers" value={count(state.workers)} note={<Link to="/fleet">See the fleet</Link>} />
              )}
            </dl>
            {state.problems.length > 0 && (
              <Panel title="Needs attention">
                <ul className="problems">
                  {state.problems.map((problem) => (
                    <li key={problem}>{visible(problem)}</li>
                  ))}
                </ul>
              </Panel>
            )}
          </>
        )}
      </Loaded>
      <Activity activity={activity} />
      {health.data && <Pools pools={health.data.pools} />}
      <Troubles events={activity.troubles} />
      <Latencies />
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

function Latencies() {
  const metrics = useQuery({
    queryKey: ["metrics"],
    queryFn: async ({ signal }) => figuresOf(await (await read("/metrics", signal)).text()),
    refetchInterval: 5_000,
  });
  return (
    <Panel title="API latency">
      <Loaded query={metrics}>
        {({ latencies, failures }) => (
          <>
            <div className="table" tabIndex={0} role="region" aria-label="Latencies">
              <table>
                <thead>
                  <tr>
                    <th>Route</th>
                    <th className="number wide-only">Calls</th>
                    <th className="number">p50</th>
                    <th className="number wide-only">p95</th>
                    <th className="number">p99</th>
                  </tr>
                </thead>
                <tbody>
                  {latencies.slice(0, 8).map((one) => (
                    <tr key={one.route}>
                      <td className="mono route">{one.route}</td>
                      <td className="number wide-only">{count(one.calls)}</td>
                      <td className="number">{seconds(one.p50)}</td>
                      <td className="number wide-only">{seconds(one.p95)}</td>
                      <td className="number">{seconds(one.p99)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
            <p className="hint">
              {failures.length === 0
                ? "No call has failed since the server started."
                : `Errors since the start: ${failures.map((one) => `${one.status} × ${count(one.calls)}`).join(", ")}`}
            </p>
          </>
        )}
      </Loaded>
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
