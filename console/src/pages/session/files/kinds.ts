// What a file is, by its first bytes and not by its name: names come from sandboxes.

export type Kind = "image" | "table" | "text" | "bytes";

// Types that a browser only paints. SVG is not among them: it is a document, and shown as text.
const IMAGES: [string, number[]][] = [
  ["image/png", [0x89, 0x50, 0x4e, 0x47]],
  ["image/jpeg", [0xff, 0xd8, 0xff]],
  ["image/gif", [0x47, 0x49, 0x46, 0x38]],
  ["image/webp", [0x52, 0x49, 0x46, 0x46]],
];

export interface Content {
  kind: Kind;
  text: string;
  image: Blob | null;
}

export async function contentOf(name: string, blob: Blob): Promise<Content> {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  const image = IMAGES.find(([, magic]) => magic.every((byte, index) => bytes[index] === byte));
  if (image) return { kind: "image", text: "", image: new Blob([bytes], { type: image[0] }) };
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    if (text.includes("\0")) return { kind: "bytes", text: "", image: null };
    return { kind: /\.[ct]sv$/i.test(name) ? "table" : "text", text, image: null };
  } catch {
    return { kind: "bytes", text: "", image: null };
  }
}

const MAX_ROWS = 200;
const MAX_COLUMNS = 50;

/** The first rows of a CSV file, with quoted fields. */
export function rowsOf(text: string, separator: string): string[][] {
  const rows: string[][] = [];
  let row: string[] = [];
  let field = "";
  let quoted = false;
  for (let at = 0; at < text.length && rows.length < MAX_ROWS; at += 1) {
    const one = text[at];
    if (quoted) {
      if (one === '"' && text[at + 1] === '"') at += 1;
      else if (one === '"') quoted = false;
      if (quoted) field += one;
    } else if (one === '"' && field === "") quoted = true;
    else if (one === separator) {
      row.push(field);
      field = "";
    } else if (one === "\n") {
      rows.push([...row, field.replace(/\r$/, "")].slice(0, MAX_COLUMNS));
      row = [];
      field = "";
    } else field += one;
  }
  if (field !== "" || row.length > 0) rows.push([...row, field].slice(0, MAX_COLUMNS));
  return rows.slice(0, MAX_ROWS);
}
