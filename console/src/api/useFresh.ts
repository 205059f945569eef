import { type Query, type QueryClient, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { address } from "./client";
import { follow } from "./streams";

/** How often a page asks again by itself: what other tenants do, and what machines do, sends it no events. */
export const SLOWLY_MS = 10_000;
/** How often it asks while it gets no events at all. */
export const OFTEN_MS = 3_000;
const SOON_MS = 1_000;

export const LIVES = ["session.created", "session.claimed", "session.lost", "session.hibernated", "session.ended"];

/** Asks again for queries as soon as something happens. Returns how often they are to ask by themselves. */
export function useFresh(names: readonly string[], kinds: readonly string[]): number {
  const queries = useQueryClient();
  const [live, setLive] = useState(false);
  const [wanted, happening] = [names.join(), kinds.join()];
  useEffect(() => {
    const stop = new AbortController();
    const refresh = refresher(queries, wanted.split(","), stop.signal);
    const since = Math.floor(Date.now() / 1000);
    const path = address("/v1/events", { since }) + happening.split(",").map((kind) => `&kind=${kind}`).join("");
    void follow(path, (message) => message.event === "event" && refresh(), setLive, stop.signal);
    return () => stop.abort();
  }, [queries, wanted, happening]);
  return live ? SLOWLY_MS : OFTEN_MS;
}

/** Asks again for these queries: at once, then at most once in a second, however often it is called. */
export function refresher(queries: QueryClient, names: readonly string[], signal: AbortSignal): () => void {
  const wanted = (query: Query) => names.includes(String(query.queryKey[0])) && !isLong(query);
  return throttled(() => queries.invalidateQueries({ predicate: wanted }), signal);
}

/**
 * A list of many pages is too much to ask for again with each event. One whose next page is on its way is such a list:
 * asking again would give that page up, and where much happens it would never arrive.
 */
function isLong(query: Query): boolean {
  const pages = (query.state.data as { pages?: { next?: string | null }[] } | undefined)?.pages ?? [];
  return pages.length > 1 || typeof pages[0]?.next === "string";
}

/** Calls not again before the last call has ended and a second has passed. */
function throttled(call: () => Promise<unknown>, signal: AbortSignal): () => void {
  let [busy, again] = [false, false];
  const run = async () => {
    busy = true;
    again = false;
    await Promise.allSettled([call(), new Promise((resolve) => setTimeout(resolve, SOON_MS))]);
    busy = false;
    if (again && !signal.aborted) void run();
  };
  return () => {
    again = true;
    if (!busy && !signal.aborted) void run();
  };
}
