import { useEffect, useRef } from "react";
import { Link } from "../router";

interface Props {
  label: string;
  /** Addresses and names, in their order. */
  tabs: readonly (readonly [string, string])[];
  current: string;
  to: (name: string) => string;
}

/** Pages beside each other. Where they do not fit, the current one is scrolled into view. */
export function Tabs({ label, tabs, current, to }: Props) {
  const bar = useRef<HTMLElement>(null);
  useEffect(() => {
    const place = bar.current;
    if (!place) return;
    const show = () => {
      const tab = place.querySelector<HTMLElement>("[aria-current]");
      if (tab) place.scrollLeft = tab.offsetLeft - (place.clientWidth - tab.offsetWidth) / 2;
    };
    const watcher = new ResizeObserver(show); // it calls at once, too
    watcher.observe(place);
    return () => watcher.disconnect();
  }, [current, tabs.length]);
  return (
    <nav ref={bar} className="tabs" aria-label={label}>
      {tabs.map(([name, text]) => (
        <Link key={name} to={to(name)} aria-current={current === name ? "page" : undefined}>
          {text}
        </Link>
      ))}
    </nav>
  );
}
