import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { limitTenant, listTenants } from "../../actions/admin";
import { get, segment } from "../../api/client";
import { messageOf } from "../../api/errors";
import type { Tenant, UseLimits } from "../../api/adminTypes";
import { count, visible } from "../../format";
import { CopyAs } from "../../parts/CopyAs";
import { Failure } from "../../parts/Failure";
import { Loaded } from "../../parts/Loaded";
import { Empty, Panel } from "../../parts/Panel";

const LIMITS: readonly (readonly [keyof UseLimits, string])[] = [
  ["sessions", "Sessions"],
  ["cpus", "Processors"],
  ["memory_mb", "Memory (MiB)"],
  ["execs", "Commands at once"],
  ["creates_per_s", "Creates per second"],
  ["calls_per_s", "Calls per second"],
];

export function Tenants() {
  const [name, setName] = useState("");
  const [asked, setAsked] = useState("");
  const tenants = useQuery({
    queryKey: ["tenants"],
    queryFn: ({ signal }) => get<{ tenants: Tenant[] }>("/v1/tenants", {}, signal),
  });
  const one = useQuery({
    queryKey: ["tenant", asked],
    queryFn: ({ signal }) => get<Tenant>(`/v1/tenants/${segment(asked)}`, {}, signal),
    enabled: asked !== "",
  });
  return (
    <>
      <form
        className="filters"
        role="search"
        onSubmit={(event) => {
          event.preventDefault();
          setAsked(name.trim());
        }}
      >
        <label className="grow">
          <span className="unseen">Tenant</span>
          <input type="search" placeholder="A tenant's name, such as default" value={name} onChange={(event) => setName(event.target.value)} />
        </label>
        <CopyAs command={listTenants()} />
        <button type="submit" disabled={name.trim() === ""}>
          Show
        </button>
      </form>
      {asked && <Loaded query={one}>{(tenant) => <TenantPanel key={tenant.tenant} tenant={tenant} />}</Loaded>}
      <Loaded query={tenants}>
        {(list) => {
          const others = list.tenants.filter((tenant) => tenant.tenant !== asked);
          if (others.length === 0 && !asked) return <Empty>No tenant has limits or a policy of its own.</Empty>;
          return others.map((tenant) => <TenantPanel key={tenant.tenant} tenant={tenant} />);
        }}
      </Loaded>
    </>
  );
}

function TenantPanel({ tenant }: { tenant: Tenant }) {
  const queries = useQueryClient();
  const [draft, setDraft] = useState<Record<string, string>>(
    Object.fromEntries(LIMITS.map(([name]) => [name, tenant.own_limits[name]?.toString() ?? ""])),
  );
  const [failed, setFailed] = useState("");
  const wrong = LIMITS.find(([name]) => draft[name] && !(Number(draft[name]) >= 0));
  const action = limitTenant(tenant.tenant, limitsOf(draft));
  const save = async () => {
    setFailed("");
    // JSON has no NaN: the server would read null, and take the limit away.
    if (wrong) return setFailed(`${wrong[1]} must be a number, or empty for no limit of its own.`);
    try {
      await action.run();
      await queries.invalidateQueries({ queryKey: ["tenants"] });
      await queries.invalidateQueries({ queryKey: ["tenant", tenant.tenant] });
    } catch (error) {
      setFailed(messageOf(error));
    }
  };
  return (
    <Panel title={visible(tenant.tenant)}>
      <p className="facts">
        <span>{count(tenant.use.sessions)} sessions</span>
        <span>{tenant.use.cpus} processors</span>
        <span>{count(tenant.use.memory_mb)} MiB</span>
        <span>policy: {visible(tenant.policy ?? "none")}</span>
      </p>
      <form
        className="fields"
        onSubmit={(event) => {
          event.preventDefault();
          void save();
        }}
      >
        <div className="limits">
          {LIMITS.map(([name, label]) => (
            <label key={name}>
              {label}
              <input
                inputMode="decimal"
                value={draft[name] ?? ""}
                placeholder={tenant.limits[name]?.toString() ?? "no limit"}
                onChange={(event) => setDraft({ ...draft, [name]: event.target.value })}
              />
            </label>
          ))}
        </div>
        {failed && <Failure message={failed} />}
        <footer className="row end">
          <CopyAs command={action} />
          <button type="submit" className="primary">
            Set the limits
          </button>
        </footer>
      </form>
    </Panel>
  );
}

function limitsOf(draft: Record<string, string>): UseLimits {
  const of = (name: keyof UseLimits) => (draft[name] ? Number(draft[name]) : null);
  return {
    sessions: of("sessions"),
    cpus: of("cpus"),
    memory_mb: of("memory_mb"),
    execs: of("execs"),
    creates_per_s: of("creates_per_s"),
    calls_per_s: of("calls_per_s"),
  };
}
