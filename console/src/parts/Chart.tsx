import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock, minute } from "../format";
import { useTheme } from "../theme";

export interface Line {
  label: string;
  tone: "first" | "second" | "third";
}

interface Props {
  title: string;
  lines: Line[];
  /** Times in seconds, then one list for each line. */
  data: number[][];
  value: (value: number) => string;
  height?: number;
  /** Whether the values are bytes, which are counted in powers of two. */
  binary?: boolean;
  /** The least that the height of the chart stands for. */
  top?: number;
}

const POWERS = Array.from({ length: 48 }, (_, power) => 2 ** power);

const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600];

/** The hour and minute, and seconds where the axis has some. */
function times(_plot: uPlot, ticks: number[]): string[] {
  return ticks.map((tick) => (ticks.some((one) => one % 60 !== 0) ? clock(tick) : minute(tick)));
}

export function Chart({ title, lines, data, value, height = 150, binary = false, top = 1 }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const { dark } = useTheme();
  // The axis of one point alone would span years.
  const drawn = (data[0]?.length ?? 0) < 2 ? data.map(() => []) : data;
  const labels = lines.map((line) => line.label).join("\n");

  useEffect(() => {
    const place = box.current;
    if (!place) return;
    const style = getComputedStyle(place);
    const colour = (name: string) => style.getPropertyValue(`--${name}`).trim();
    const axis: uPlot.Axis = {
      stroke: () => resolved(place, "--soft"),
      grid: { stroke: resolved(place, "--line"), width: 1 },
      ticks: { show: false },
      font: `11px ${colour("sans")}`,
    };
    const made = new uPlot(
      {
        width: place.clientWidth,
        height,
        cursor: { y: false },
        legend: { show: false },
        scales: { y: { range: (_plot, _low, high) => [0, Math.max(high * 1.15, top)] } },
        axes: [{ ...axis, size: 26, space: 90, incrs: SECONDS, values: times }, { ...axis, ...(binary ? { incrs: POWERS } : {}), size: 64, values: (_plot, ticks) => ticks.map((tick) => value(tick)) }],
        series: [
          {},
          ...lines.map((line) => ({
            label: line.label,
            stroke: resolved(place, `--${line.tone}`),
            width: 2,
            points: { show: false },
          })),
        ],
      },
      drawn as uPlot.AlignedData,
      place,
    );
    plot.current = made;
    const watcher = new ResizeObserver(() => made.setSize({ width: place.clientWidth, height }));
    watcher.observe(place);
    return () => {
      watcher.disconnect();
      made.destroy();
      plot.current = null;
    };
    // The data comes by the effect below; a new plot for each figure would flicker.
  }, [labels, height, top, dark]);

  useEffect(() => plot.current?.setData(drawn as uPlot.AlignedData), [data]);

  const last = (index: number) => data[index + 1]?.at(-1) ?? 0;
  return (
    <figure className="chart">
      <figcaption>
        <span>{title}</span>
        <span className="legend">
          {lines.map((line, index) => (
            <span key={line.label} className={`key ${line.tone}`}>
              {line.label} <b>{value(last(index))}</b>
            </span>
          ))}
        </span>
      </figcaption>
      <div ref={box} role="img" aria-label={`${title}: ${lines.map((line, i) => `${line.label} ${value(last(i))}`).join(", ")}`} />
    </figure>
  );
}

/** A colour as a canvas reads it: variables of ours may be light-dark(). */
function resolved(place: HTMLElement, name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  place.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
