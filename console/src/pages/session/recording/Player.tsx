import { useEffect, useRef, useState } from "react";
import { seconds } from "../../../format";
import { useTheme } from "../../../theme";
import { Readable } from "../terminal/Readable";
import { openScreen, type Screen, themeOf } from "../terminal/screen";
import type { Cast } from "./cast";

const SPEEDS = [1, 2, 5, 10];
const STEP_MS = 50;

export function Player({ cast }: { cast: Cast }) {
  const place = useRef<HTMLDivElement>(null);
  const screen = useRef<Screen | null>(null);
  const written = useRef(0);
  const { dark } = useTheme();
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState(2);
  const [at, setAt] = useState(0);
  const length = cast.pieces.at(-1)?.at ?? 0;

  useEffect(() => {
    if (!place.current) return;
    const made = openScreen(place.current, dark, { fixed: { rows: cast.rows, cols: cast.cols }, input: false });
    screen.current = made;
    written.current = 0;
    return () => made.dispose();
  }, [cast]);

  useEffect(() => {
    if (screen.current) screen.current.terminal.options.theme = themeOf(dark);
  }, [dark]);

  useEffect(() => {
    if (!playing) return;
    const timer = setInterval(() => setAt((known) => Math.min(known + (STEP_MS / 1000) * speed, length)), STEP_MS);
    return () => clearInterval(timer);
  }, [playing, speed, length]);

  useEffect(() => {
    const terminal = screen.current?.terminal;
    if (!terminal) return;
    const first = cast.pieces[written.current - 1];
    if (first && first.at > at) {
      terminal.reset();
      written.current = 0;
    }
    let text = "";
    for (let next = cast.pieces[written.current]; next && next.at <= at; next = cast.pieces[written.current]) {
      text += next.text;
      written.current += 1;
    }
    if (text) terminal.write(text);
    if (at >= length) setPlaying(false);
  }, [at, cast, length]);

  return (
    <div className="player">
      <div ref={place} className="screen-fixed" role="group" aria-label="Recording" />
      <div className="row">
        <button
          type="button"
          className="primary small"
          onClick={() => {
            if (!playing && at >= length) setAt(0);
            setPlaying(!playing);
          }}
        >
          {playing ? "Pause" : "Play"}
        </button>
        <input
          className="grow"
          type="range"
          aria-label="Position"
          min={0}
          max={length}
          step="any"
          value={at}
          onChange={(event) => setAt(Number(event.target.value))}
        />
        <span className="hint">
          {seconds(at)} of {seconds(length)}
        </span>
        <label>
          <span className="unseen">Speed</span>
          <select value={speed} onChange={(event) => setSpeed(Number(event.target.value))}>
            {SPEEDS.map((one) => (
              <option key={one} value={one}>
                {one}×
              </option>
            ))}
          </select>
        </label>
        <Readable screen={screen} />
      </div>
    </div>
  );
}
