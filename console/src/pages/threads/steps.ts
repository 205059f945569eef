import type { HistoryEvent } from "../../api/types";

/** One command of a conversation, with what happened until the next one. */
export interface Step {
  id: string;
  /** Which command it is, from 1; 0 if it is none. */
  number: number;
  started: HistoryEvent | null;
  ended: HistoryEvent | null;
  others: HistoryEvent[];
}

/** Events in their order as steps. What comes before the first command is a step without one. */
export function stepsOf(events: HistoryEvent[]): Step[] {
  const steps: Step[] = [];
  const byExec = new Map<string, Step>();
  for (const event of events) {
    if (event.kind === "exec.started" && event.exec_id) {
      const step: Step = { id: event.id, number: byExec.size + 1, started: event, ended: null, others: [] };
      byExec.set(`${event.session_id} ${event.exec_id}`, step);
      steps.push(step);
      continue;
    }
    const own = event.kind === "exec.ended" ? byExec.get(`${event.session_id} ${event.exec_id}`) : undefined;
    if (own) {
      own.ended = event;
      continue;
    }
    const last = steps.at(-1);
    if (last && event.kind !== "exec.ended") last.others.push(event);
    else if (!last) steps.push({ id: event.id, number: 0, started: null, ended: null, others: [event] });
  }
  return steps;
}
