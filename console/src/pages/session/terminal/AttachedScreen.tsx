import { useEffect, useRef, useState } from "react";
import { Attachment, type AttachState } from "../../../api/attach";
import { count, ending } from "../../../format";
import { useTheme } from "../../../theme";
import { Readable } from "./Readable";
import { openScreen, type Screen, themeOf } from "./screen";

const SAID: Record<AttachState, string> = {
  connecting: "Connecting…",
  open: "Connected.",
  waiting: "Connecting again…",
  ended: "Ended.",
};

interface Props {
  sessionId: string;
  execId: string;
  label: string;
  /** Whether keys go to the command. */
  input: boolean;
  /** Whether the command has a terminal of its own; without one, its lines end with no carriage return. */
  pty: boolean;
  onEnd?: (ending: string) => void;
}

/** A command's output, live, on a terminal. */
export function AttachedScreen({ sessionId, execId, label, input, pty, onEnd }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const screen = useRef<Screen | null>(null);
  const ended = useRef(onEnd);
  ended.current = onEnd;
  const { dark } = useTheme();
  const [state, setState] = useState<{ state: AttachState; message: string }>({ state: "connecting", message: "" });

  useEffect(() => {
    if (!place.current) return;
    const made = openScreen(place.current, dark, { input });
    screen.current = made;
    const { terminal } = made;
    terminal.options.convertEol = !pty;
    const attachment = new Attachment(sessionId, execId, {
      output: (data, done) => terminal.write(data, done),
      gap: (bytes) => terminal.write(`\r\n\x1b[7m ${count(bytes)} bytes are not kept \x1b[0m\r\n`),
      state: (next, message) => {
        setState({ state: next, message });
        if (next === "open" && pty) attachment.resize(terminal.rows, terminal.cols);
        if (next === "ended" && message) ended.current?.(message);
      },
      exited: (verdict, code) => {
        terminal.write(`\r\n\x1b[2m[ended: ${ending(verdict, code)}]\x1b[0m\r\n`);
        setState({ state: "ended", message: "" });
        ended.current?.("");
      },
    });
    const encoder = new TextEncoder();
    if (input) {
      terminal.onData((text) => attachment.write(encoder.encode(text)));
      terminal.onBinary((text) => attachment.write(Uint8Array.from(text, (one) => one.charCodeAt(0))));
      if (pty) terminal.onResize(({ rows, cols }) => attachment.resize(rows, cols));
      // Tab belongs to the program, so there has to be another key that leads out.
      terminal.attachCustomKeyEventHandler((event) => {
        if (event.key === "Escape" && event.shiftKey) {
          terminal.blur();
          return false;
        }
        return true;
      });
      terminal.focus();
    }
    return () => {
      attachment.close();
      made.dispose();
      screen.current = null;
    };
  }, [sessionId, execId, input, pty]);

  useEffect(() => {
    if (screen.current) screen.current.terminal.options.theme = themeOf(dark);
  }, [dark]);

  return (
    <div className="screen">
      <div ref={place} className="screen-place" role="group" aria-label={label} data-state={state.state} />
      <footer className="row between screen-foot">
        <p className="screen-state" role="status">
          {state.message || (state.state === "open" && input ? "Connected. Shift+Escape leaves the terminal." : SAID[state.state])}
        </p>
        <Readable screen={screen} />
      </footer>
    </div>
  );
}
