import { useState } from "react";
import type { HistoryEvent } from "../api/types";
import { bytes, clock, ending, moment, seconds, visible } from "../format";

const SHOWN = 100;

export function EventList({ events }: { events: HistoryEvent[] }) {
  const [shown, setShown] = useState(SHOWN);
  return (
    <>
      <ol className="timeline">
        {events.slice(0, shown).map((event) => (
          <li key={event.id} className={toneOf(event)}>
            <time title={moment(event.at)}>{clock(event.at)}</time>
            <b>{event.kind}</b>
            <span className="breaks">{described(event)}</span>
          </li>
        ))}
      </ol>
      {events.length > shown && (
        <button type="button" onClick={() => setShown(shown + SHOWN)}>
          Show more
        </button>
      )}
    </>
  );
}

export function toneOf(event: HistoryEvent): string {
  if (event.kind === "session.lost" || event.kind === "network.denied") return "bad";
  if (event.kind === "exec.ended") return (event.details.verdict ?? "ok") === "ok" ? "good" : "bad";
  return "";
}

/** An event's details in a few words. All of them are text of somebody else. */
export function described(event: HistoryEvent): string {
  const { command, verdict, exit_code, duration_ms, output_bytes, path, bytes: size, generation, ...rest } = event.details;
  const words: string[] = [];
  if (command !== undefined) words.push(visible(String(command)));
  if (verdict !== undefined) {
    words.push(`${ending(String(verdict), Number(exit_code))}, ${seconds(Number(duration_ms) / 1000)}, ${bytes(Number(output_bytes))} of output`);
  } else {
    for (const [name, value] of Object.entries(rest)) words.push(`${name.replaceAll("_", " ")} ${visible(String(value))}`);
  }
  if (size !== undefined) words.push(bytes(Number(size)));
  // The first sandbox is no news.
  if (generation !== undefined && generation !== 1) words.push(`generation ${generation}`);
  if (path !== undefined) words.unshift(visible(String(path)));
  return words.join(" · ");
}
