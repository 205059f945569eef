import { useQuery } from "@tanstack/react-query";
import { get, segment } from "../../../api/client";
import type { Session, Usage } from "../../../api/types";
import { bytes, count } from "../../../format";
import { Chart, type Line } from "../../../parts/Chart";
import { Loaded } from "../../../parts/Loaded";
import { Panel } from "../../../parts/Panel";
import { columns, rates, type Sample, useSamples } from "./series";

const EVERY_MS = 2_000;
// Fewer than this look like noise if they fill the chart.
const FEW_PROCESSES = 10;
const LITTLE_BYTES = 1024 * 1024;

/** Processor, memory, processes and disk of the sandbox, live. */
export function Machine({ info }: { info: Session }) {
  const usage = useQuery({
    queryKey: ["usage", info.id],
    queryFn: ({ signal }) => get<Usage>(`/v1/sessions/${segment(info.id)}/usage`, {}, signal),
    refetchInterval: EVERY_MS,
    retry: false,
  });
  const now = usage.data;
  const at = now?.measured_at ?? 0;
  // Of the cores that it may use, not of the machine's.
  const processor = rates(useSamples(now ? [(100 * now.cpu_s) / now.cpus] : null, at));
  const held = useSamples(now ? [now.memory_bytes, now.processes, now.disk_bytes ?? 0] : null, at);
  return (
    <Panel title="Use">
      <Loaded query={usage}>
        {(state) => (
          <div className="plots">
            <Plot title={`Processor, of ${cores(state.cpus)}`} label="used" samples={processor} value={percent} top={100} />
            <Plot title={`Memory, of ${bytes(state.memory_limit_bytes)}`} label="used" samples={only(held, 0)} value={bytes} top={LITTLE_BYTES} />
            <Plot title={`Processes, of ${count(state.processes_limit)}`} label="running" samples={only(held, 1)} value={whole} top={FEW_PROCESSES} />
            {state.disk_bytes !== null && (
              <Plot title={diskTitle(state)} label="used" samples={only(held, 2)} value={bytes} top={LITTLE_BYTES} />
            )}
          </div>
        )}
      </Loaded>
    </Panel>
  );
}

interface PlotProps {
  title: string;
  label: string;
  samples: Sample[];
  value: (value: number) => string;
  top: number;
}

function Plot({ title, label, samples, value, top }: PlotProps) {
  const line: Line = { label, tone: "first" };
  return <Chart title={title} lines={[line]} data={columns(samples, 1)} value={value} binary={value === bytes} top={top} height={110} />;
}

function only(samples: Sample[], index: number): Sample[] {
  return samples.map(({ at, values }) => ({ at, values: [values[index] ?? 0] }));
}

function percent(value: number): string {
  return `${Math.round(value)} %`;
}

function whole(value: number): string {
  return count(Math.round(value));
}

function cores(cpus: number): string {
  return cpus === 1 ? "1 core" : `${cpus} cores`;
}

function diskTitle(usage: Usage): string {
  return usage.disk_limit_bytes === null ? "Files" : `Files, of ${bytes(usage.disk_limit_bytes)}`;
}
