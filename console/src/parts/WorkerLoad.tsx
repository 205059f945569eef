import type { MachineUse } from "../api/fleetTypes";
import { bytes, count } from "../format";

interface Props {
  sessions: number;
  free: number;
  machine: MachineUse | null;
}

/** How much of a worker is in use: its sessions, and what its machine has given to them. */
export function WorkerLoad({ sessions, free, machine }: Props) {
  return (
    <div className="loads">
      <Load label="Sessions" used={sessions} total={sessions + free} text={count} />
      {machine && (
        <>
          <Load label="Memory" used={machine.given.memory_bytes} total={machine.total.memory_bytes} text={bytes} />
          <Load label="Processors" used={machine.given.cpus} total={machine.total.cpus} text={(value) => value.toFixed(1)} />
        </>
      )}
    </div>
  );
}

function Load({ label, used, total, text }: { label: string; used: number; total: number; text: (value: number) => string }) {
  const words = `${text(used)} of ${text(total)}`;
  return (
    <div className="share">
      <meter min={0} max={Math.max(total, 1)} high={total * 0.9} value={used} aria-label={`${label}: ${words}`} />
      <span>
        {label}: {words}
      </span>
    </div>
  );
}
