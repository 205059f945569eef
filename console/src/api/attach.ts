import { address, segment } from "./client";
import { subprotocols } from "./key";

/** What has arrived and is not on the screen yet. Above it, we stop listening until the screen has caught up. */
const MAX_WAITING_BYTES = 32 * 1024 * 1024;
const LOW_WATER_BYTES = 1024 * 1024;
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

/**
 * One exec's output and input over a WebSocket. After a broken connection it attaches again behind the last byte that
 * it received, so nothing is lost or doubled while the server still has it.
 */
export class Attachment {
  private socket: WebSocket | null = null;
  private timer = 0;
  private wait = FIRST_WAIT_MS;
  private next = 0;
  private readonly queue: Uint8Array[] = [];
  private queued = 0;
  private showing = false;
  private paused = false;
  private over = false;
  private exit: (() => void) | null = null;

  constructor(
    private readonly sessionId: string,
    private readonly execId: string,
    private readonly events: AttachEvents,
  ) {
    this.connect();
  }

  write(data: Uint8Array<ArrayBuffer>): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(data);
  }

  resize(rows: number, cols: number): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: "resize", rows, cols }));
  }

  /** Leave; the exec runs on. */
  close(): void {
    this.over = true;
    clearTimeout(this.timer);
    this.socket?.close();
  }

  private connect(): void {
    if (this.over) return;
    this.events.state("connecting", "");
    const path = `/v1/sessions/${segment(this.sessionId)}/execs/${segment(this.execId)}/attach`;
    const target = new URL(address(path, { offset: this.next }), location.href);
    target.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(target, subprotocols());
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.wait = FIRST_WAIT_MS;
      this.events.state("open", "");
    };
    socket.onmessage = (message: MessageEvent<ArrayBuffer | string>) => {
      if (socket === this.socket) this.receive(message.data);
    };
    socket.onclose = (event) => {
      if (socket === this.socket) this.closed(event);
    };
    this.socket = socket;
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
      this.events.state("waiting", message.detail ?? "The connection failed.");
    }
  }

  private receiveOutput(data: ArrayBuffer): void {
    const offset = Number(new DataView(data).getBigUint64(1));
    const bytes = new Uint8Array(data, HEADER_BYTES);
    const known = Math.min(Math.max(this.next - offset, 0), bytes.length);
    if (offset > this.next) this.events.gap(offset - this.next);
    this.next = Math.max(this.next, offset + bytes.length);
    if (known === bytes.length) return;
    this.queue.push(bytes.subarray(known));
    this.queued += bytes.length - known;
    this.show();
    if (this.queued > MAX_WAITING_BYTES) this.pause();
  }

  /** A browser has no way to read a WebSocket slower, so a flood is left for a moment and taken up again behind. */
  private pause(): void {
    this.paused = true;
    const socket = this.socket;
    this.socket = null;
    socket?.close();
  }

  private show(): void {
    if (this.showing) return;
    const bytes = this.queue.shift();
    if (!bytes) {
      this.exit?.();
      this.exit = null;
      return;
    }
    this.showing = true;
    this.events.output(bytes, () => {
      this.showing = false;
      this.queued -= bytes.length;
      if (this.paused && this.queued < LOW_WATER_BYTES) {
        this.paused = false;
        this.connect();
      }
      this.show();
    });
  }

  private closed(event: CloseEvent): void {
    this.socket = null;
    if (this.over || event.code === 1000) {
      this.over = true;
      this.events.state("ended", "");
      return;
    }
    const status = event.code - 4000;
    const final = status >= 400 && status < 500 && status !== 408 && status !== 429;
    if (final) {
      this.over = true;
      this.events.state("ended", event.reason || "The command is no longer known.");
      return;
    }
    this.events.state("waiting", "The connection broke. Connecting again…");
    this.timer = window.setTimeout(() => this.connect(), this.wait);
    this.wait = Math.min(this.wait * 2, LONGEST_WAIT_MS);
  }
}
