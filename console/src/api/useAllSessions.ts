import { type UseInfiniteQueryResult, useInfiniteQuery } from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { get } from "./client";

const PAGE = 500;
const MOST_PAGES = 20;
/** Longer lists are cut, and the page says so. */
export const MOST_SESSIONS = PAGE * MOST_PAGES;
const LONG_LIST_MS = 30_000;

interface Page<T> {
  sessions: T[];
  next: string | null;
}

interface AllSessions<T> {
  /** Oldest first, as far as they have arrived. */
  sessions: T[];
  query: UseInfiniteQueryResult;
  /** Whether more are on their way. */
  loading: boolean;
  /** Whether there are more than the page asks for. */
  cut: boolean;
}

/** Sessions page by page until all are here: the server lists the oldest first, and searches in none of them. */
export function useAllSessions<T>(name: string, path: string, filters: Record<string, string | undefined>, everyMs: number): AllSessions<T> {
  const query = useInfiniteQuery({
    queryKey: [name, filters],
    queryFn: ({ pageParam, signal }) => get<Page<T>>(path, { ...filters, limit: PAGE, after: pageParam }, signal),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last) => last.next ?? undefined,
    // All pages are asked for again, one after the other.
    refetchInterval: (known) => ((known.state.data?.pages.length ?? 0) > 1 ? LONG_LIST_MS : everyMs),
  });
  const { data, hasNextPage, isFetching, error, fetchNextPage } = query;
  const pages = data?.pages.length ?? 0;
  const wanted = hasNextPage && pages < MOST_PAGES;
  useEffect(() => {
    if (wanted && !isFetching && !error) void fetchNextPage();
  }, [wanted, isFetching, error, fetchNextPage]);
  const sessions = useMemo(() => data?.pages.flatMap((page) => page.sessions) ?? [], [data]);
  return { sessions, query, loading: wanted && !error, cut: hasNextPage && pages >= MOST_PAGES };
}
