import { ApiError } from "./errors";
import { authorization } from "./key";

type Query = Record<string, string | number | boolean | undefined>;

interface Options {
  query?: Query;
  body?: unknown;
  raw?: BodyInit;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
}

/** One path segment from a name that anybody may have chosen. `.` and `..` would lead to another resource. */
export function segment(name: string): string {
  if (["", ".", ".."].includes(name)) throw new Error(`"${name}" is not a valid id or name.`);
  return encodeURIComponent(name);
}

export function address(path: string, query: Query = {}): string {
  const known = Object.entries(query).filter(([, value]) => value !== undefined);
  const text = new URLSearchParams(known.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

const listeners = new Set<() => void>();

/** Called when the server does not know the key any more. */
export function onUnauthorized(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export async function send(method: string, path: string, options: Options = {}): Promise<Response> {
  const headers: Record<string, string> = { ...authorization(), ...options.headers };
  let body = options.raw ?? null;
  if (options.body !== undefined) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(options.body);
  }
  const answer = await fetch(address(path, options.query), {
    method,
    headers,
    body,
    signal: options.signal ?? null,
    credentials: "omit",
    redirect: "error",
  });
  if (answer.ok) return answer;
  const problem: unknown = await answer.json().catch(() => ({}));
  const error = ApiError.of(answer.status, typeof problem === "object" && problem !== null ? problem : {});
  if (answer.status === 401) listeners.forEach((listener) => listener());
  throw error;
}

/** What an address has, whatever it is. */
export async function read(path: string, signal?: AbortSignal): Promise<Response> {
  return send("GET", path, { signal });
}

export async function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  return (await send("GET", path, { query, signal })).json() as Promise<T>;
}

export async function post<T>(path: string, body: unknown = {}, query: Query = {}): Promise<T> {
  return (await send("POST", path, { body, query })).json() as Promise<T>;
}

export async function patch<T>(path: string, body: unknown): Promise<T> {
  return (await send("PATCH", path, { body })).json() as Promise<T>;
}

export async function put<T>(path: string, body: unknown): Promise<T> {
  return (await send("PUT", path, { body })).json() as Promise<T>;
}

export async function remove(path: string, query: Query = {}): Promise<void> {
  await send("DELETE", path, { query });
}
