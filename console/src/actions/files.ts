import { download, makeFolder, readFile, removeFile, writeFile } from "../api/files";
import type { FileEntry } from "../api/types";
import type { Action, Command } from "./action";
import { cli, onSession, pythonText } from "./words";

/** Stands for a file on the reader's machine, whose path the console does not learn. */
const LOCAL = "FILE";

export function listFiles(id: string, folder: string): Command {
  return {
    what: "List this folder",
    cli: cli("files", "ls", `${id}:${folder}`),
    python: onSession(id, `for entry in session.files.list(${pythonText(folder)}):`, "    print(entry)"),
  };
}

export function readText(id: string, path: string): Command {
  return {
    what: "Read this file",
    cli: cli("files", "cat", `${id}:${path}`),
    python: onSession(id, `print(session.files.read_text(${pythonText(path)}))`),
  };
}

export function downloadFile(id: string, path: string, name: string): Action {
  return {
    what: "Download this file",
    cli: cli("files", "get", `${id}:${path}`, "."),
    python: onSession(id, `session.files.download(${pythonText(path)}, ".")`),
    run: async () => download(await readFile(id, path), name),
  };
}

export function uploadFile(id: string, folder: string, file: File | null): Action<FileEntry> {
  return {
    what: "Upload a file into this folder",
    cli: cli("files", "put", LOCAL, `${id}:${folder}/`),
    python: onSession(id, `session.files.upload("${LOCAL}", ${pythonText(`${folder}/${file?.name ?? LOCAL}`)})`),
    run: async () => {
      if (!file) throw new Error("Choose a file.");
      return writeFile(id, `${folder}/${file.name}`, file);
    },
  };
}

export function saveFile(id: string, path: string, text: string): Action<FileEntry> {
  return {
    what: "Replace this file",
    cli: cli("files", "put", LOCAL, `${id}:${path}`),
    python: onSession(id, `session.files.upload("${LOCAL}", ${pythonText(path)})`),
    run: () => writeFile(id, path, text),
  };
}

export function createFolder(id: string, path: string): Action<FileEntry> {
  return {
    what: "Create a folder",
    cli: cli("files", "mkdir", `${id}:${path}`),
    python: onSession(id, `session.files.mkdir(${pythonText(path)})`),
    run: () => makeFolder(id, path),
  };
}

export function removeEntry(id: string, path: string): Action {
  return {
    what: "Remove this file or folder",
    cli: cli("files", "rm", "--recursive", `${id}:${path}`),
    python: onSession(id, `session.files.remove(${pythonText(path)}, recursive=True)`),
    run: () => removeFile(id, path),
  };
}
