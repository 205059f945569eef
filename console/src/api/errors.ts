import type { Problem } from "./types";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly retryable: boolean,
    readonly requestId: string,
  ) {
    super(message);
  }

  static of(status: number, problem: Partial<Problem>): ApiError {
    const detail = problem.detail ?? `The server answered ${status}.`;
    return new ApiError(status, problem.code ?? "unknown", detail, problem.retryable ?? false, problem.request_id ?? "");
  }
}

export function messageOf(error: unknown): string {
  if (error instanceof ApiError) return error.message;
  if (error instanceof TypeError) return "The server does not answer. Check that it runs and that you are online.";
  return error instanceof Error ? error.message : "Something went wrong.";
}
