import type { PoolStats } from "../../api/types";
import { count, visible } from "../../format";
import { Panel } from "../../parts/Panel";

/** `fleet`: of a coordinator, which knows how many sandboxes its workers have ready, and no more. */
export function Pools({ pools, fleet }: { pools: Record<string, PoolStats>; fleet: boolean }) {
  const known = Object.entries(pools).sort(([one], [other]) => one.localeCompare(other));
  const used = known.filter(([, pool]) => pool.target + pool.ready + pool.hits + missesOf(pool) > 0);
  const unused = known.filter((one) => !used.includes(one)).map(([name]) => visible(name));
  if (known.length === 0) return null;
  return (
    <Panel title="Pools of warm sandboxes">
      <div className="cards">
        {used.map(([name, pool]) => (
          <article key={name} className="card">
            <h3>{visible(name)}</h3>
            {fleet ? <p>{count(pool.ready)} ready on all workers</p> : <PoolFigures pool={pool} />}
          </article>
        ))}
      </div>
      {unused.length > 0 && (
        <p className="hint">
          {fleet ? "No warm sandboxes" : "No warm sandboxes, and no creates yet"}: {unused.join(", ")}.
        </p>
      )}
    </Panel>
  );
}

function PoolFigures({ pool }: { pool: PoolStats }) {
  return (
    <>
      <Share hits={pool.hits} misses={missesOf(pool)} />
      <dl className="pairs">
        <dt>Ready</dt>
        <dd>
          {pool.ready} of {pool.target}
          {pool.making > 0 && `, ${pool.making} being made`}
        </dd>
        <dt>Suggested size</dt>
        <dd>{pool.suggested_size}</dd>
        <dt>Median claim</dt>
        <dd>{pool.hits > 0 ? `${pool.claim_ms_p50.toFixed(1)} ms` : "–"}</dd>
        {pool.waiting > 0 && (
          <>
            <dt>Waiting</dt>
            <dd>{pool.waiting}</dd>
          </>
        )}
        {Object.entries(pool.misses).map(([reason, misses]) => (
          <Pair key={reason} name={`Missed: ${visible(reason).replaceAll("_", " ")}`} value={count(misses)} />
        ))}
      </dl>
      <p className="hint">{visible(pool.target_reason)}</p>
      {pool.failures > 0 && <p className="failure">{visible(pool.last_failure)}</p>}
    </>
  );
}

function Pair({ name, value }: { name: string; value: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </>
  );
}

function missesOf(pool: PoolStats): number {
  return Object.values(pool.misses).reduce((total, one) => total + one, 0);
}

function Share({ hits, misses }: { hits: number; misses: number }) {
  const all = hits + misses;
  const text = all === 0 ? "No creates yet" : `${count(hits)} warm, ${count(misses)} missed`;
  return (
    <div className="share">
      <meter min={0} max={1} value={all === 0 ? 1 : hits / all} aria-label={text} />
      <span>{text}</span>
    </div>
  );
}
