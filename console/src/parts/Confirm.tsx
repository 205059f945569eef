import { type ReactNode, useState } from "react";
import type { Action } from "../actions/action";
import { messageOf } from "../api/errors";
import { Snippets } from "./CopyAs";
import { Dialog } from "./Dialog";
import { Failure } from "./Failure";

interface Props<T> {
  label: string;
  title: string;
  children: ReactNode;
  action: Action<T>;
  done: (result: T) => unknown;
  danger?: boolean;
}

/** A button that asks before it does something, and shows the same as code. */
export function Confirm<T>({ label, title, children, action, done, danger = true }: Props<T>) {
  const [open, setOpen] = useState(false);
  const [coded, setCoded] = useState(false);
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState("");
  const run = async () => {
    setBusy(true);
    setFailed("");
    try {
      await done(await action.run());
      setOpen(false);
    } catch (error) {
      setFailed(messageOf(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <button type="button" className={danger ? "danger small" : "small"} onClick={() => setOpen(true)}>
        {label}
      </button>
      {open && (
        <Dialog title={title} close={() => setOpen(false)}>
          <div className="dialog-text">{children}</div>
          {failed && <Failure message={failed} />}
          <footer className="row between">
            <button type="button" className="quiet small" aria-expanded={coded} onClick={() => setCoded(!coded)}>
              {"</> Show as code"}
            </button>
            <span className="row">
              <button type="button" onClick={() => setOpen(false)}>
                Cancel
              </button>
              <button type="button" className={danger ? "danger" : "primary"} disabled={busy} onClick={() => void run()}>
                {label}
              </button>
            </span>
          </footer>
          {coded && <Snippets command={action} />}
        </Dialog>
      )}
    </>
  );
}
