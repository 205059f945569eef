import type { Session } from "../../api/types";
import { moment, visible } from "../../format";

// A sandbox that was given up on purpose, as the server words it.
const PLANNED = /^(it hibernated|its files were replaced)/;
const TONES: Record<string, string> = { lost: "bad", hibernated: "calm" };

function titleOf(state: string, generation: number, planned: boolean): string {
  if (state === "lost") return "The sandbox is lost";
  // Nothing went wrong: its next use gives the session another sandbox.
  if (state === "hibernated") return "The session is hibernated until its next use";
  return `Generation ${generation} ${planned ? "ended" : "was lost"}`;
}

export function Loss({ info }: { info: Session }) {
  const loss = info.loss;
  if (!loss) return null;
  const planned = PLANNED.test(loss.reason);
  return (
    <section className={`loss ${planned ? "calm" : (TONES[info.state] ?? "")}`} role={info.state === "lost" ? "alert" : "note"}>
      <h2>{titleOf(info.state, loss.generation, planned)}</h2>
      <p>
        {visible(loss.reason)} <time>({moment(loss.at)})</time>
      </p>
      <dl className="pairs">
        <dt>{planned ? "Ended" : "Lost"}</dt>
        <dd>{loss.lost.map(visible).join(", ") || "nothing"}</dd>
        <dt>Kept</dt>
        <dd>{loss.kept.map(visible).join(", ") || "nothing"}</dd>
      </dl>
    </section>
  );
}
