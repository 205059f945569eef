import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { address } from "../../api/client";
import { follow } from "../../api/streams";
import type { HistoryEvent } from "../../api/types";
import { LIVES, refresher } from "../../api/useFresh";

export const BUCKET_S = 60;
export const MINUTES = 30;
const RECENT = 8;
const NOTED = new Set(["session.lost", "request.refused", "history.dropped"]);

export interface Activity {
  times: number[];
  creates: number[];
  execs: number[];
  failed: number[];
  troubles: HistoryEvent[];
  live: boolean;
}

/** What happens, counted by the minute as it arrives. Only the counts are kept. Each event has `names` asked again. */
export function useActivity(names: string): Activity {
  const queries = useQueryClient();
  const counts = useRef(new Map<number, [number, number, number]>());
  const troubles = useRef<HistoryEvent[]>([]);
  const [live, setLive] = useState(false);
  const [, draw] = useState(0);

  useEffect(() => {
    const stop = new AbortController();
    const refresh = refresher(queries, names.split(" "), stop.signal);
    const kinds = [...new Set([...LIVES, "exec.started", "exec.ended", ...NOTED])].map((kind) => `&kind=${kind}`).join("");
    const since = Math.floor(Date.now() / 1000) - MINUTES * BUCKET_S;
    counts.current.clear();
    troubles.current = [];
    const take = (event: HistoryEvent) => {
      refresh();
      const minute = Math.floor(event.at / BUCKET_S);
      const count = counts.current.get(minute) ?? [0, 0, 0];
      if (event.kind === "session.created") count[0] += 1;
      if (event.kind === "exec.started") count[1] += 1;
      if (event.kind === "exec.ended" && (event.details.verdict ?? "ok") !== "ok") count[2] += 1;
      counts.current.set(minute, count);
      if (NOTED.has(event.kind)) troubles.current = [event, ...troubles.current].slice(0, RECENT);
    };
    void follow(
      address("/v1/events", { since }) + kinds,
      (message) => message.event === "event" && take(message.data as HistoryEvent),
      setLive,
      stop.signal,
    );
    const timer = setInterval(() => draw((times) => times + 1), 1_000);
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [queries, names]);

  const last = Math.floor(Date.now() / 1000 / BUCKET_S);
  const minutes = Array.from({ length: MINUTES }, (_, index) => last - MINUTES + 1 + index);
  const of = (index: 0 | 1 | 2) => minutes.map((minute) => counts.current.get(minute)?.[index] ?? 0);
  return {
    times: minutes.map((minute) => minute * BUCKET_S),
    creates: of(0),
    execs: of(1),
    failed: of(2),
    troubles: troubles.current,
    live,
  };
}
