import { visible } from "../format";

/** A name that somebody else chose: one line, cut where there is no room, with what cannot be seen made visible. */
export function Name({ text, className = "" }: { text: string; className?: string }) {
  const shown = visible(text);
  return (
    <span className={`name ${className}`} title={shown} dir="auto">
      {shown}
    </span>
  );
}
