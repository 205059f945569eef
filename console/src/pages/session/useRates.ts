import { useEffect, useState } from "react";

const KEPT = 120;

/** Rates per second from totals that grow, with their times: what a chart draws. */
export function useRates(totals: number[] | null, at: number): number[][] {
  const [samples, setSamples] = useState<{ at: number; totals: number[] }[]>([]);
  useEffect(() => {
    if (totals && at) setSamples((known) => [...known, { at: at / 1000, totals }].slice(-KEPT));
  }, [at]);
  const steps = samples.slice(1).map((sample, index) => {
    const before = samples[index] ?? sample;
    const past = Math.max(sample.at - before.at, 0.001);
    return { at: sample.at, rates: sample.totals.map((total, i) => Math.max(0, (total - (before.totals[i] ?? 0)) / past)) };
  });
  return [steps.map((step) => step.at), ...(totals ?? [0, 0]).map((_, i) => steps.map((step) => step.rates[i] ?? 0))];
}
