import type { Action } from "../actions/action";
import { CopyAs } from "./CopyAs";

interface Props<T> {
  label: string;
  /** What it is called where the label alone does not say it. */
  name?: string;
  action: Action<T>;
  run: (action: Action<T>) => Promise<unknown>;
  disabled?: boolean;
}

/** A button that acts at once, beside the same as code. */
export function ActionButton<T>({ label, name, action, run, disabled = false }: Props<T>) {
  return (
    <>
      <CopyAs command={action} />
      <button type="button" className="small" aria-label={name ?? label} disabled={disabled} onClick={() => void run(action)}>
        {label}
      </button>
    </>
  );
}
