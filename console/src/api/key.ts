// The key lives as long as the tab: see "Where the key is" in console/README.md.
const NAME = "sandlot.key";

export function savedKey(): string | null {
  return sessionStorage.getItem(NAME);
}

export function saveKey(key: string): void {
  sessionStorage.setItem(NAME, key);
}

export function forgetKey(): void {
  sessionStorage.clear();
}

export function authorization(): Record<string, string> {
  const key = savedKey();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** What a page offers with a WebSocket, where a browser lets it set no header of its own. */
export function subprotocols(): string[] {
  const key = savedKey();
  if (!key) return ["sandlot"];
  const text = btoa(String.fromCharCode(...new TextEncoder().encode(key)));
  return ["sandlot", `sandlot.key.${text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`];
}
