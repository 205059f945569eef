import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { readText, saveFile } from "../../../actions/files";
import { messageOf } from "../../../api/errors";
import { MAX_SHOWN_BYTES, readFile, stat } from "../../../api/files";
import type { FileEntry } from "../../../api/types";
import { bytes, visible } from "../../../format";
import { CopyAs } from "../../../parts/CopyAs";
import { Failure } from "../../../parts/Failure";
import { Loaded } from "../../../parts/Loaded";
import { Panel } from "../../../parts/Panel";
import { type Content, contentOf, rowsOf } from "./kinds";

interface Props {
  id: string;
  entry: FileEntry;
  close: () => void;
  saved: () => void;
}

export function FileView({ id, entry, close, saved }: Props) {
  const tooLarge = entry.size > MAX_SHOWN_BYTES;
  const content = useQuery({
    queryKey: ["file", id, entry.path, entry.mtime_ms],
    queryFn: async () => contentOf(entry.name, await readFile(id, entry.path)),
    enabled: !tooLarge,
    refetchOnWindowFocus: false, // it would throw away what is being edited
  });
  return (
    <Panel
      title={visible(entry.name)}
      actions={
        <>
          <CopyAs command={readText(id, entry.path)} />
          <button type="button" className="small" onClick={close}>
            Close
          </button>
        </>
      }
    >
      {tooLarge ? (
        <p className="empty">
          {bytes(entry.size)} is more than the console shows. Download it instead.
        </p>
      ) : (
        <Loaded query={content}>{(shown) => <Shown id={id} entry={entry} content={shown} saved={saved} />}</Loaded>
      )}
    </Panel>
  );
}

function Shown({ id, entry, content, saved }: { id: string; entry: FileEntry; content: Content; saved: () => void }) {
  const [edits, setEdits] = useState(false);
  if (content.image) return <Picture image={content.image} name={entry.name} />;
  if (content.kind === "bytes") return <p className="empty">This file is not text. Download it to open it.</p>;
  if (content.kind === "table" && !edits) {
    return (
      <>
        <Rows text={content.text} separator={entry.name.toLowerCase().endsWith(".tsv") ? "\t" : ","} />
        <footer className="row end">
          <button type="button" className="small" onClick={() => setEdits(true)}>
            Edit as text
          </button>
        </footer>
      </>
    );
  }
  return <Editor id={id} entry={entry} text={content.text} saved={saved} />;
}

function Picture({ image, name }: { image: Blob; name: string }) {
  const [url, setUrl] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(image);
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [image]);
  return url ? <img className="picture" src={url} alt={visible(name)} /> : null;
}

function Rows({ text, separator }: { text: string; separator: string }) {
  const [head = [], ...rows] = useMemo(() => rowsOf(text, separator), [text, separator]);
  return (
    <div className="table" tabIndex={0} role="region" aria-label="First rows">
      <table>
        <thead>
          <tr>
            {head.map((field, index) => (
              <th key={index}>{visible(field)}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              {row.map((field, column) => (
                <td key={column}>{visible(field)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Editor({ id, entry, text, saved }: { id: string; entry: FileEntry; text: string; saved: () => void }) {
  const [draft, setDraft] = useState(text);
  const [kept, setKept] = useState({ text, mtime: entry.mtime_ms });
  const [said, setSaid] = useState("");
  const [failed, setFailed] = useState("");
  const action = saveFile(id, entry.path, draft);
  const save = async () => {
    setSaid("");
    setFailed("");
    try {
      const now = await stat(id, entry.path);
      const changed = now.mtime_ms !== kept.mtime;
      if (changed && !window.confirm("A program has changed this file since you opened it. Replace its changes?")) return;
      const written = await action.run();
      setKept({ text: draft, mtime: written.mtime_ms });
      setSaid("Saved.");
      saved();
    } catch (error) {
      setFailed(messageOf(error));
    }
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        void save();
      }}
    >
      <textarea
        className="editor"
        aria-label={`Content of ${visible(entry.name)}`}
        spellCheck={false}
        value={draft}
        onChange={(event) => setDraft(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === "s" && (event.ctrlKey || event.metaKey)) {
            event.preventDefault();
            void save();
          }
        }}
      />
      {failed && <Failure message={failed} />}
      <footer className="row between">
        <span className="hint" role="status">
          {said || (draft === kept.text ? "Not changed." : "Changed, not saved.")}
        </span>
        <span className="row">
          <CopyAs command={action} />
          <button type="submit" className="primary" disabled={draft === kept.text}>
            Save
          </button>
        </span>
      </footer>
    </form>
  );
}
