import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { get, post, remove, segment } from "../../api/client";
import { messageOf } from "../../api/errors";
import type { Webhook } from "../../api/types";
import { cli } from "../../commands";
import { count, visible } from "../../format";
import { Badge } from "../../parts/Badge";
import { Confirm } from "../../parts/Confirm";
import { CopyAs } from "../../parts/CopyAs";
import { Failure } from "../../parts/Failure";
import { Loaded } from "../../parts/Loaded";
import { Empty, Panel } from "../../parts/Panel";

const USUAL = "session.created session.lost session.ended";

export function Webhooks() {
  const queries = useQueryClient();
  const webhooks = useQuery({
    queryKey: ["webhooks"],
    queryFn: ({ signal }) => get<{ webhooks: Webhook[] }>("/v1/webhooks", {}, signal),
    refetchInterval: 5_000,
  });
  const refresh = () => queries.invalidateQueries({ queryKey: ["webhooks"] });
  return (
    <>
      <NewWebhook made={() => void refresh()} />
      <Panel title="Webhooks">
        <Loaded query={webhooks}>
          {(list) =>
            list.webhooks.length === 0 ? (
              <Empty>No webhooks yet.</Empty>
            ) : (
              <ul className="rows">
                {list.webhooks.map((hook) => (
                  <li key={hook.id}>
                    <div className="row between">
                      <b className="breaks">{visible(hook.url)}</b>
                      <span className="row">
                        <Badge state={hook.state} />
                        {hook.dead_letters > 0 && (
                          <Confirm
                            label="Try again"
                            title="Send the dead letters again?"
                            act={() => post(`/v1/webhooks/${segment(hook.id)}/dead-letters/redeliver`).then(refresh)}
                            danger={false}
                          >
                            {count(hook.dead_letters)} events were given up. Each is tried once more, with the same id.
                          </Confirm>
                        )}
                        <CopyAs what="Delete this webhook" command={{ cli: cli("webhooks", "delete", hook.id), python: "# on the command line only" }} />
                        <Confirm label="Delete" title="Delete the webhook?" act={() => remove(`/v1/webhooks/${segment(hook.id)}`).then(refresh)}>
                          It sends nothing more, and its dead letters go too.
                        </Confirm>
                      </span>
                    </div>
                    <p className="hint">
                      {hook.events.join(" ")} · {count(hook.delivered)} delivered · {count(hook.dead_letters)} given up
                    </p>
                    {hook.error && <p className="failure">{visible(hook.error)}</p>}
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

function NewWebhook({ made }: { made: () => void }) {
  const [url, setUrl] = useState("");
  const [events, setEvents] = useState(USUAL);
  const [secret, setSecret] = useState("");
  const [failed, setFailed] = useState("");
  const kinds = events.split(/[\s,]+/).filter(Boolean);
  const create = async () => {
    setFailed("");
    try {
      setSecret((await post<{ secret: string }>("/v1/webhooks", { url, events: kinds })).secret);
      setUrl("");
      made();
    } catch (error) {
      setFailed(messageOf(error));
    }
  };
  return (
    <Panel title="New webhook">
      <form
        className="fields"
        onSubmit={(event) => {
          event.preventDefault();
          void create();
        }}
      >
        <label>
          Address
          <input type="url" placeholder="https://example.com/sandlot" value={url} onChange={(event) => setUrl(event.target.value)} />
        </label>
        <label>
          Events
          <input value={events} onChange={(event) => setEvents(event.target.value)} />
        </label>
        {failed && <Failure message={failed} />}
        {secret && (
          <section className="snippet" role="status">
            <p>Copy the secret now. It verifies the deliveries, and it is shown only once.</p>
            <pre tabIndex={0}>{secret}</pre>
            <button type="button" className="small" onClick={() => setSecret("")}>
              I have copied it
            </button>
          </section>
        )}
        <footer className="row end">
          <CopyAs
            what="Create a webhook"
            command={{ cli: cli("webhooks", "create", url || "URL", ...kinds.flatMap((kind) => ["--event", kind])), python: "# on the command line only" }}
          />
          <button type="submit" className="primary" disabled={url.trim() === ""}>
            Create
          </button>
        </footer>
      </form>
    </Panel>
  );
}
