import { useState } from "react";
import type { Command } from "../commands";
import { Dialog } from "./Dialog";

/** Shows what the action beside it is on the command line and in Python. */
export function CopyAs({ command, what }: { command: Command; what: string }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button type="button" className="quiet small" aria-label={`Copy as code: ${what}`} onClick={() => setOpen(true)}>
        {"</>"}
      </button>
      {open && (
        <Dialog title={what} close={() => setOpen(false)}>
          <Snippet label="Command line" text={command.cli} />
          <Snippet label="Python" text={command.python} />
          <p className="hint">Both read the key from SANDLOT_API_KEY and the address from SANDLOT_URL.</p>
        </Dialog>
      )}
    </>
  );
}

function Snippet({ label, text }: { label: string; text: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <section className="snippet">
      <header>
        <h3>{label}</h3>
        <button type="button" className="small" onClick={() => void copy()}>
          {copied ? "Copied" : "Copy"}
        </button>
      </header>
      <pre tabIndex={0}>{text}</pre>
    </section>
  );
}
