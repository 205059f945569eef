import { type AnchorHTMLAttributes, type MouseEvent, useSyncExternalStore } from "react";

export const BASE = "/console";
const listeners = new Set<() => void>();

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  window.addEventListener("popstate", listener);
  return () => {
    listeners.delete(listener);
    window.removeEventListener("popstate", listener);
  };
}

export function go(path: string): void {
  history.pushState(null, "", BASE + path);
  listeners.forEach((listener) => listener());
  window.scrollTo(0, 0);
}

/** Change what the address says of the page, without a step to go back to. */
export function replaceQuery(query: URLSearchParams): void {
  const text = query.toString();
  history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
  listeners.forEach((listener) => listener());
}

export function usePlace(): { parts: string[]; query: URLSearchParams } {
  const text = useSyncExternalStore(subscribe, () => location.pathname + location.search);
  const place = new URL(text, location.origin);
  const parts = place.pathname.slice(BASE.length).split("/").filter(Boolean).map(decoded);
  return { parts, query: place.searchParams };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

type LinkProps = Omit<AnchorHTMLAttributes<HTMLAnchorElement>, "href"> & { to: string };

export function Link({ to, onClick, ...rest }: LinkProps) {
  const follow = (event: MouseEvent<HTMLAnchorElement>) => {
    onClick?.(event);
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(to);
  };
  return <a {...rest} href={BASE + to} onClick={follow} />;
}
