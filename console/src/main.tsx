import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./App";
import { ApiError } from "./api/errors";
import { applyTheme } from "./theme";
import "./style/index.css";

applyTheme();

const queries = new QueryClient({
  defaultOptions: {
    queries: {
      // An error that says it may pass is worth asking again; a refusal is not.
      retry: (times, error) => times < 2 && !(error instanceof ApiError && !error.retryable),
      staleTime: 2_000,
    },
  },
});

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={queries}>
        <App />
      </QueryClientProvider>
    </StrictMode>,
  );
}
