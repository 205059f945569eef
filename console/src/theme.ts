import { useSyncExternalStore } from "react";

export type Choice = "auto" | "light" | "dark";

const NAME = "sandlot.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

function chosen(): Choice {
  const saved = localStorage.getItem(NAME);
  return saved === "light" || saved === "dark" ? saved : "auto";
}

export function applyTheme(): void {
  const choice = chosen();
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
}

export function choose(choice: Choice): void {
  localStorage.setItem(NAME, choice);
  applyTheme();
  listeners.forEach((listener) => listener());
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  system.addEventListener("change", listener);
  return () => {
    listeners.delete(listener);
    system.removeEventListener("change", listener);
  };
}

export function useTheme(): { choice: Choice; dark: boolean } {
  const choice = useSyncExternalStore(subscribe, chosen);
  const dark = useSyncExternalStore(subscribe, () => (chosen() === "auto" ? system.matches : chosen() === "dark"));
  return { choice, dark };
}
