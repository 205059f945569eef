// An asciicast (version 2): a header, then one line of JSON for each piece of output.

export interface Piece {
  at: number;
  text: string;
}

export interface Cast {
  rows: number;
  cols: number;
  pieces: Piece[];
  markers: Piece[];
}

const MAX_PIECES = 200_000;
// Nobody wants to watch a pause of minutes.
const LONGEST_PAUSE_S = 2;

export function castOf(text: string): Cast {
  const lines = text.split("\n");
  const head = parsed(lines[0] ?? "") as { width?: unknown; height?: unknown } | null;
  const cast: Cast = { cols: bounded(head?.width, 80), rows: bounded(head?.height, 24), pieces: [], markers: [] };
  let before = 0;
  let shown = 0;
  for (const line of lines.slice(1, MAX_PIECES)) {
    const event = parsed(line);
    if (!Array.isArray(event) || typeof event[0] !== "number" || typeof event[2] !== "string") continue;
    shown += Math.min(Math.max(event[0] - before, 0), LONGEST_PAUSE_S);
    before = event[0];
    if (event[1] === "o") cast.pieces.push({ at: shown, text: event[2] });
    if (event[1] === "m") cast.markers.push({ at: shown, text: event[2] });
  }
  return cast;
}

function bounded(value: unknown, otherwise: number): number {
  return typeof value === "number" && value >= 2 && value <= 500 ? Math.floor(value) : otherwise;
}

function parsed(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return null; // the last line of a recording that goes on may be half written
  }
}
