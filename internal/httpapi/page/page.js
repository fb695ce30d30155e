// Puts this server's own address into the examples. The printed link carries the token in its fragment, which never
// reaches a server or a log; it is taken out of the address bar and shown nowhere but in the examples.
"use strict";
const endpoint = new URL("/mcp", location.href).href.split("#")[0];
const token = new URLSearchParams(location.hash.slice(1)).get("token");
if (token) {
  history.replaceState(null, "", location.pathname);
  document.getElementById("token-note").textContent = "filled into the examples below";
}
for (const el of document.querySelectorAll("[data-fill]")) {
  el.textContent = el.textContent
    .replace(/(^|["\s])\/mcp(?=["\s]|$)/g, (_, before) => before + endpoint)
    .replaceAll("$MCP_API_TOKEN", () => token || "$MCP_API_TOKEN");
}
