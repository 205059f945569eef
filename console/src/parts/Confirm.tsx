import { type ReactNode, useState } from "react";
import { messageOf } from "../api/errors";
import { Dialog } from "./Dialog";
import { Failure } from "./Failure";

interface Props {
  label: string;
  title: string;
  children: ReactNode;
  act: () => Promise<unknown>;
  danger?: boolean;
  disabled?: boolean;
}

/** A button that asks before it does something that cannot be undone. */
export function Confirm({ label, title, children, act, danger = true, disabled = false }: Props) {
  const [open, setOpen] = useState(false);
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState("");
  const run = async () => {
    setBusy(true);
    setFailed("");
    try {
      await act();
      setOpen(false);
    } catch (error) {
      setFailed(messageOf(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <button type="button" className={danger ? "danger small" : "small"} disabled={disabled} onClick={() => setOpen(true)}>
        {label}
      </button>
      {open && (
        <Dialog title={title} close={() => setOpen(false)}>
          <div className="dialog-text">{children}</div>
          {failed && <Failure message={failed} />}
          <footer className="row end">
            <button type="button" onClick={() => setOpen(false)}>
              Cancel
            </button>
            <button type="button" className={danger ? "danger" : "primary"} disabled={busy} onClick={() => void run()}>
              {label}
            </button>
          </footer>
        </Dialog>
      )}
    </>
  );
}
