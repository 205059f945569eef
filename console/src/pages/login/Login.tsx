import { type FormEvent, useState } from "react";
import { get } from "../../api/client";
import { ApiError, messageOf } from "../../api/errors";
import { forgetKey, saveKey } from "../../api/key";
import { Failure } from "../../parts/Failure";
import { Mark } from "../../parts/Shell";

export function Login({ problem, enter }: { problem: string; enter: () => void }) {
  const [key, setKey] = useState("");
  const [failed, setFailed] = useState(problem);
  const [busy, setBusy] = useState(false);

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setFailed("");
    saveKey(key.trim());
    try {
      await get("/v1/sessions", { limit: 1 });
      enter();
    } catch (error) {
      if (error instanceof ApiError && error.status === 403) {
        enter(); // a valid key without the right to see sessions; each page says what it lacks
        return;
      }
      forgetKey();
      const wrong = error instanceof ApiError && error.status === 401;
      setFailed(wrong ? "Invalid API key. Check that you copied all of it." : messageOf(error));
    } finally {
      setBusy(false);
    }
  };

  return (
    <main className="login">
      <form onSubmit={(event) => void submit(event)}>
        <h1>
          <Mark /> Sandlot
        </h1>
        <p>
          This server needs an API key. An administrator makes one with <code>sandlot keys create NAME</code>.
        </p>
        <label>
          API key
          <input
            type="password"
            autoComplete="off"
            spellCheck={false}
            value={key}
            onChange={(event) => setKey(event.target.value)}
            autoFocus
          />
        </label>
        {failed && <Failure message={failed} />}
        <button type="submit" className="primary" disabled={busy || key.trim() === ""}>
          Log in
        </button>
        <p className="hint">The key stays in this tab and is gone when you close it.</p>
      </form>
    </main>
  );
}
