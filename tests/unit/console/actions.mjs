// Makes the console's own actions without a browser: for each line of input, what an action is as text, and on request
// what it does. `node --experimental-transform-types actions.mjs <folder of the actions> <server> <key>`
import { registerHooks } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, server, key] = process.argv.slice(2);

// The bundler finds `./words` in words.ts; Node wants the whole name.
registerHooks({
  resolve: (specifier, context, next) => next(specifier.startsWith(".") && !specifier.endsWith(".ts") ? `${specifier}.ts` : specifier, context),
});

// What the page has of its browser.
const stored = new Map([["sandlot.key", key]]);
globalThis.location = { origin: server };
globalThis.sessionStorage = { getItem: (name) => stored.get(name) ?? null };
globalThis.document = { createElement: () => ({ click() {} }) };
const send = globalThis.fetch;
globalThis.fetch = (path, options) => send(server + path, options);

for await (const line of createInterface({ input: process.stdin })) {
  const { module, name, args, run } = JSON.parse(line);
  const actions = await import(pathToFileURL(`${folder}/${module}.ts`).href);
  if (name === null) {
    console.log(JSON.stringify(Object.keys(actions).filter((one) => typeof actions[one] === "function")));
    continue;
  }
  const action = actions[name](...args.map((one) => (one?.file ? new File([one.text], one.file) : one)));
  let failed = null;
  try {
    if (run) await action.run();
  } catch (error) {
    failed = String(error);
  }
  console.log(JSON.stringify({ what: action.what, cli: action.cli, python: action.python, runs: "run" in action, failed }));
}
