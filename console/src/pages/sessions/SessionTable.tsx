import type { Session } from "../../api/types";
import { ago, until } from "../../format";
import { Badge } from "../../parts/Badge";
import { Name } from "../../parts/Name";
import { Link } from "../../router";

export function SessionTable({ sessions }: { sessions: Session[] }) {
  return (
    <div className="table" tabIndex={0} role="region" aria-label="Sessions">
      <table>
        <thead>
          <tr>
            <th>Session</th>
            <th>State</th>
            <th>Thread</th>
            <th className="wide-only">Environment</th>
            <th className="wide-only">Tenant</th>
            <th>Used</th>
            <th className="wide-only">Ends</th>
          </tr>
        </thead>
        <tbody>
          {sessions.map((session) => (
            <tr key={session.id}>
              <td>
                <Link to={`/sessions/${encodeURIComponent(session.id)}`} className="mono id" title={session.id}>
                  {session.id}
                </Link>
              </td>
              <td>
                <Badge state={session.state} />
              </td>
              <td>
                {session.thread === null ? (
                  <span className="none">–</span>
                ) : (
                  <Link to={`/threads/${encodeURIComponent(session.thread)}`}>
                    <Name text={session.thread} />
                  </Link>
                )}
              </td>
              <td className="wide-only">
                <Name text={session.environment} />
              </td>
              <td className="wide-only">{session.tenant}</td>
              <td>{ago(session.last_active_at)}</td>
              <td className="wide-only">{until(session.expires_at)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
