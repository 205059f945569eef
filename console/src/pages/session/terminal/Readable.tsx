import { type RefObject, useState } from "react";
import { isReadable, type Screen } from "./screen";

/** Lets somebody choose whether a screen also writes its lines as text. */
export function Readable({ screen }: { screen: RefObject<Screen | null> }) {
  const [readable, setReadable] = useState(isReadable);
  const choose = (chosen: boolean) => {
    setReadable(chosen);
    screen.current?.setReadable(chosen);
  };
  return (
    <label className="check hint">
      <input type="checkbox" checked={readable} onChange={(event) => choose(event.target.checked)} /> For screen readers
    </label>
  );
}
