// Percentiles from the server's own histograms (/metrics, Prometheus text).

export interface Latency {
  route: string;
  calls: number;
  p50: number;
  p95: number;
  p99: number;
}

export interface Figures {
  latencies: Latency[];
  failures: { status: string; calls: number }[];
}

const LINE = /^(\w+)\{(.*)\} (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

export function figuresOf(text: string): Figures {
  const buckets = new Map<string, [number, number][]>();
  const failures = new Map<string, number>();
  for (const line of text.split("\n")) {
    const [, name, labelText, valueText] = LINE.exec(line) ?? [];
    if (name === undefined || labelText === undefined) continue;
    const labels = Object.fromEntries([...labelText.matchAll(LABEL)].map(([, label, value]) => [label, value]));
    const value = Number(valueText);
    if (name === "sandlot_http_request_seconds_bucket") {
      const route = `${labels.method} ${labels.route}`;
      const edge = labels.le === "+Inf" ? Infinity : Number(labels.le);
      buckets.set(route, [...(buckets.get(route) ?? []), [edge, value]]);
    }
    if (name === "sandlot_http_requests_total" && Number(labels.status) >= 400) {
      const status = labels.status ?? "";
      failures.set(status, (failures.get(status) ?? 0) + value);
    }
  }
  const latencies = [...buckets].map(([route, edges]) => ({
    route,
    calls: edges.at(-1)?.[1] ?? 0,
    p50: quantile(edges, 0.5),
    p95: quantile(edges, 0.95),
    p99: quantile(edges, 0.99),
  }));
  return {
    latencies: latencies.filter((one) => one.calls > 0).sort((one, other) => other.calls - one.calls),
    failures: [...failures].map(([status, calls]) => ({ status, calls })).sort((a, b) => b.calls - a.calls),
  };
}

/** Within the bucket that holds the quantile, as Prometheus's histogram_quantile does. */
function quantile(edges: [number, number][], share: number): number {
  const wanted = (edges.at(-1)?.[1] ?? 0) * share;
  let below = 0;
  let from = 0;
  for (const [edge, total] of edges) {
    if (total >= wanted && total > below) {
      return edge === Infinity ? from : from + ((edge - from) * (wanted - below)) / (total - below);
    }
    below = total;
    from = edge;
  }
  return from;
}
