export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}

export function seconds(value: number): string {
  if (value < 1) return `${Math.max(0, Math.round(value * 1000))} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  if (value < 86_400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86_400)} d ${Math.floor((value % 86_400) / 3600)} h`;
}

export function ago(at: number, now: number = Date.now() / 1000): string {
  return now - at < 2 ? "now" : `${seconds(now - at)} ago`;
}

export function until(at: number | null, now: number = Date.now() / 1000): string {
  if (at === null) return "never";
  return at <= now ? "due" : `in ${seconds(at - now)}`;
}

/** What a person calls the end of a command: how it failed, or its exit code. */
export function ending(verdict: string, code: number): string {
  return verdict === "nonzero" ? `exit ${code}` : verdict.replaceAll("_", " ");
}

export function clock(at: number): string {
  return new Date(at * 1000).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

export function minute(at: number): string {
  return new Date(at * 1000).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
}

export function moment(at: number): string {
  return new Date(at * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

export function count(value: number): string {
  return value.toLocaleString("en-US");
}

export function plural(value: number, one: string, many: string = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

// What could end a line, move a cursor or turn text around in whatever a name is pasted into.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/u;
const EACH_UNSEEN = new RegExp(UNSEEN, "gu");

/** A name from a sandbox for a line of text, with what cannot be seen made visible. */
export function visible(text: string): string {
  return text.replaceAll("\n", "⏎ ").replace(EACH_UNSEEN, (one) => `\\u${one.codePointAt(0)?.toString(16).padStart(4, "0")}`);
}

const COLOURS = /\u001b\[[0-9;:]*m/g;

/** Text of several lines from a sandbox, without its colours, with everything else that cannot be seen made visible. */
export function visibleLines(text: string): string {
  return text.replaceAll("\r\n", "\n").replace(COLOURS, "").replace(EACH_UNSEEN, (one) => (one === "\n" || one === "\t" ? one : visible(one)));
}

export function hasUnseen(text: string): boolean {
  return UNSEEN.test(text);
}
