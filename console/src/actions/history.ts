import type { Command } from "./action";
import { cli, onClient, pythonText } from "./words";

export function watchServer(): Command {
  return {
    what: "Watch the server",
    cli: cli("top"),
    python: onClient("print(client.health())"),
  };
}

export function sessionHistory(id: string): Command {
  return {
    what: "Read this session's history",
    cli: cli("history", id),
    python: onClient(`for event in client.events(session=${pythonText(id)}):`, "    print(event)"),
  };
}

export function threadHistory(thread: string): Command {
  return {
    what: "Read this thread's history",
    cli: cli("history", "--thread", thread),
    python: onClient(`for event in client.events(thread=${pythonText(thread)}):`, "    print(event)"),
  };
}

export function downloadRecording(id: string, file: string): Command {
  return {
    what: "Download the recording",
    cli: cli("recording", id, "--output", file),
    python: `from pathlib import Path\n${onClient(`Path(${pythonText(file)}).write_bytes(b"".join(client.recording(${pythonText(id)})))`)}`,
  };
}
