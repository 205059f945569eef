import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { createKey, listKeys, revokeKey } from "../../actions/admin";
import { get } from "../../api/client";
import { messageOf } from "../../api/errors";
import type { ApiKey } from "../../api/adminTypes";
import { ago, moment } from "../../format";
import { Badge } from "../../parts/Badge";
import { Confirm } from "../../parts/Confirm";
import { CopyAs } from "../../parts/CopyAs";
import { Failure } from "../../parts/Failure";
import { Loaded } from "../../parts/Loaded";
import { Name } from "../../parts/Name";
import { Empty, Panel } from "../../parts/Panel";
import { Secret } from "../../parts/Secret";

const SCOPES = ["sessions:read", "sessions:write", "exec", "files", "network", "admin", "metrics:read", "fleet:operate"];
const USUAL = new Set(SCOPES.slice(0, 5));

export function Keys() {
  const queries = useQueryClient();
  const keys = useQuery({
    queryKey: ["keys"],
    queryFn: ({ signal }) => get<{ keys: ApiKey[] }>("/v1/keys", { limit: 1_000 }, signal),
  });
  const refresh = () => queries.invalidateQueries({ queryKey: ["keys"] });
  return (
    <>
      {!keys.error && <NewKey made={() => void refresh()} />}
      <Panel title="Keys" actions={<CopyAs command={listKeys()} />}>
        <Loaded query={keys}>
          {(list) =>
            list.keys.length === 0 ? (
              <Empty>No keys yet, besides the server's own.</Empty>
            ) : (
              <ul className="rows">
                {list.keys.map((key) => (
                  <li key={key.id} className="row between">
                    <span>
                      <Name text={key.name} />{" "}
                      <span className="hint">
                        {key.tenant} · …{key.hint} · {key.scopes.join(" ")} · made {moment(key.created_at)} ·{" "}
                        {key.last_used_at === null ? "never used" : `used ${ago(key.last_used_at)}`}
                      </span>
                    </span>
                    <span className="row">
                      <Badge state={key.state} />
                      {key.state === "active" && (
                        <Confirm label="Revoke" title="Revoke the key?" action={revokeKey(key.id)} done={refresh}>
                          Its programs are refused within 5 seconds, and their connections close.
                        </Confirm>
                      )}
                    </span>
                  </li>
                ))}
              </ul>
            )
          }
        </Loaded>
      </Panel>
    </>
  );
}

function NewKey({ made }: { made: () => void }) {
  const [name, setName] = useState("");
  const [tenant, setTenant] = useState("");
  const [scopes, setScopes] = useState(USUAL);
  const [secret, setSecret] = useState("");
  const [failed, setFailed] = useState("");
  const action = createKey(name, tenant, [...scopes]);
  const create = async () => {
    setFailed("");
    try {
      setSecret((await action.run()).secret);
      setName("");
      made();
    } catch (error) {
      setFailed(messageOf(error));
    }
  };
  const toggle = (scope: string) => {
    const changed = new Set(scopes);
    if (!changed.delete(scope)) changed.add(scope);
    setScopes(changed);
  };
  return (
    <Panel title="New key">
      <form
        className="fields"
        onSubmit={(event) => {
          event.preventDefault();
          void create();
        }}
      >
        <div className="two">
          <label>
            Name
            <input value={name} onChange={(event) => setName(event.target.value)} />
          </label>
          <label>
            Tenant
            <input value={tenant} placeholder="Your own" onChange={(event) => setTenant(event.target.value)} />
          </label>
        </div>
        <fieldset className="row">
          <legend>What its holder may do</legend>
          {SCOPES.map((scope) => (
            <label key={scope} className="check">
              <input type="checkbox" checked={scopes.has(scope)} onChange={() => toggle(scope)} /> {scope}
            </label>
          ))}
        </fieldset>
        {failed && <Failure message={failed} />}
        {secret && <Secret label="The new key" text={secret} why="Copy the key now. It is shown only once." forget={() => setSecret("")} />}
        <footer className="row end">
          <CopyAs command={action} />
          <button type="submit" className="primary" disabled={name.trim() === ""}>
            Create
          </button>
        </footer>
      </form>
    </Panel>
  );
}
