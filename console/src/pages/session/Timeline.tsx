import { useEffect, useState } from "react";
import { segment } from "../../api/client";
import { follow } from "../../api/streams";
import type { HistoryEvent } from "../../api/types";
import { EventList } from "../../parts/EventList";
import { Empty, Panel } from "../../parts/Panel";

const KEPT = 1_000;
const DRAW_MS = 200;

export default function Timeline({ id }: { id: string }) {
  const { events, live } = useHistory(id);
  return (
    <Panel title="History" actions={<span className={`live ${live ? "on" : ""}`}>{live ? "live" : "connecting…"}</span>}>
      {events.length === 0 && <Empty>Nothing has happened yet, or the server keeps no history.</Empty>}
      <EventList events={events} />
    </Panel>
  );
}

/** The latest events of a session, newest first, as they happen. */
function useHistory(id: string): { events: HistoryEvent[]; live: boolean } {
  const [events, setEvents] = useState<HistoryEvent[]>([]);
  const [live, setLive] = useState(false);
  useEffect(() => {
    const stop = new AbortController();
    let arrived: HistoryEvent[] = [];
    setEvents([]);
    const draw = () => {
      if (arrived.length === 0) return;
      const added = arrived.reverse();
      arrived = [];
      setEvents((known) => [...added, ...known].slice(0, KEPT));
    };
    const timer = setInterval(draw, DRAW_MS);
    const take = (event: HistoryEvent) => {
      arrived.push(event);
      if (arrived.length > KEPT) arrived.shift();
    };
    void follow(
      `/v1/sessions/${segment(id)}/history`,
      (message) => message.event === "event" && take(message.data as HistoryEvent),
      setLive,
      stop.signal,
    );
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [id]);
  return { events, live };
}
