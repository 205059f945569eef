import { useState } from "react";
import type { Command } from "../actions/action";
import { Dialog } from "./Dialog";

/** Shows what is beside it on the command line and in Python. */
export function CopyAs({ command }: { command: Command }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button type="button" className="quiet small" title={`Copy as code: ${command.what}`} aria-label={`Copy as code: ${command.what}`} onClick={() => setOpen(true)}>
        {"</>"}
      </button>
      {open && (
        <Dialog title={command.what} close={() => setOpen(false)}>
          <Snippets command={command} />
        </Dialog>
      )}
    </>
  );
}

export function Snippets({ command }: { command: Command }) {
  return (
    <>
      <Snippet label="Command line" text={command.cli} />
      {command.python === null ? (
        <p className="hint">Only on the command line.</p>
      ) : (
        <Snippet label="Python" text={command.python} />
      )}
      <p className="hint">
        Set <code>SANDLOT_URL</code> to <code>{location.origin}</code> and <code>SANDLOT_API_KEY</code> to your key.
      </p>
    </>
  );
}

export function Snippet({ label, text }: { label: string; text: string }) {
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
