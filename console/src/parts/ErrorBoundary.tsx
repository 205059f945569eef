import { Component, type ReactNode } from "react";
import { messageOf } from "../api/errors";
import { Failure } from "./Failure";

/** An error in one page leaves the rest of the console usable. */
export class ErrorBoundary extends Component<{ children: ReactNode }, { error: unknown }> {
  override state: { error: unknown } = { error: null };

  static getDerivedStateFromError(error: unknown): { error: unknown } {
    return { error };
  }

  override render(): ReactNode {
    if (this.state.error === null) return this.props.children;
    return (
      <>
        <Failure message={`This page failed: ${messageOf(this.state.error)}`} />
        <button type="button" onClick={() => this.setState({ error: null })}>
          Try again
        </button>
      </>
    );
  }
}
