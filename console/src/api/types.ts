// What the console reads of the API's answers. docs/reference/http.md explains every field.
import type { MachineUse } from "./fleetTypes";

export interface Problem {
  status: number;
  code: string;
  detail: string;
  retryable: boolean;
  request_id: string;
}

export type SessionState = "active" | "unresponsive" | "lost" | "hibernated" | "ended";

export interface Limits {
  memory_bytes: number;
  cpus: number;
  pids: number;
  tmp_bytes: number;
  shm_bytes: number;
  open_files: number;
}

export interface LossReport {
  generation: number;
  at: number;
  reason: string;
  lost: string[];
  kept: string[];
}

export interface Workspace {
  id: string;
  quota_bytes: number | null;
  snapshot: string | null;
}

export interface Session {
  id: string;
  environment: string;
  state: SessionState;
  generation: number;
  created_at: number;
  last_active_at: number;
  expires_at: number | null;
  limits: Limits;
  thread: string | null;
  sandbox_id: string | null;
  metadata: Record<string, string>;
  loss: LossReport | null;
  predecessor: { id: string; reason: string; ended_at: number } | null;
  end_reason: string | null;
  ended_at: number | null;
  tenant: string;
  created_by: string;
  record: boolean;
  workspace: Workspace | null;
  on_idle: string;
}

export interface PoolStats {
  ready: number;
  making: number;
  waiting: number;
  target: number;
  target_reason: string;
  hits: number;
  misses: Record<string, number>;
  claim_ms_p50: number;
  suggested_size: number;
  failures: number;
  last_failure: string;
}

export interface Health {
  ready: boolean;
  creates: boolean;
  worker_id: string;
  version: string;
  active_sessions: number;
  calls_under_way: number;
  pools: Record<string, PoolStats>;
  problems: string[];
  workers: number | null;
  free: number | null;
  machine: MachineUse | null;
}

export interface HistoryEvent {
  id: string;
  at: number;
  kind: string;
  tenant: string;
  session_id: string | null;
  thread: string | null;
  exec_id: string | null;
  key_id: string;
  subject: string;
  details: Record<string, string | number | boolean>;
}

export interface ExecSummary {
  exec_id: string;
  command: string;
  running: boolean;
  started_at: number | null;
  duration_ms: number | null;
  exit_code: number | null;
  output_end: number | null;
  shell: string | null;
}

export interface ExecResult {
  exit_code: number;
  verdict: string;
  duration_ms: number;
  truncated: boolean;
  output: string;
  output_bytes: number;
  peak_memory_bytes: number;
}

export interface ExecStatus {
  exec_id: string;
  running: boolean;
  result: ExecResult | null;
}

export interface FileEntry {
  name: string;
  path: string;
  type: string;
  size: number;
  mode: number;
  mtime_ms: number;
  target: string | null;
}

export interface Snapshot {
  id: string;
  session_id: string;
  created_at: number;
  environment: string;
  thread: string | null;
  name: string;
  parent: string | null;
  unique_bytes: number | null;
}

export interface Difference {
  added: string[];
  changed: string[];
  removed: string[];
  truncated: boolean;
}

export interface WorkspaceStatus {
  workspace: Workspace;
  store: string;
  used_bytes: number | null;
  snapshots: number;
  note: string;
}

export interface Usage {
  measured_at: number;
  cpu_s: number;
  cpus: number;
  memory_bytes: number;
  memory_limit_bytes: number;
  processes: number;
  processes_limit: number;
  disk_bytes: number | null;
  disk_limit_bytes: number | null;
}

export interface Denied {
  target: string;
  rule: string;
  why: string;
  entry: string;
  ask: string;
}

export interface Network {
  policy: { allow: string[]; deny: string[] };
  grants: { entry: string; until: number | null }[];
  forwards: { port: number; target: string }[];
  traffic: {
    open: number;
    connections: number;
    requests: number;
    denied: number;
    sent_bytes: number;
    received_bytes: number;
  };
  denied: Denied[];
}

export interface Port {
  id: string;
  port: number;
  public: boolean;
}
