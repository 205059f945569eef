import { useQuery } from "@tanstack/react-query";
import { segment, send } from "../../../api/client";
import { download } from "../../../api/files";
import { cli, onSession } from "../../../commands";
import { CopyAs } from "../../../parts/CopyAs";
import { Loaded } from "../../../parts/Loaded";
import { Empty, Panel } from "../../../parts/Panel";
import { castOf } from "./cast";
import { Player } from "./Player";

export default function Recording({ id }: { id: string }) {
  const recording = useQuery({
    queryKey: ["recording", id],
    queryFn: async ({ signal }) => (await send("GET", `/v1/sessions/${segment(id)}/recording`, { signal })).blob().then(async (blob) => ({ blob, cast: castOf(await blob.text()) })),
    refetchOnWindowFocus: false,
  });
  return (
    <Panel
      title="Recording"
      actions={
        <>
          <CopyAs
            what="Download the recording"
            command={{ cli: `${cli("recording", id)} | asciinema play -`, python: onSession(id, 'open("session.cast", "wb").writelines(session.recording())') }}
          />
          <button type="button" className="small" onClick={() => void recording.refetch()}>
            Load again
          </button>
          {recording.data && (
            <button type="button" className="small" onClick={() => download(recording.data.blob, `${id}.cast`)}>
              Download
            </button>
          )}
        </>
      }
    >
      <Loaded query={recording}>
        {({ cast }) =>
          cast.pieces.length === 0 ? <Empty>Nothing was written yet.</Empty> : <Player key={recording.dataUpdatedAt} cast={cast} />
        }
      </Loaded>
    </Panel>
  );
}
