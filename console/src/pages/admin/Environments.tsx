import { useQuery, useQueryClient } from "@tanstack/react-query";
import { listEnvironments, reloadEnvironments } from "../../actions/admin";
import { get } from "../../api/client";
import type { Environment } from "../../api/adminTypes";
import { bytes, visible } from "../../format";
import { Confirm } from "../../parts/Confirm";
import { CopyAs } from "../../parts/CopyAs";
import { Loaded } from "../../parts/Loaded";
import { EnvironmentState } from "./EnvironmentState";

const EVERY_MS = 5_000;
const TIERS: Record<string, string> = { runc: "container (runc)", runsc: "gVisor (runsc)", microvm: "virtual machine (microvm)" };

export function Environments() {
  const queries = useQueryClient();
  const environments = useQuery({
    queryKey: ["environments"],
    queryFn: ({ signal }) => get<{ environments: Environment[] }>("/v1/environments", {}, signal),
    refetchInterval: EVERY_MS,
  });
  return (
    <>
      <div className="row end">
        <CopyAs command={listEnvironments()} />
        <Confirm
          label="Reload"
          title="Read the registry again?"
          action={reloadEnvironments()}
          done={() => queries.invalidateQueries({ queryKey: ["environments"] })}
          danger={false}
        >
          Sessions keep the sandboxes that they have. If a file has an error, nothing changes.
        </Confirm>
      </div>
      <Loaded query={environments}>
        {(list) => (
          <div className="cards">
            {list.environments.map((one) => (
              <article key={one.name} className="card">
                <h2>{visible(one.name)}</h2>
                <EnvironmentState servers={one.readiness} />
                <p>{visible(one.description)}</p>
                <dl className="pairs">
                  <dt>Image</dt>
                  <dd className="mono breaks">{visible(one.image)}</dd>
                  <dt>Isolation</dt>
                  <dd>{TIERS[one.tier] ?? visible(one.tier)}</dd>
                  <dt>Memory</dt>
                  <dd>{bytes(one.limits.memory_bytes)}</dd>
                  <dt>Processors</dt>
                  <dd>{one.limits.cpus}</dd>
                  <dt>Network</dt>
                  <dd className="breaks">{one.network.allow.map(visible).join(", ") || "none"}</dd>
                  <dt>Policy</dt>
                  <dd>{one.policy ?? "none"}</dd>
                </dl>
              </article>
            ))}
          </div>
        )}
      </Loaded>
    </>
  );
}
