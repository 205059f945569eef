import { address, segment } from "./client";
import { subprotocols } from "./key";

/** What has arrived and is not on the screen yet. Above it, we stop listening until the screen has caught up. */
const MAX_WAITING_BYTES = 32 * 1024 * 1024;
const LOW_WATER_BYTES = 1024 * 1024;
/** What is typed while there is no connection is kept, up to this. What comes after it is refused, and the page says so. */
const MAX_TYPED_BYTES = 4 * 1024;
/** Nothing confirms keys. Those sent later than this before the last message may not have arrived if the connection breaks. */
const UNDER_WAY_MS = 2_000;
/** The server sends something at least every 15 s, so a longer silence means a dead connection. */
const SILENCE_MS = 50_000;
const LISTEN_EVERY_MS = 5_000;
/** How long one piece of a flood may take to be read by the terminal. */
const PIECE_MS = 12;
const SMALLEST_PIECE_BYTES = 32 * 1024;
const LARGEST_PIECE_BYTES = 512 * 1024;
/** A tab that nobody sees draws no frames, so a piece waits for its own no longer than this. */
const LONGEST_FRAME_MS = 100;
const LONGEST_REST_MS = 100;
const FIRST_WAIT_MS = 300;
const LONGEST_WAIT_MS = 5_000;
const HEADER_BYTES = 9;

export type AttachState = "connecting" | "open" | "waiting" | "ended";

export interface AttachEvents {
  /** Show the bytes, then call `done`. */
  output(data: Uint8Array, done: () => void): void;
  /** Bytes that the server no longer had. */
  gap(bytes: number): void;
  state(state: AttachState, message: string): void;
  exited(verdict: string, code: number): void;
}

const REFUSED = "No connection. What you type is not taken until it is back.";
const REFUSED_SOME = "Connected again. Not all that you typed meanwhile was taken. Check it before you go on.";
const UNSURE = "Connected again. What you typed last may not have arrived. Check it before you go on.";

/**
 * One exec's output and input over a WebSocket. After a broken connection it attaches again behind the last byte that
 * it received, so nothing is lost or doubled while the server still has it. Keys are never sent twice: where it is not
 * known whether they arrived, the state's message says so.
 */
export class Attachment {
  private socket: WebSocket | null = null;
  private timer = 0;
  private wait = FIRST_WAIT_MS;
  private next = 0;
  /** Output, and how many bytes are lost between two pieces of it. */
  private readonly queue: (Uint8Array | number)[] = [];
  private queued = 0;
  private piece = SMALLEST_PIECE_BYTES;
  private showing = false;
  private paused = false;
  private over = false;
  private left = false;
  private exit: (() => void) | null = null;
  private typed: Uint8Array<ArrayBuffer>[] = [];
  private refused = false;
  private unsure = false;
  private sentAt = -Infinity;
  private heardAt = 0;
  private state: AttachState = "connecting";
  private readonly listening: number;

  constructor(
    private readonly sessionId: string,
    private readonly execId: string,
    private readonly events: AttachEvents,
  ) {
    this.listening = window.setInterval(() => this.listen(), LISTEN_EVERY_MS);
    this.connect();
  }

  write(data: Uint8Array<ArrayBuffer>): void {
    if (this.socket?.readyState === WebSocket.OPEN) {
      this.sendKeys(this.socket, data);
      return;
    }
    if (this.over) return;
    const waiting = this.typed.reduce((sum, each) => sum + each.length, 0);
    // After a gap nothing more is taken: the rest of a command could be another command.
    if (this.refused || waiting + data.length > MAX_TYPED_BYTES) {
      this.refused = true;
      this.tell(this.state, REFUSED);
      return;
    }
    this.typed.push(data);
    // A Ctrl-C must reach a flood that was left because the screen had not caught up.
    if (this.paused) this.resume();
  }

