import { useQuery, useQueryClient } from "@tanstack/react-query";
import { get, post } from "../../api/client";
import type { Environment } from "../../api/types";
import { cli, onClient } from "../../commands";
import { bytes, visible } from "../../format";
import { Confirm } from "../../parts/Confirm";
import { CopyAs } from "../../parts/CopyAs";
import { Loaded } from "../../parts/Loaded";

export function Environments() {
  const queries = useQueryClient();
  const environments = useQuery({
    queryKey: ["environments"],
    queryFn: ({ signal }) => get<{ environments: Environment[] }>("/v1/environments", {}, signal),
  });
  const reload = () => post("/v1/environments/reload").then(() => queries.invalidateQueries({ queryKey: ["environments"] }));
  return (
    <>
      <div className="row end">
        <CopyAs
          what="Reload the environments"
          command={{ cli: cli("env", "reload"), python: onClient("print(client.catalogue().environments)") }}
        />
        <Confirm label="Reload" title="Read the registry again?" act={reload} danger={false}>
          Sessions keep the sandboxes that they have. If a file has an error, nothing changes.
        </Confirm>
      </div>
      <Loaded query={environments}>
        {(list) => (
          <div className="cards">
            {list.environments.map((one) => (
              <article key={one.name} className="card">
                <h2>{visible(one.name)}</h2>
                <p>{visible(one.description)}</p>
                <dl className="pairs">
                  <dt>Image</dt>
                  <dd className="mono breaks">{visible(one.image)}</dd>
                  <dt>Isolation</dt>
                  <dd>{one.tier === "runsc" ? "gVisor (runsc)" : one.tier === "microvm" ? "virtual machine (microvm)" : "container (runc)"}</dd>
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
