import { Link } from "../../router";
import { Environments } from "./Environments";
import { Keys } from "./Keys";
import { Tenants } from "./Tenants";
import { Webhooks } from "./Webhooks";

const TABS = [
  ["environments", "Environments"],
  ["keys", "Keys"],
  ["tenants", "Tenants"],
  ["webhooks", "Webhooks"],
] as const;

export default function Admin({ tab }: { tab: string }) {
  return (
    <>
      <header className="page-head">
        <h1>Admin</h1>
      </header>
      <nav className="tabs" aria-label="Administration">
        {TABS.map(([name, label]) => (
          <Link key={name} to={`/admin/${name}`} aria-current={tab === name ? "page" : undefined}>
            {label}
          </Link>
        ))}
      </nav>
      {tab === "environments" && <Environments />}
      {tab === "keys" && <Keys />}
      {tab === "tenants" && <Tenants />}
      {tab === "webhooks" && <Webhooks />}
    </>
  );
}
