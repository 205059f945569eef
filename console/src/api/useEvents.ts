import { useEffect, useState } from "react";
import type { HistoryEvent } from "./types";
import { follow } from "./streams";

/** Between two drawings of what has arrived. The first one does not wait. */
const DRAW_MS = 250;

/** The latest events of a stream, oldest first, as they arrive. */
export function useEvents(path: string, kept: number): { events: HistoryEvent[]; live: boolean } {
  const [events, setEvents] = useState<HistoryEvent[]>([]);
  const [live, setLive] = useState(false);
  useEffect(() => {
    const stop = new AbortController();
    let arrived: HistoryEvent[] = [];
    let timer = 0;
    let wait = 0;
    setEvents([]);
    const draw = () => {
      const added = arrived;
      arrived = [];
      timer = 0;
      wait = DRAW_MS;
      setEvents((known) => [...known, ...added].slice(-kept));
    };
    const take = (event: HistoryEvent) => {
      arrived.push(event);
      if (arrived.length >= 2 * kept) arrived = arrived.slice(-kept);
      timer ||= window.setTimeout(draw, wait);
    };
    void follow(path, (message) => message.event === "event" && take(message.data as HistoryEvent), setLive, stop.signal);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [path, kept]);
  return { events, live };
}
