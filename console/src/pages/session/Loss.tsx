import type { Session } from "../../api/types";
import { moment, visible } from "../../format";

export function Loss({ info }: { info: Session }) {
  const loss = info.loss;
  if (!loss) return null;
  return (
    <section className={info.state === "lost" ? "loss bad" : "loss"} role={info.state === "lost" ? "alert" : "note"}>
      <h2>
        {info.state === "lost" ? "The sandbox is lost" : `Generation ${loss.generation} was lost`}
      </h2>
      <p>
        {visible(loss.reason)} <time>({moment(loss.at)})</time>
      </p>
      <dl className="pairs">
        <dt>Lost</dt>
        <dd>{loss.lost.map(visible).join(", ") || "nothing"}</dd>
        <dt>Kept</dt>
        <dd>{loss.kept.map(visible).join(", ") || "nothing"}</dd>
      </dl>
    </section>
  );
}
