import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { type DragEvent, useRef, useState } from "react";
import { createFolder, downloadFile, listFiles, removeEntry, uploadFile } from "../../../actions/files";
import { messageOf } from "../../../api/errors";
import { listFolder } from "../../../api/files";
import type { Action } from "../../../actions/action";
import type { FileEntry } from "../../../api/types";
import { ago, bytes, visible } from "../../../format";
import { ActionButton } from "../../../parts/ActionButton";
import { Confirm } from "../../../parts/Confirm";
import { CopyAs } from "../../../parts/CopyAs";
import { Failure } from "../../../parts/Failure";
import { Name } from "../../../parts/Name";
import { Empty, Panel } from "../../../parts/Panel";
import { FileView } from "./FileView";

const ROOT = "/workspace";

export default function Files({ id }: { id: string }) {
  const queries = useQueryClient();
  const [folder, setFolder] = useState(ROOT);
  const [open, setOpen] = useState<FileEntry | null>(null);
  const [over, setOver] = useState(false);
  const [failed, setFailed] = useState("");
  const [busy, setBusy] = useState("");
  const picker = useRef<HTMLInputElement>(null);
  const list = useInfiniteQuery({
    queryKey: ["files", id, folder],
    queryFn: ({ pageParam, signal }) => listFolder(id, folder, pageParam, signal),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last) => last.next ?? undefined,
  });
  const entries = list.data?.pages.flatMap((page) => page.entries) ?? [];
  const refresh = () => queries.invalidateQueries({ queryKey: ["files", id] });

  const attempt = async (what: string, act: () => Promise<unknown>) => {
    setBusy(what);
    setFailed("");
    try {
      await act();
    } catch (error) {
      setFailed(messageOf(error));
    } finally {
      setBusy("");
      void refresh();
    }
  };
  const upload = async (files: File[]) => {
    const known = new Set(entries.map((entry) => entry.name));
    const replaced = files.filter((file) => known.has(file.name)).map((file) => visible(file.name));
    if (replaced.length > 0 && !window.confirm(`Replace ${replaced.join(", ")}?`)) return;
    for (const file of files) await attempt(`Uploading ${visible(file.name)}…`, uploadFile(id, folder, file).run);
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    void upload([...event.dataTransfer.files]);
  };
  const enter = (path: string) => {
    setOpen(null);
    setFolder(path);
  };

  return (
    <>
      <Panel
        title="Files"
        actions={
          <>
            <CopyAs command={listFiles(id, folder)} />
            <NewFolder id={id} folder={folder} create={(action) => void attempt("Creating the folder…", action.run)} />
            <input
              ref={picker}
              type="file"
              multiple
              hidden
              onChange={(event) => {
                void upload([...(event.target.files ?? [])]);
                event.target.value = "";
              }}
            />
            <CopyAs command={uploadFile(id, folder, null)} />
            <button type="button" className="primary small" onClick={() => picker.current?.click()}>
              Upload
            </button>
          </>
        }
      >
        <Crumbs folder={folder} enter={enter} />
        {(failed || list.error) && <Failure message={failed || messageOf(list.error)} />}
        {busy && (
          <p className="hint" role="status">
            {busy}
          </p>
        )}
        <div
          className={over ? "drop over" : "drop"}
          onDragOver={(event) => {
            event.preventDefault();
            setOver(true);
          }}
          onDragLeave={() => setOver(false)}
          onDrop={drop}
        >
          {list.data && entries.length === 0 && <Empty>This folder is empty. Drop files here to upload them.</Empty>}
          <ul className="rows files">
            {entries.map((entry) => (
              <li key={entry.path} className="row between">
                <button
                  type="button"
                  className="quiet file"
                  aria-current={open?.path === entry.path ? "true" : undefined}
                  onClick={() => (isFolder(entry) ? enter(entry.path) : setOpen(entry))}
                >
                  <span aria-hidden="true" className="sign">
                    {isFolder(entry) ? "▸" : ""}
                  </span>
                  <Name text={entry.name + (isFolder(entry) ? "/" : "")} />
                </button>
                <span className="row">
                  <span className="hint">
                    {!isFolder(entry) && bytes(entry.size)}
                    <span className="wide-only">{`${isFolder(entry) ? "" : " · "}${ago(entry.mtime_ms / 1000)}`}</span>
                  </span>
                  {!isFolder(entry) && (
                    <ActionButton
                      label="↓"
                      name={`Download ${visible(entry.name)}`}
                      action={downloadFile(id, entry.path, entry.name)}
                      run={(action) => attempt("Downloading…", action.run)}
                    />
                  )}
                  <Confirm label="Remove" title="Remove it?" action={removeEntry(id, entry.path)} done={refresh}>
                    <code className="breaks">{visible(entry.path)}</code>
                    {isFolder(entry) && " and everything in it."}
                  </Confirm>
                </span>
              </li>
            ))}
          </ul>
          {list.hasNextPage && (
            <button type="button" onClick={() => void list.fetchNextPage()}>
              Show more
            </button>
          )}
        </div>
      </Panel>
      {open && <FileView key={open.path} id={id} entry={open} close={() => setOpen(null)} saved={() => void refresh()} />}
    </>
  );
}

function isFolder(entry: FileEntry): boolean {
  return entry.type === "directory" || entry.type === "dir";
}

function Crumbs({ folder, enter }: { folder: string; enter: (path: string) => void }) {
  const parts = folder.split("/").filter(Boolean);
  return (
    <nav className="crumbs" aria-label="Folder">
      <button type="button" className="quiet small" onClick={() => enter("/")}>
        /
      </button>
      {parts.map((part, index) => (
        <button key={index} type="button" className="quiet small" onClick={() => enter(`/${parts.slice(0, index + 1).join("/")}`)}>
          <Name text={part} />
        </button>
      ))}
    </nav>
  );
}

function NewFolder({ id, folder, create }: { id: string; folder: string; create: (action: Action) => void }) {
  const [name, setName] = useState<string | null>(null);
  if (name === null) {
    return (
      <button type="button" className="small" onClick={() => setName("")}>
        New folder
      </button>
    );
  }
  const action = createFolder(id, `${folder}/${name.trim() || "NAME"}`);
  return (
    <form
      className="row"
      onSubmit={(event) => {
        event.preventDefault();
        if (name.trim()) create(action);
        setName(null);
      }}
    >
      <input aria-label="Folder name" className="small" autoFocus value={name} onChange={(event) => setName(event.target.value)} />
      <CopyAs command={action} />
      <button type="submit" className="small">
        Create
      </button>
    </form>
  );
}
