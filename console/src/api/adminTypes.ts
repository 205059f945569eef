// What the pages of administrators read of the API's answers.
import type { Limits } from "./types";

export interface ApiKey {
  id: string;
  name: string;
  tenant: string;
  scopes: string[];
  hint: string;
  state: string;
  created_at: number;
  last_used_at: number | null;
  expires_at: number | null;
}

export interface UseLimits {
  sessions: number | null;
  cpus: number | null;
  memory_mb: number | null;
  execs: number | null;
  creates_per_s: number | null;
  calls_per_s: number | null;
}

export interface Tenant {
  tenant: string;
  limits: UseLimits;
  own_limits: UseLimits;
  use: { sessions: number; cpus: number; memory_mb: number };
  policy: string | null;
}

export interface Webhook {
  id: string;
  url: string;
  events: string[];
  state: string;
  created_at: number;
  delivered: number;
  error: string;
  dead_letters: number;
}

export interface Readiness {
  server: string;
  state: "ready" | "preparing" | "missing" | "failing" | "unknown";
  reason: string;
  since: number | null;
  warm: number;
}

export interface Environment {
  name: string;
  description: string;
  image: string;
  tier: string;
  limits: Limits;
  languages: string[];
  network: { allow: string[]; deny: string[] };
  policy: string | null;
  record: boolean;
  readiness: Readiness[];
}
