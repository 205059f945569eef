import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { get, onUnauthorized } from "./api/client";
import { messageOf } from "./api/errors";
import { forgetKey, savedKey } from "./api/key";
import { ErrorBoundary } from "./parts/ErrorBoundary";
import { Shell } from "./parts/Shell";
import Admin from "./pages/admin/Admin";
import Fleet from "./pages/fleet/Fleet";
import { Login } from "./pages/login/Login";
import { Overview } from "./pages/overview/Overview";
import Session from "./pages/session/Session";
import { Sessions } from "./pages/sessions/Sessions";
import Threads from "./pages/threads/Threads";
import { usePlace } from "./router";

type Entrance = "asking" | "in" | "out";

export function App() {
  const queries = useQueryClient();
  const [entrance, setEntrance] = useState<Entrance>("asking");
  const [problem, setProblem] = useState("");

  useEffect(() => {
    // A server without a key lets everybody on its machine in.
    get("/v1/sessions", { limit: 1 })
      .then(() => setEntrance("in"))
      .catch((error: unknown) => {
        if (savedKey()) setProblem(messageOf(error));
        setEntrance("out");
      });
  }, []);

  useEffect(
    () =>
      onUnauthorized(() => {
        if (savedKey()) setProblem("Your API key is no longer valid. It may have expired or been revoked. Log in with another key.");
        setEntrance((known) => (known === "asking" ? known : "out"));
      }),
    [],
  );

  const leave = () => {
    forgetKey();
    queries.clear();
    setProblem("");
    setEntrance("out");
  };
  if (entrance === "asking") return <p className="hint center">Connecting…</p>;
  if (entrance === "out") return <Login problem={problem} enter={() => setEntrance("in")} />;
  return (
    <Shell leave={leave}>
      <ErrorBoundary>
        <Page />
      </ErrorBoundary>
    </Shell>
  );
}

function Page() {
  const { parts } = usePlace();
  const [page = "", name, tab] = parts;
  useEffect(() => {
    document.title = page ? `${page[0]?.toUpperCase()}${page.slice(1)} · Sandlot` : "Sandlot";
  }, [page]);
  switch (page) {
    case "":
      return <Overview />;
    case "sessions":
      return name === undefined ? <Sessions /> : <Session key={name} id={name} tab={tab ?? "about"} />;
    case "threads":
      return <Threads thread={name} />;
    case "fleet":
      return <Fleet />;
    case "admin":
      return <Admin tab={name ?? "environments"} />;
    default:
      return (
        <>
          <h1>Nothing here</h1>
          <p>The console has no page with this address.</p>
        </>
      );
  }
}
