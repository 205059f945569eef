/** What a part of a page shows or does, as text to copy. */
export interface Command {
  /** What it does: the title of the text. */
  what: string;
  cli: string;
  /** Null if only the command line can do it. */
  python: string | null;
}

/** What a button does. Each change that the console makes is one, so that each can be copied. */
export interface Action<T = unknown> extends Command {
  run: () => Promise<T>;
}
