import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import type { Action } from "../../../actions/action";
import { allowHost, exposePort, listPorts, revokeHost, showNetwork, unexposePort } from "../../../actions/network";
import { get, segment } from "../../../api/client";
import { messageOf } from "../../../api/errors";
import type { Denied, Network, Port } from "../../../api/types";
import { until, visible } from "../../../format";
import { ActionButton } from "../../../parts/ActionButton";
import { Confirm } from "../../../parts/Confirm";
import { CopyAs } from "../../../parts/CopyAs";
import { Failure } from "../../../parts/Failure";
import { Loaded } from "../../../parts/Loaded";
import { Empty, Panel } from "../../../parts/Panel";

export default function NetworkTab({ id }: { id: string }) {
  const queries = useQueryClient();
  const path = `/v1/sessions/${segment(id)}/network`;
  const [failed, setFailed] = useState("");
  const network = useQuery({
    queryKey: ["network", id],
    queryFn: ({ signal }) => get<Network>(path, {}, signal),
    refetchInterval: 2_000,
  });
  const change = async (action: Action<Network>) => {
    setFailed("");
    try {
      queries.setQueryData(["network", id], await action.run());
    } catch (error) {
      setFailed(messageOf(error));
    }
  };
  return (
    <>
      {failed && <Failure message={failed} />}
      <Loaded query={network}>
        {(now) => (
          <>
            <Panel title="Denied connections" actions={<CopyAs command={showNetwork(id)} />}>
              {now.denied.length === 0 && <Empty>Nothing was denied.</Empty>}
              <ul className="rows">
                {now.denied.toReversed().map((denied, index) => (
                  <DeniedRow key={`${index} ${denied.target}`} id={id} denied={denied} grants={now.grants} allow={change} />
                ))}
              </ul>
            </Panel>
            <Panel title="What it may connect to">
              <dl className="pairs">
                <dt>Allowed</dt>
                <dd className="breaks">{now.policy.allow.map(visible).join(", ") || "nothing"}</dd>
                <dt>Never</dt>
                <dd className="breaks">{now.policy.deny.map(visible).join(", ") || "–"}</dd>
                {now.forwards.map((forward) => (
                  <div key={forward.port} className="pair">
                    <dt>Port {forward.port}</dt>
                    <dd>leads to {visible(forward.target)}</dd>
                  </div>
                ))}
              </dl>
              {now.grants.length > 0 && <h3>Allowed later</h3>}
              <ul className="rows">
                {now.grants.map((grant) => (
                  <li key={grant.entry} className="row between">
                    <span className="breaks">
                      {visible(grant.entry)} <span className="hint">{grant.until === null ? "as long as the session lives" : `ends ${until(grant.until)}`}</span>
                    </span>
                    <span className="row">
                      <ActionButton label="Revoke" action={revokeHost(id, grant.entry)} run={change} />
                    </span>
                  </li>
                ))}
              </ul>
              <AllowHost id={id} allow={change} />
            </Panel>
          </>
        )}
      </Loaded>
      <Ports id={id} />
    </>
  );
}

interface RowProps {
  id: string;
  denied: Denied;
  grants: Network["grants"];
  allow: (action: Action<Network>) => Promise<void>;
}

function DeniedRow({ id, denied, grants, allow }: RowProps) {
  const granted = grants.some((grant) => grant.entry === denied.entry);
  return (
    <li className="row between">
      <span className="breaks">
        <b>{visible(denied.target)}</b> <span className="hint">{visible(denied.why || denied.rule)}</span>
      </span>
      {denied.entry && (
        <span className="row">
          <ActionButton
            label={granted ? "Allowed" : `Allow ${visible(denied.entry)}`}
            action={allowHost(id, denied.entry)}
            run={allow}
            disabled={granted}
          />
        </span>
      )}
    </li>
  );
}

function AllowHost({ id, allow }: { id: string; allow: (action: Action<Network>) => Promise<void> }) {
  const [host, setHost] = useState("");
  const action = allowHost(id, host.trim() || "HOST");
  return (
    <form
      className="filters"
      onSubmit={(event) => {
        event.preventDefault();
        void allow(action);
        setHost("");
      }}
    >
      <label className="grow">
        <span className="unseen">Host to allow</span>
        <input placeholder="Allow a host, such as api.example.com" value={host} onChange={(event) => setHost(event.target.value)} />
      </label>
      <CopyAs command={action} />
      <button type="submit" disabled={host.trim() === ""}>
        Allow
      </button>
    </form>
  );
}

function Ports({ id }: { id: string }) {
  const queries = useQueryClient();
  const path = `/v1/sessions/${segment(id)}/ports`;
  const [port, setPort] = useState("");
  const [links, setLinks] = useState<Record<number, string>>({});
  const [failed, setFailed] = useState("");
  const ports = useQuery({ queryKey: ["ports", id], queryFn: ({ signal }) => get<{ ports: Port[] }>(path, {}, signal) });
  const refresh = () => queries.invalidateQueries({ queryKey: ["ports", id] });
  const typed = exposePort(id, Number(port) || 8000, false);
  const expose = async (number: number, action: Action<{ url: string }>) => {
    setFailed("");
    try {
      const preview = await action.run();
      setLinks((known) => ({ ...known, [number]: preview.url }));
      await refresh();
    } catch (error) {
      setFailed(messageOf(error));
    }
  };
  return (
    <Panel title="Ports with previews" actions={<CopyAs command={listPorts(id)} />}>
      {failed && <Failure message={failed} />}
      <Loaded query={ports}>
        {(list) => (
          <ul className="rows">
            {list.ports.map((one) => (
              <li key={one.id} className="row between">
                <span>
                  <b>{one.port}</b> <span className="hint">{one.public ? "public" : "by link"}</span>
                </span>
                <span className="row">
                  {webAddress(links[one.port]) ? (
                    <a href={webAddress(links[one.port])} target="_blank" rel="noopener noreferrer">
                      Open the preview
                    </a>
                  ) : (
                    <ActionButton label="Make a link" action={exposePort(id, one.port, one.public)} run={(action) => expose(one.port, action)} />
                  )}
                  <Confirm label="Unexpose" title="End the preview?" action={unexposePort(id, one.port)} done={refresh}>
                    All links to port {one.port} end at once.
                  </Confirm>
                </span>
              </li>
            ))}
          </ul>
        )}
      </Loaded>
      <form
        className="filters"
        onSubmit={(event) => {
          event.preventDefault();
          void expose(Number(port), typed);
          setPort("");
        }}
      >
        <label className="grow">
          <span className="unseen">Port</span>
          <input inputMode="numeric" pattern="[0-9]{1,5}" placeholder="Expose a port, such as 8000" value={port} onChange={(event) => setPort(event.target.value)} />
        </label>
        <CopyAs command={typed} />
        <button type="submit" disabled={!/^\d{1,5}$/.test(port)}>
          Expose
        </button>
      </form>
    </Panel>
  );
}

/** The address, if it is one of the web. React would not stop `javascript:`. */
function webAddress(text: string | undefined): string | undefined {
  if (!text || !URL.canParse(text, location.origin)) return undefined;
  const url = new URL(text, location.origin);
  return url.protocol === "http:" || url.protocol === "https:" ? url.href : undefined;
}
