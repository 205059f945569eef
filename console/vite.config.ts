import { defineConfig } from "vite";

// `npm run dev` shows the console while it is edited, with the API of a server on this machine.
export default defineConfig({
  base: "/console/",
  build: {
    target: "es2023",
    modulePreload: { polyfill: false }, // it would be one more script, for browsers that need none
    assetsInlineLimit: 0, // the page's policy allows no data: addresses
    sourcemap: false,
    chunkSizeWarningLimit: 700,
  },
  server: { proxy: { "/v1": { target: "http://127.0.0.1:8000", ws: true }, "/metrics": "http://127.0.0.1:8000" } },
});
