import { get, post, remove, segment, send } from "./client";
import type { FileEntry } from "./types";

/** What a page shows or edits of a file. Larger ones are only downloaded. */
export const MAX_SHOWN_BYTES = 4 * 1024 * 1024;

function base(id: string): string {
  return `/v1/sessions/${segment(id)}/files`;
}

export function listFolder(id: string, path: string, after: string | undefined, signal?: AbortSignal) {
  return get<{ entries: FileEntry[]; next: string | null }>(base(id), { path, after, limit: 500 }, signal);
}

export function stat(id: string, path: string): Promise<FileEntry> {
  return get<FileEntry>(`${base(id)}/stat`, { path });
}

export async function readFile(id: string, path: string): Promise<Blob> {
  return (await send("GET", `${base(id)}/content`, { query: { path } })).blob();
}

/** `replace` false: fails if there is such a file. */
export async function writeFile(id: string, path: string, content: Blob | string, replace = true): Promise<FileEntry> {
  const raw = typeof content === "string" ? new Blob([content]) : content;
  const headers = { "Content-Type": "application/octet-stream" };
  const query = { path, exclusive: !replace };
  return (await send("PUT", `${base(id)}/content`, { query, raw, headers })).json() as Promise<FileEntry>;
}

export function makeFolder(id: string, path: string): Promise<FileEntry> {
  return post<FileEntry>(`${base(id)}/mkdir`, { path });
}

export function removeFile(id: string, path: string): Promise<void> {
  return remove(base(id), { path, recursive: true });
}

/** Save a blob under a name, which the browser cleans of what no file name may have. */
export function download(content: Blob, name: string): void {
  // As bytes: whatever the sandbox says it is, the browser opens nothing of it in our origin.
  const url = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
