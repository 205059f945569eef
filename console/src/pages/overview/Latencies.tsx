import { useQuery } from "@tanstack/react-query";
import { read } from "../../api/client";
import { count, seconds } from "../../format";
import { Loaded } from "../../parts/Loaded";
import { Panel } from "../../parts/Panel";
import { figuresOf } from "./metrics";

export function Latencies({ everyMs }: { everyMs: number }) {
  const metrics = useQuery({
    queryKey: ["metrics"],
    queryFn: async ({ signal }) => figuresOf(await (await read("/metrics", signal)).text()),
    refetchInterval: everyMs,
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