  resize(rows: number, cols: number): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: "resize", rows, cols }));
  }

  /** Leave; the exec runs on. */
  close(): void {
    this.over = true;
    this.left = true;
    this.queue.length = 0;
    clearTimeout(this.timer);
    clearInterval(this.listening);
    this.socket?.close();
  }

  private tell(state: AttachState, message: string): void {
    this.state = state;
    this.events.state(state, message);
  }

  private sendKeys(socket: WebSocket, data: Uint8Array<ArrayBuffer>): void {
    this.sentAt = performance.now();
    socket.send(data);
  }

  private connect(): void {
    if (this.over) return;
    this.heardAt = performance.now();
    this.tell("connecting", this.refused ? REFUSED : "");
    const path = `/v1/sessions/${segment(this.sessionId)}/execs/${segment(this.execId)}/attach`;
    const target = new URL(address(path, { offset: this.next }), location.href);
    target.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(target, subprotocols());
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.wait = FIRST_WAIT_MS;
      if (socket !== this.socket) return;
      this.heardAt = performance.now();
      this.tell("open", this.unsure ? UNSURE : this.refused ? REFUSED_SOME : "");
      this.unsure = this.refused = false;
      for (const data of this.typed.splice(0)) this.sendKeys(socket, data);
    };
    socket.onmessage = (message: MessageEvent<ArrayBuffer | string>) => {
      if (socket !== this.socket) return;
      this.heardAt = performance.now();
      this.receive(message.data);
    };
    socket.onclose = (event) => {
      if (socket === this.socket) this.closed(event);
    };
    this.socket = socket;
  }

  /** Give the connection up. */
  private drop(): void {
    const socket = this.socket;
    this.socket = null;
    if (!socket) return;
    if (this.sentAt > this.heardAt - UNDER_WAY_MS || socket.bufferedAmount > 0) this.unsure = true;
    this.sentAt = -Infinity;
    socket.close();
  }

  private listen(): void {
    if (!this.socket || performance.now() - this.heardAt < SILENCE_MS) return;
    this.drop();
    this.retry();
  }

  private receive(data: ArrayBuffer | string): void {
    if (typeof data !== "string") {
      this.receiveOutput(data);
      return;
    }
    const message = JSON.parse(data) as { type: string; verdict?: string; detail?: string; exited?: { code: number } };
    if (message.type === "exited") {
      this.over = true;
      this.exit = () => this.events.exited(message.verdict ?? "", message.exited?.code ?? 0);
      this.show();
    } else if (message.type === "error") {
      this.tell("waiting", message.detail ?? "The connection failed.");
    }
  }

  private receiveOutput(data: ArrayBuffer): void {
    const offset = Number(new DataView(data).getBigUint64(1));
    const bytes = new Uint8Array(data, HEADER_BYTES);
    const known = Math.min(Math.max(this.next - offset, 0), bytes.length);
    if (offset > this.next) this.queue.push(offset - this.next);
    this.next = Math.max(this.next, offset + bytes.length);
    if (known < bytes.length) this.queue.push(bytes.subarray(known));
    this.queued += bytes.length - known;
    this.show();
    if (this.queued > MAX_WAITING_BYTES) this.pause();
  }

  /** A browser has no way to read a WebSocket slower, so a flood is left for a moment and taken up again behind. */
  private pause(): void {
    this.paused = true;
    this.drop();
  }

  private resume(): void {
    this.paused = false;
    this.connect();
  }

  /** What comes alone is shown at once. A flood comes in pieces, with rests in which keys get their turn. */
  private show(): void {
    if (this.showing || this.left) return;
    const bytes = this.nextPiece();
    if (!bytes) {
      this.exit?.();
      this.exit = null;
      return;
    }
    this.showing = true;
    const began = performance.now();
    this.events.output(bytes, () => {
      this.queued -= bytes.length;
      this.piece = sizeOfNext(bytes.length, this.piece, performance.now() - began);
      if (this.paused && this.queued < LOW_WATER_BYTES) this.resume();
      const again = () => {
        this.showing = false;
        this.show();
      };
      if (this.queue.length === 0) again();
      else afterFrame(() => setTimeout(again, this.rest(performance.now() - began)));
    });
  }

  /** Drawing takes far longer than reading, so a page that cannot keep up rests for as long as it has worked. */
  private rest(workedMs: number): number {
    return this.queued > this.piece ? Math.min(workedMs, LONGEST_REST_MS) : 0;
  }

  /** From the front of the queue, as much as fits into one piece. What is lost before it is told first. */
  private nextPiece(): Uint8Array | null {
    let first = this.queue.shift();
    for (; typeof first === "number"; first = this.queue.shift()) this.events.gap(first);
    if (!first) return null;
    if (first.length > this.piece) {
      this.queue.unshift(first.subarray(this.piece));
      return first.subarray(0, this.piece);
    }
    const taken = [first];
    let length = first.length;
    for (let next = this.queue[0]; next instanceof Uint8Array && length + next.length <= this.piece; next = this.queue[0]) {
      taken.push(next);
      length += next.length;
      this.queue.shift();
    }
    if (taken.length === 1) return first;
    const all = new Uint8Array(length);
    let at = 0;
    for (const one of taken) {
      all.set(one, at);
      at += one.length;
    }
    return all;
  }

  private closed(event: CloseEvent): void {
    this.drop();
    if (this.over || event.code === 1000) {
      this.over = true;
      this.tell("ended", "");
      return;
    }
    const status = event.code - 4000;
    const final = status >= 400 && status < 500 && status !== 408 && status !== 429;
    if (final) {
      this.over = true;
      this.tell("ended", event.reason || "The command is no longer known.");
      return;
    }
    this.retry();
  }

  private retry(): void {
    this.tell("waiting", this.refused ? REFUSED : "The connection broke. Connecting again…");
    this.timer = window.setTimeout(() => this.connect(), this.wait);
    this.wait = Math.min(this.wait * 2, LONGEST_WAIT_MS);
  }
}

/** Pieces grow while they are quicker than they may be, and shrink on a busy machine. */
function sizeOfNext(length: number, piece: number, spentMs: number): number {
  if (spentMs > PIECE_MS) return Math.max(SMALLEST_PIECE_BYTES, Math.floor(length / 2));
  return length < piece / 2 ? piece : Math.min(LARGEST_PIECE_BYTES, piece * 2);
}

/** When the frame that shows the piece is drawn. */
function afterFrame(act: () => void): void {
  let done = false;
  const once = () => {
    if (done) return;
    done = true;
    clearTimeout(timer);
    act();
  };
  const timer = window.setTimeout(once, LONGEST_FRAME_MS);
  requestAnimationFrame(() => setTimeout(once));
}
