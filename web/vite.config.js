import { defineConfig } from "vite";

// The output is committed and compared in CI, so nothing in it may depend on when or where it was built.
export default defineConfig({
  base: "/",
  html: { cspNonce: "__CSP_NONCE__" }, // the server puts each request's own in its place
  build: {
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0, // the policy of the page allows no data: but images
    chunkSizeWarningLimit: 600, // the budget is for all files together, compressed: embed_test.go
  },
  server: { proxy: { "/mcp": "http://127.0.0.1:8080", "/files": "http://127.0.0.1:8080" } },
});
