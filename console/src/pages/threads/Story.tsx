import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { OURS } from "../../actions/execs";
import { threadHistory } from "../../actions/history";
import { address, get, segment } from "../../api/client";
import { MOST_SNAPSHOTS } from "../../api/snapshots";
import type { ExecStatus, HistoryEvent, Session, Snapshot } from "../../api/types";
import { useEvents } from "../../api/useEvents";
import { bytes, clock, count, ending, moment, seconds, visible, visibleLines } from "../../format";
import { Badge } from "../../parts/Badge";
import { CopyAs } from "../../parts/CopyAs";
import { described, toneOf } from "../../parts/EventList";
import { Empty } from "../../parts/Panel";
import { Link } from "../../router";
import { FilesAfter, FilesNow } from "./FileChanges";
import { bySteps, useSnapshots } from "./snapshots";
import { type Step, stepsOf } from "./steps";

const KEPT = 5_000;
const SHOWN = 50;
// How many of the first steps on the page show their output at once.
const OPENED = 5;

/** What happened in one conversation, step by step: what ran, what it said, which files changed. */
export function Story({ thread }: { thread: string }) {
  const { events, live } = useEvents(address("/v1/events", { thread }), KEPT);
  const [newestFirst, setNewestFirst] = useState(true);
  const steps = useMemo(() => (newestFirst ? stepsOf(events).reverse() : stepsOf(events)), [events, newestFirst]);
  const [shown, setShown] = useState(SHOWN);
  const sessions = [...new Set(events.map((event) => event.session_id).filter((id) => id !== null))];
  const files = useSnapshots(sessions);
  const taken = useMemo(() => bySteps(steps, files.snapshots), [steps, files.snapshots]);
  const last = sessions.at(-1);
  const ended = events.findLast((event) => event.session_id === last && event.kind.startsWith("session."))?.kind === "session.ended";
  return (
    <>
      <p className="crumbs">
        <Link to="/threads">Threads</Link>
      </p>
      <header className="page-head">
        <div>
          <h1 className="breaks">{visible(thread)}</h1>
          <p className="facts">
            {sessions.map((id) => (
              <Link key={id} to={`/sessions/${encodeURIComponent(id)}`} className="mono">
                {id}
              </Link>
            ))}
          </p>
        </div>
        <div className="row">
          <label>
            <span className="unseen">Order</span>
            <select className="small" value={newestFirst ? "newest" : "oldest"} onChange={(event) => setNewestFirst(event.target.value === "newest")}>
              <option value="newest">Newest first</option>
              <option value="oldest">Oldest first</option>
            </select>
          </label>
          <span className={`live ${live ? "on" : ""}`}>{live ? "live" : "connecting…"}</span>
          <CopyAs command={threadHistory(thread)} />
        </div>
      </header>
      {events.length === 0 && <Empty>No events for this thread. Check its id. The operator may have switched off the history.</Empty>}
      {files.cut && <p className="hint">Only the oldest {count(MOST_SNAPSHOTS)} snapshots of each session are shown.</p>}
      {last !== undefined && <FilesNow session={last} active={!ended} files={files} />}
      <ol className="story">
        {steps.slice(0, shown).map((step, index) => (
          <li key={step.id}>
            <StepCard step={step} opened={index < OPENED} files={files.snapshots} taken={taken.get(step.id) ?? []} />
          </li>
        ))}
      </ol>
      {steps.length > shown && (
        <button type="button" onClick={() => setShown(shown + SHOWN)}>
          Show more
        </button>
      )}
    </>
  );
}

interface StepProps {
  step: Step;
  opened: boolean;
  /** All snapshots of the conversation, and those that were taken after this step. */
  files: Snapshot[];
  taken: Snapshot[];
}

function StepCard({ step, opened, files, taken }: StepProps) {
  const [open, setOpen] = useState(opened);
  const { started, ended } = step;
  const details = ended?.details ?? {};
  return (
    <article className="step">
      {started && (
        <>
          <header className="row between">
            <span className="hint">
              {step.number} · <time title={moment(started.at)}>{clock(started.at)}</time>
              {started.exec_id?.startsWith(OURS) && " · run in the console"}
            </span>
            <span className="row">
              {ended && <span className="hint">{`${seconds(Number(details.duration_ms ?? 0) / 1000)}, ${bytes(Number(details.output_bytes ?? 0))}`}</span>}
              <Badge state={ended ? ending(String(details.verdict ?? "unseen"), Number(details.exit_code)) : "running"} />
            </span>
          </header>
          <pre className="ran" tabIndex={0}>
            {visibleLines(String(started.details.command ?? "(the command is not shown)"))}
          </pre>
          {open ? (
            <Seen event={started} />
          ) : (
            <button type="button" className="small" onClick={() => setOpen(true)}>
              Show output
            </button>
          )}
        </>
      )}
      {!started && <h2>Before the first command</h2>}
      {step.others.length > 0 && (
        <ul className="timeline">
          {step.others.map((event) => (
            <li key={event.id} className={toneOf(event)}>
              <time title={moment(event.at)}>{clock(event.at)}</time>
              <b>{event.kind}</b>
              <span className="breaks">{described(event)}</span>
            </li>
          ))}
        </ul>
      )}
      {taken.map((snapshot) => (
        <FilesAfter key={snapshot.id} snapshot={snapshot} all={files} />
      ))}
    </article>
  );
}

function Seen({ event }: { event: HistoryEvent }) {
  const status = useQuery({
    queryKey: ["exec", event.session_id, event.exec_id],
    queryFn: async ({ signal }) => {
      const path = `/v1/sessions/${segment(event.session_id ?? "")}`;
      const session = await get<Session>(path, {}, signal);
      // To ask for the output would wake it, and its new sandbox would know nothing of what ran before.
      if (session.state === "hibernated") return null;
      return get<ExecStatus>(`${path}/execs/${segment(event.exec_id ?? "")}`, {}, signal);
    },
    retry: false,
    refetchOnWindowFocus: false,
    refetchInterval: (query) => (query.state.data?.running ? 1_000 : false),
  });
  if (status.error || status.data === null) {
    return (
      <p className="hint">
        {status.data === null ? "The session has hibernated since, and its output is not kept." : "The output is no longer available."} If the session was recorded, see{" "}
        <Link to={`/sessions/${encodeURIComponent(event.session_id ?? "")}/recording`}>the recording</Link>.
      </p>
    );
  }
  const result = status.data?.result;
  if (!result) {
    return (
      <p className="hint">
        {status.data?.running ? (
          <>
            Still running. <Link to={`/sessions/${encodeURIComponent(event.session_id ?? "")}/execs`}>See its output live</Link>
          </>
        ) : (
          "Loading…"
        )}
      </p>
    );
  }
  return (
    <>
      <pre className="saw" tabIndex={0}>
        {visibleLines(result.output) || "(no output)"}
      </pre>
      {result.truncated && <p className="hint">Some of the output was left out: the model saw no more than this.</p>}
    </>
  );
}
