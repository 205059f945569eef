import { useQuery } from "@tanstack/react-query";
import { downloadRecording } from "../../../actions/history";
import { read, segment } from "../../../api/client";
import { download } from "../../../api/files";
import { CopyAs } from "../../../parts/CopyAs";
import { Loaded } from "../../../parts/Loaded";
import { Empty, Panel } from "../../../parts/Panel";
import { castOf } from "./cast";
import { Player } from "./Player";

export default function Recording({ id }: { id: string }) {
  const file = `${id}.cast`;
  const recording = useQuery({
    queryKey: ["recording", id],
    queryFn: async ({ signal }) => {
      const blob = await (await read(`/v1/sessions/${segment(id)}/recording`, signal)).blob();
      return { blob, cast: castOf(await blob.text()) };
    },
    refetchOnWindowFocus: false,
  });
  return (
    <Panel
      title="Recording"
      actions={
        <>
          <CopyAs command={downloadRecording(id, file)} />
          <button type="button" className="small" onClick={() => void recording.refetch()}>
            Load again
          </button>
          {recording.data && (
            <button type="button" className="small" onClick={() => download(recording.data.blob, file)}>
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
