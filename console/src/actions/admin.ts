import { post, put, remove, segment } from "../api/client";
import type { UseLimits } from "../api/adminTypes";
import type { Action, Command } from "./action";
import { cli, onClient, option } from "./words";

export function listEnvironments(): Command {
  return {
    what: "List the environments",
    cli: cli("env", "list"),
    python: onClient("for environment in client.catalogue().environments:", "    print(environment)"),
  };
}

export function reloadEnvironments(): Action {
  return {
    what: "Reload the environments",
    cli: cli("env", "reload"),
    python: null,
    run: () => post("/v1/environments/reload"),
  };
}

export function listKeys(): Command {
  return { what: "List the keys", cli: cli("keys", "list"), python: null };
}

export function createKey(name: string, tenant: string, scopes: string[]): Action<{ secret: string }> {
  return {
    what: "Create a key",
    cli: cli("keys", "create", name || "NAME", ...option("--tenant", tenant), ...scopes.flatMap((scope) => ["--scope", scope])),
    python: null,
    run: () => post("/v1/keys", { name, tenant: tenant || null, scopes }),
  };
}

export function revokeKey(key: string): Action {
  return {
    what: "Revoke this key",
    cli: cli("keys", "revoke", key),
    python: null,
    run: () => remove(`/v1/keys/${segment(key)}`),
  };
}

export function listTenants(): Command {
  return { what: "List the tenants", cli: cli("tenants", "list"), python: null };
}

/** All limits: one that is null is taken away. */
export function limitTenant(tenant: string, limits: UseLimits): Action {
  return {
    what: "Set these limits",
    cli: cli("tenants", "limit", tenant, ...Object.entries(limits).map(([name, value]) => `${name}=${value ?? "none"}`)),
    python: null,
    run: () => put(`/v1/tenants/${segment(tenant)}/limits`, limits),
  };
}

export function listWebhooks(): Command {
  return { what: "List the webhooks", cli: cli("webhooks", "list"), python: null };
}

export function createWebhook(url: string, events: string[]): Action<{ secret: string }> {
  return {
    what: "Create a webhook",
    cli: cli("webhooks", "create", url || "URL", ...events.flatMap((event) => ["--event", event])),
    python: null,
    run: () => post("/v1/webhooks", { url, events }),
  };
}

export function redeliverDeadLetters(webhook: string): Action {
  return {
    what: "Redeliver the dead letters",
    cli: cli("webhooks", "redeliver", webhook),
    python: null,
    run: () => post(`/v1/webhooks/${segment(webhook)}/dead-letters/redeliver`),
  };
}

export function deleteWebhook(webhook: string): Action {
  return {
    what: "Delete this webhook",
    cli: cli("webhooks", "delete", webhook),
    python: null,
    run: () => remove(`/v1/webhooks/${segment(webhook)}`),
  };
}
