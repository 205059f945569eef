import { Tabs } from "../../parts/Tabs";
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
      <Tabs label="Administration" tabs={TABS} current={tab} to={(name) => `/admin/${name}`} />
      {tab === "environments" && <Environments />}
      {tab === "keys" && <Keys />}
      {tab === "tenants" && <Tenants />}
      {tab === "webhooks" && <Webhooks />}
    </>
  );
}
