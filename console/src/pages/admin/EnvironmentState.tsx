import type { Readiness } from "../../api/adminTypes";
import { moment, plural, seconds, visible } from "../../format";
import { Badge } from "../../parts/Badge";

const TEXTS: Partial<Record<Readiness["state"], string>> = {
  preparing: "Its first sandbox is being made.",
  unknown: "No sandbox was made yet.",
};

/** Whether each server can make sandboxes of an environment, and why not. */
export function EnvironmentState({ servers }: { servers: Readiness[] }) {
  if (servers.length === 0) return <p className="hint">To see its state, use a key with the scope metrics:read.</p>;
  const ready = servers.filter((one) => one.state === "ready");
  const others = servers.filter((one) => one.state !== "ready");
  const several = servers.length > 1;
  return (
    <ul className="states">
      {ready.length > 0 && (
        <li className="row">
          <Badge state="ready" />
          <span className="hint">{readyText(ready, several)}</span>
        </li>
      )}
      {others.map((one) => (
        <li key={one.server}>
          <p className="row">
            <Badge state={one.state} />
            {several && <b>{visible(one.server)}</b>}
            {one.since !== null && (
              <time className="hint" title={`since ${moment(one.since)}`}>
                for {seconds(Date.now() / 1000 - one.since)}
              </time>
            )}
          </p>
          <p className={one.state === "failing" ? "failure" : "hint breaks"}>{visible(one.reason) || TEXTS[one.state]}</p>
        </li>
      ))}
    </ul>
  );
}

/** Servers that are ready need no attention: how many they are is enough. */
function readyText(ready: Readiness[], several: boolean): string {
  const warm = ready.reduce((sum, one) => sum + one.warm, 0);
  return `${several ? `on ${plural(ready.length, "worker")}, ` : ""}${warm} warm`;
}
