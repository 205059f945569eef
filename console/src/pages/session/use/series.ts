import { useEffect, useState } from "react";

const KEPT = 150;

export interface Sample {
  /** In seconds. */
  at: number;
  values: number[];
}

/** The latest measurements, oldest first. */
export function useSamples(values: number[] | null, at: number): Sample[] {
  const [samples, setSamples] = useState<Sample[]>([]);
  useEffect(() => {
    if (values && at) setSamples((known) => [...known, { at, values }].slice(-KEPT));
  }, [at]);
  return samples;
}

/** What totals that grow have gained per second. A new sandbox counts from zero again. */
export function rates(samples: Sample[]): Sample[] {
  return samples.slice(1).map((sample, index) => {
    const before = samples[index] ?? sample;
    const past = Math.max(sample.at - before.at, 0.001);
    return { at: sample.at, values: sample.values.map((value, i) => Math.max(0, (value - (before.values[i] ?? 0)) / past)) };
  });
}

/** What a chart draws: the times, then one list for each line. */
export function columns(samples: Sample[], lines: number): number[][] {
  const times = samples.map((sample) => sample.at);
  return [times, ...Array.from({ length: lines }, (_, i) => samples.map((sample) => sample.values[i] ?? 0))];
}
