import type { Worker } from "../api/types";
import { bytes, count } from "../format";

/** How much of a worker is in use: its sessions, and what its machine has given to them. */
export function WorkerLoad({ worker }: { worker: Worker }) {
  const { machine } = worker;
  return (
    <div className="loads">
      <Load label="Sessions" used={worker.sessions} total={worker.sessions + worker.free} text={count} />
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
