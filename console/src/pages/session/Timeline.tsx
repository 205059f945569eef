import { useMemo } from "react";
import { sessionHistory } from "../../actions/history";
import { segment } from "../../api/client";
import { useEvents } from "../../api/useEvents";
import { CopyAs } from "../../parts/CopyAs";
import { EventList } from "../../parts/EventList";
import { Empty, Panel } from "../../parts/Panel";

const KEPT = 1_000;

/** The latest events of a session, newest first, as they happen. */
export default function Timeline({ id }: { id: string }) {
  const { events, live } = useEvents(`/v1/sessions/${segment(id)}/history`, KEPT);
  const newestFirst = useMemo(() => [...events].reverse(), [events]);
  return (
    <Panel
      title="History"
      actions={
        <>
          <span className={`live ${live ? "on" : ""}`}>{live ? "live" : "connecting…"}</span>
          <CopyAs command={sessionHistory(id)} />
        </>
      }
    >
      {events.length === 0 && <Empty>Nothing has happened yet, or the server keeps no history.</Empty>}
      <EventList events={newestFirst} />
    </Panel>
  );
}
