const TONES: Record<string, string> = {
  active: "good",
  alive: "good",
  ok: "good",
  running: "info",
  ready: "good",
  lost: "bad",
  gone: "bad",
  revoked: "idle",
  expired: "idle",
  unresponsive: "warn",
  late: "warn",
  failing: "warn",
  preparing: "info",
  missing: "warn",
  unknown: "idle",
  draining: "warn",
  hibernated: "info",
  ended: "idle",
  disabled: "idle",
};

/** A state, by its word and not by its colour alone. */
export function Badge({ state }: { state: string }) {
  return <span className={`badge ${TONES[state] ?? (state === "" ? "idle" : "warn")}`}>{state || "unknown"}</span>;
}
