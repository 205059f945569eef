import type { ReactNode } from "react";
import { savedKey } from "../api/key";
import { Link, usePlace } from "../router";
import { type Choice, choose, useTheme } from "../theme";

const PAGES = [
  ["", "Overview"],
  ["sessions", "Sessions"],
  ["threads", "Threads"],
  ["fleet", "Fleet"],
  ["admin", "Admin"],
] as const;

export function Shell({ leave, children }: { leave: () => void; children: ReactNode }) {
  const { parts } = usePlace();
  const here = parts[0] ?? "";
  return (
    <div className="shell">
      <a className="skip" href="#main">
        Skip to the page
      </a>
      <header className="side">
        <Link to="/" className="brand">
          <Mark /> Sandlot
        </Link>
        <nav aria-label="Pages">
          {PAGES.map(([path, label]) => (
            <Link key={path} to={`/${path}`} aria-current={here === path ? "page" : undefined}>
              {label}
            </Link>
          ))}
        </nav>
        <div className="side-end">
          <ThemeSwitch />
          {savedKey() && (
            <button type="button" className="quiet small" onClick={leave}>
              Log out
            </button>
          )}
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        {children}
      </main>
    </div>
  );
}

export function Mark() {
  return (
    <svg className="mark" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" />
      <path d="M8 21h16M8 16h10M8 11h13" />
    </svg>
  );
}

const CHOICES: readonly Choice[] = ["auto", "light", "dark"];

function ThemeSwitch() {
  const { choice } = useTheme();
  return (
    <label className="theme">
      <span className="unseen">Colours</span>
      <select value={choice} onChange={(event) => choose(event.target.value as Choice)}>
        {CHOICES.map((one) => (
          <option key={one} value={one}>
            {one === "auto" ? "System" : one === "light" ? "Light" : "Dark"}
          </option>
        ))}
      </select>
    </label>
  );
}
