// Words of commands to copy, for sh, bash, zsh and fish. Names in them are hostile: a quote must not end a word, and a
// control character must not end a paste.
import { hasUnseen } from "../format";

export function shellWord(text: string): string {
  // zsh reads =ls as the path of a program, and fish %self as a number.
  if (/^(?![=%])[A-Za-z0-9_@%+=:,./-]+$/.test(text)) return text;
  // Not inside single quotes: there, a backslash is itself in sh, and hides what follows it in fish.
  if (!hasUnseen(text)) return `'${text.replace(/['\\]/g, (one) => (one === "'" ? `'"'"'` : `'"\\\\"'`))}'`;
  // fish has no such words, and runs nothing of a line with one. A plain sh has none either, and reads a word in single
  // quotes behind a dollar, so no quote may be inside.
  const escaped = text.replaceAll("\\", "\\\\").replaceAll("'", "\\x27");
  // As bytes: bash reads \u as a character only where the locale has it.
  return `$'${withoutUnseen(escaped, (one) => Array.from(new TextEncoder().encode(one), (byte) => `\\x${hex(byte, 2)}`).join(""))}'`;
}

export function pythonText(text: string): string {
  const escaped = text.replaceAll("\\", "\\\\").replaceAll('"', '\\"');
  return `"${withoutUnseen(escaped, (one) => `\\U${hex(one.codePointAt(0) ?? 0, 8)}`)}"`;
}

function withoutUnseen(text: string, escape: (one: string) => string): string {
  return Array.from(text, (one) => (hasUnseen(one) ? escape(one) : one)).join("");
}

function hex(code: number, digits: number): string {
  return code.toString(16).padStart(digits, "0");
}

export function cli(...words: (string | number)[]): string {
  return ["sandlot", ...words.map((word) => shellWord(String(word)))].join(" ");
}

/** An option with a value, or nothing if there is none. */
export function option(name: string, value: string | null): string[] {
  return value ? [name, value] : [];
}

/** A call's arguments, without those that are not given. */
export function given(...words: (string | false | null)[]): string {
  return words.filter(Boolean).join(", ");
}

export function onClient(...lines: string[]): string {
  return `from sandlot import Client\n\nwith Client(${pythonText(location.origin)}) as client:\n${lines.map((line) => `    ${line}`).join("\n")}`;
}

/** Statements about one session, with what they need before them. */
export function onSession(id: string, ...lines: string[]): string {
  return onClient(`session = client.get(${pythonText(id)})`, ...lines);
}
