import { send } from "./client";

export interface Message {
  id: string;
  event: string;
  data: unknown;
}

// An event has a bound on the server too; this one keeps a broken stream from filling the tab.
const MAX_EVENT_CHARACTERS = 8 * 1024 * 1024;

/** Server-sent events by fetch, because EventSource cannot send the key in a header. */
export async function* events(path: string, after: string, signal: AbortSignal, onOpen: () => void): AsyncGenerator<Message> {
  const headers: Record<string, string> = { Accept: "text/event-stream" };
  if (after) headers["Last-Event-ID"] = after;
  const answer = await send("GET", path, { headers, signal });
  if (!answer.body) return;
  onOpen();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    if (rest.length > MAX_EVENT_CHARACTERS) throw new Error("The server sent an event that is too long.");
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const message = parsed(block);
      if (message) yield message;
    }
  }
}

function parsed(block: string): Message | null {
  const message = { id: "", event: "message", data: "" };
  for (const line of block.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const [name, value] = [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")];
    if (name === "id") message.id = value;
    if (name === "event") message.event = value;
    if (name === "data") message.data += value;
  }
  return message.data ? { ...message, data: JSON.parse(message.data) as unknown } : null;
}

/** Follow a stream until the signal; after a broken connection, go on behind the last event. */
export async function follow(
  path: string,
  onMessage: (message: Message) => void,
  onState: (live: boolean) => void,
  signal: AbortSignal,
): Promise<void> {
  let after = "";
  let wait = 500;
  while (!signal.aborted) {
    try {
      for await (const message of events(path, after, signal, () => onState(true))) {
        wait = 500;
        if (message.id) after = message.id;
        onMessage(message);
      }
    } catch {
      if (signal.aborted) return;
    }
    onState(false);
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, 10_000);
  }
}
