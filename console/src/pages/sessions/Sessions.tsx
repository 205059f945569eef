import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { createSession, listSessions } from "../../actions/sessions";
import { get, segment } from "../../api/client";
import { messageOf } from "../../api/errors";
import type { Environment } from "../../api/adminTypes";
import type { Session } from "../../api/types";
import { MOST_SESSIONS, useAllSessions } from "../../api/useAllSessions";
import { LIVES, useFresh } from "../../api/useFresh";
import { count, plural } from "../../format";
import { CopyAs } from "../../parts/CopyAs";
import { Dialog } from "../../parts/Dialog";
import { Failure } from "../../parts/Failure";
import { Empty } from "../../parts/Panel";
import { go, replaceQuery, usePlace } from "../../router";
import { SessionTable } from "./SessionTable";

const SHOWN = 50;
const SESSION_ID = /^ses_[0-9a-f]{32}$/;

export function Sessions() {
  const { query } = usePlace();
  const [shown, setShown] = useState(SHOWN);
  const filter = (name: string) => query.get(name) ?? "";
  const everyMs = useFresh(["sessions"], LIVES);
  const { sessions, query: pages, loading, cut } = useAllSessions<Session>("sessions", "/v1/sessions", {}, everyMs);
  const other = useOther(cut ? filter("q").trim() : "");
  const all = useMemo(() => {
    const known = new Set(sessions.map((session) => session.id));
    return [...sessions, ...other.filter((one) => !known.has(one.id))].reverse();
  }, [sessions, other]);
  const found = useMemo(() => all.filter((session) => matches(session, query)), [all, query]);
  const values = (of: (session: Session) => string) => [...new Set(all.map(of))].sort();
  const set = (name: string, value: string) => {
    const changed = new URLSearchParams(query);
    if (value) changed.set(name, value);
    else changed.delete(name);
    replaceQuery(changed);
    setShown(SHOWN);
  };
  const tenants = values((session) => session.tenant);
  return (
    <>
      <header className="page-head">
        <h1>Sessions</h1>
        <div className="row">
          <CopyAs command={listSessions()} />
          <NewSession />
        </div>
      </header>
      <form className="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <label className="grow">
          <span className="unseen">Search</span>
          <input
            type="search"
            placeholder="Search by id, thread or metadata"
            value={filter("q")}
            onChange={(event) => set("q", event.target.value)}
          />
        </label>
        <Choice label="State" all="Any state" values={values((session) => session.state)} value={filter("state")} set={(value) => set("state", value)} />
        <Choice label="Environment" all="Any environment" values={values((session) => session.environment)} value={filter("environment")} set={(value) => set("environment", value)} />
        {tenants.length > 1 && (
          <Choice label="Tenant" all="Any tenant" values={tenants} value={filter("tenant")} set={(value) => set("tenant", value)} />
        )}
      </form>
      {pages.error && <Failure message={messageOf(pages.error)} />}
      {pages.isSuccess && !loading && found.length === 0 && (
        <Empty>{all.length === 0 ? "No sessions yet. Programs create them; so can you." : "No session matches."}</Empty>
      )}
      {found.length > 0 && <SessionTable sessions={found.slice(0, shown)} />}
      <footer className="row between">
        <p className="hint" role="status">
          {pages.isSuccess && `${plural(found.length, "session")}${loading ? " so far" : ""}`}
          {cut && `. These are of the oldest ${count(MOST_SESSIONS)} sessions. To find another one, enter its whole id or thread.`}
        </p>
        {found.length > shown && (
          <button type="button" onClick={() => setShown(shown + SHOWN)}>
            Show more
          </button>
        )}
      </footer>
    </>
  );
}

const NONE: Session[] = [];

/** Sessions that a list which is cut may lack: the server finds those of a whole id or thread. */
function useOther(text: string): Session[] {
  const found = useQuery({
    queryKey: ["session of", text],
    queryFn: async ({ signal }) =>
      SESSION_ID.test(text)
        ? [await get<Session>(`/v1/sessions/${segment(text)}`, {}, signal)]
        : (await get<{ sessions: Session[] }>("/v1/sessions", { thread: text }, signal)).sessions,
    enabled: text !== "",
    retry: false,
  });
  return found.data ?? NONE;
}

function matches(session: Session, query: URLSearchParams): boolean {
  const [state, environment, tenant] = [query.get("state"), query.get("environment"), query.get("tenant")];
  if (state && session.state !== state) return false;
  if (environment && session.environment !== environment) return false;
  if (tenant && session.tenant !== tenant) return false;
  const text = (query.get("q") ?? "").trim().toLowerCase();
  if (!text) return true;
  const about = [session.id, session.thread ?? "", ...Object.entries(session.metadata).flat()];
  return about.some((one) => one.toLowerCase().includes(text));
}

interface ChoiceProps {
  label: string;
  all: string;
  values: string[];
  value: string;
  set: (value: string) => void;
}

function Choice({ label, all, values, value, set }: ChoiceProps) {
  return (
    <label>
      <span className="unseen">{label}</span>
      <select value={value} onChange={(event) => set(event.target.value)}>
        <option value="">{all}</option>
        {[...new Set([...values, ...(value ? [value] : [])])].map((one) => (
          <option key={one}>{one}</option>
        ))}
      </select>
    </label>
  );
}

function NewSession() {
  const queries = useQueryClient();
  const [open, setOpen] = useState(false);
  const [environment, setEnvironment] = useState("");
  const [thread, setThread] = useState("");
  const [record, setRecord] = useState(false);
  const [failed, setFailed] = useState("");
  const environments = useQuery({
    queryKey: ["environments"],
    queryFn: () => get<{ environments: Environment[] }>("/v1/environments"),
    enabled: open,
  });
  const action = createSession(environment, thread, record);
  const create = async () => {
    setFailed("");
    try {
      const made = await action.run();
      void queries.invalidateQueries({ queryKey: ["sessions"] });
      go(`/sessions/${encodeURIComponent(made.id)}/terminal`);
    } catch (error) {
      setFailed(messageOf(error));
    }
  };
  return (
    <>
      <button type="button" className="primary" onClick={() => setOpen(true)}>
        New session
      </button>
      {open && (
        <Dialog title="New session" close={() => setOpen(false)}>
          <form
            className="fields"
            onSubmit={(event) => {
              event.preventDefault();
              void create();
            }}
          >
            <label>
              Environment
              <select value={environment} onChange={(event) => setEnvironment(event.target.value)}>
                <option value="">The default one</option>
                {environments.data?.environments.map((one) => (
                  <option key={one.name} value={one.name}>
                    {one.name}
                    {one.readiness.length > 0 && one.readiness.every(({ state }) => state === "missing") && " (image not built)"}
                  </option>
                ))}
              </select>
            </label>
            <label>
              Thread
              <input value={thread} onChange={(event) => setThread(event.target.value)} placeholder="Your id for a conversation, or none" />
            </label>
            <label className="check">
              <input type="checkbox" checked={record} onChange={(event) => setRecord(event.target.checked)} /> Record
              what commands write
            </label>
            {failed && <Failure message={failed} />}
            <footer className="row end">
              <CopyAs command={action} />
              <button type="submit" className="primary">
                Create
              </button>
            </footer>
          </form>
        </Dialog>
      )}
    </>
  );
}
