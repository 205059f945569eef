import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { createWebhook, deleteWebhook, listWebhooks, redeliverDeadLetters } from "../../actions/admin";
import { get } from "../../api/client";
import { messageOf } from "../../api/errors";
import type { Webhook } from "../../api/adminTypes";
import { count, plural, visible } from "../../format";
import { Badge } from "../../parts/Badge";
import { Confirm } from "../../parts/Confirm";
import { CopyAs } from "../../parts/CopyAs";
import { Failure } from "../../parts/Failure";
import { Loaded } from "../../parts/Loaded";
import { Empty, Panel } from "../../parts/Panel";
import { Secret } from "../../parts/Secret";

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
      <Panel title="Webhooks" actions={<CopyAs command={listWebhooks()} />}>
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
                            label="Redeliver"
                            title="Redeliver the dead letters?"
                            action={redeliverDeadLetters(hook.id)}
                            done={refresh}
                            danger={false}
                          >
                            {hook.dead_letters === 1 ? "1 delivery has failed for good." : `${count(hook.dead_letters)} deliveries have failed for good.`} Sandlot
                            tries each of them again, with the same id.
                          </Confirm>
                        )}
                        <Confirm label="Delete" title="Delete the webhook?" action={deleteWebhook(hook.id)} done={refresh}>
                          It stops sending events. Its dead letters are deleted too.
                        </Confirm>
                      </span>
                    </div>
                    <p className="hint">
                      {hook.events.join(" ")} · {count(hook.delivered)} delivered · {plural(hook.dead_letters, "dead letter")}
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
  const action = createWebhook(url, kinds);
  const create = async () => {
    setFailed("");
    try {
      setSecret((await action.run()).secret);
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
          <Secret
            label="The webhook's secret"
            text={secret}
            why="Copy the secret now. It verifies the deliveries, and it is shown only once."
            forget={() => setSecret("")}
          />
        )}
        <footer className="row end">
          <CopyAs command={action} />
          <button type="submit" className="primary" disabled={url.trim() === ""}>
            Create
          </button>
        </footer>
      </form>
    </Panel>
  );
}
