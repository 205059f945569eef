// Commands to copy. Names in them are hostile: a quote must not end a word, and a control character must not end a
// paste.
import { hasUnseen } from "./format";

export interface Command {
  cli: string;
  python: string;
}

export function shellWord(text: string): string {
  if (/^[A-Za-z0-9_@%+=:,./-]+$/.test(text)) return text;
  if (!hasUnseen(text)) return `'${text.replaceAll("'", `'\\''`)}'`;
  const escaped = text.replaceAll("\\", "\\\\").replaceAll("'", "\\'");
  return `$'${withoutUnseen(escaped, (code) => (code < 0x80 ? `\\x${hex(code, 2)}` : `\\U${hex(code, 8)}`))}'`;
}

export function pythonText(text: string): string {
  const escaped = text.replaceAll("\\", "\\\\").replaceAll('"', '\\"');
  return `"${withoutUnseen(escaped, (code) => `\\U${hex(code, 8)}`)}"`;
}

function withoutUnseen(text: string, escape: (code: number) => string): string {
  return Array.from(text, (one) => (hasUnseen(one) ? escape(one.codePointAt(0) ?? 0) : one)).join("");
}

function hex(code: number, digits: number): string {
  return code.toString(16).padStart(digits, "0");
}

export function cli(...words: (string | number)[]): string {
  return ["sandlot", ...words.map((word) => shellWord(String(word)))].join(" ");
}

/** A statement about one session, with what it needs before it. */
export function onSession(id: string, statement: string): string {
  return `from sandlot import Client\n\nwith Client(${pythonText(location.origin)}) as client:\n    session = client.get(${pythonText(id)})\n    ${statement}`;
}

export function onClient(statement: string): string {
  return `from sandlot import Client\n\nwith Client(${pythonText(location.origin)}) as client:\n    ${statement}`;
}
