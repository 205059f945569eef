import { CanvasAddon } from "@xterm/addon-canvas";
import { FitAddon } from "@xterm/addon-fit";
import { type ITheme, Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";

const SCROLLBACK_LINES = 5_000;
// Whether terminals also write their lines as text, which costs time where there is much output.
const READABLE = "sandlot.readable";

const LIGHT: ITheme = {
  background: "#fbfaf7",
  foreground: "#26231f",
  cursor: "#a3470f",
  selectionBackground: "#e6d9c8",
  black: "#26231f",
  red: "#b3261e",
  green: "#2f6b34",
  yellow: "#855b00",
  blue: "#24569e",
  magenta: "#8a3b8f",
  cyan: "#0f6b70",
  white: "#6b655c",
  brightBlack: "#6b655c",
  brightRed: "#b3261e",
  brightGreen: "#2f6b34",
  brightYellow: "#855b00",
  brightBlue: "#24569e",
  brightMagenta: "#8a3b8f",
  brightCyan: "#0f6b70",
  brightWhite: "#26231f",
};
const DARK: ITheme = {
  background: "#141311",
  foreground: "#e9e4db",
  cursor: "#f0955a",
  selectionBackground: "#4a4238",
  black: "#3a362f",
  red: "#f28b82",
  green: "#8fd19e",
  yellow: "#e6c36a",
  blue: "#8ab4f8",
  magenta: "#d7a3e0",
  cyan: "#7fd1d6",
  white: "#e9e4db",
};

export interface Screen {
  terminal: Terminal;
  fit: () => void;
  /** Write what it shows as text too, or no longer; so do the screens that open later. */
  setReadable: (readable: boolean) => void;
  dispose: () => void;
}

/**
 * A terminal that draws on a canvas. xterm's other way to draw adds <style> elements, which the page's policy forbids,
 * so the canvas must be there before the terminal opens.
 */
export function openScreen(place: HTMLElement, dark: boolean, options: { fixed?: { rows: number; cols: number }; input: boolean }): Screen {
  const terminal = new Terminal({
    ...options.fixed,
    fontFamily: "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace",
    fontSize: 13,
    scrollback: SCROLLBACK_LINES,
    theme: dark ? DARK : LIGHT,
    disableStdin: !options.input,
    cursorBlink: false,
    allowProposedApi: false,
    screenReaderMode: isReadable(),
    // A program in a sandbox must not reach the clipboard, the window or a link handler of ours.
    linkHandler: null,
    windowOptions: {},
  });
  const fitting = new FitAddon();
  terminal.loadAddon(fitting);
  terminal.loadAddon(new CanvasAddon());
  terminal.open(place);
  const fit = () => {
    if (!options.fixed) fitting.fit();
  };
  fit();
  const watcher = new ResizeObserver(fit);
  watcher.observe(place);
  return {
    terminal,
    fit,
    setReadable: (readable) => {
      localStorage.setItem(READABLE, readable ? "yes" : "no");
      terminal.options.screenReaderMode = readable;
      terminal.refresh(0, terminal.rows - 1); // what is on the screen already is text only once it is drawn again
    },
    dispose: () => {
      watcher.disconnect();
      terminal.dispose();
    },
  };
}

export function isReadable(): boolean {
  return localStorage.getItem(READABLE) === "yes";
}

export function themeOf(dark: boolean): ITheme {
  return dark ? DARK : LIGHT;
}
