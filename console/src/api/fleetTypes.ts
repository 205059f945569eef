// What the pages of a fleet read of the API's answers.
import type { Session } from "./types";

export interface Resources {
  memory_bytes: number;
  cpus: number;
  pids: number;
}

export interface MachineUse {
  total: Resources;
  given: Resources;
  disk_free_bytes: number | null;
}

export interface Worker {
  id: string;
  url: string;
  version: string;
  state: string;
  epoch: number;
  lease_left_s: number;
  sessions: number;
  recorded: number;
  warm: number;
  free: number;
  draining: boolean;
  problems: string[];
  machine: MachineUse | null;
}

export interface PlacedSession {
  session: Session;
  worker: string;
  worker_state: string;
}

export interface Fleet {
  sessions: number;
  reservations: number;
  settled: boolean;
  workers: Worker[];
}
