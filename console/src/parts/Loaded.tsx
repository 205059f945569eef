import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { messageOf } from "../api/errors";
import { Failure } from "./Failure";

/** What a query has brought, or why there is nothing. Old data stays on the page while new data fails to come. */
export function Loaded<T>({ query, children }: { query: UseQueryResult<T>; children: (data: T) => ReactNode }) {
  return (
    <>
      {query.error && <Failure message={messageOf(query.error)} />}
      {query.data !== undefined ? children(query.data) : query.isPending && <p className="hint">Loading…</p>}
    </>
  );
}
