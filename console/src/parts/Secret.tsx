import { Snippet } from "./CopyAs";

/** What the server says only once, until somebody says that they have it. */
export function Secret({ label, text, why, forget }: { label: string; text: string; why: string; forget: () => void }) {
  return (
    <section className="secret" role="status">
      <p>{why}</p>
      <Snippet label={label} text={text} />
      <button type="button" className="small" onClick={forget}>
        I have copied it
      </button>
    </section>
  );
}
