// How to connect other clients: configuration to copy, with this server's address.
import { closeOnBackdrop, copy, h, iconButton } from "./dom.ts";

interface Guide {
  name: string;
  parts: { text: string; snippet?: (address: string, token: string) => string }[];
}

const json = (value: unknown) => JSON.stringify(value, null, 2);

const guides: Guide[] = [
  {
    name: "Claude Code",
    parts: [
      { text: "Run once in a terminal:", snippet: (a, t) => `claude mcp add --transport http sandbox ${a} --header "Authorization: Bearer ${t}"` },
    ],
  },
  {
    name: "Claude Desktop",
    parts: [
      {
        text: "On the same machine, in claude_desktop_config.json. It starts the server by itself:",
        snippet: () => json({ mcpServers: { sandbox: { command: "/path/to/bin/mcp-code-sandbox", args: ["stdio"] } } }),
      },
      {
        text: "On another machine, through the mcp-remote bridge:",
        snippet: (a, t) =>
          json({
            mcpServers: {
              sandbox: { command: "npx", args: ["-y", "mcp-remote", a, "--header", "Authorization:${AUTH}", ...(a.startsWith("http:") ? ["--allow-http"] : [])], env: { AUTH: `Bearer ${t}` } },
            },
          }),
      },
    ],
  },
  {
    name: "Cursor",
    parts: [{ text: "In ~/.cursor/mcp.json:", snippet: (a, t) => json({ mcpServers: { sandbox: { url: a, headers: { Authorization: `Bearer ${t}` } } } }) }],
  },
  {
    name: "n8n",
    parts: [
      { text: "In an MCP Client node, choose the transport HTTP Streamable and bearer authentication, with this endpoint:", snippet: (a) => a },
      {
        text: "Or in an HTTP Request node: POST to the endpoint, with the header Authorization and this JSON body:",
        snippet: () => json({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: "run_code", arguments: { conversationId: "demo", language: "python", code: "print(2 + 2)" } } }),
      },
      { text: "The header's value:", snippet: (_, t) => `Bearer ${t}` },
    ],
  },
  {
    name: "curl",
    parts: [
      {
        text: "No handshake is needed:",
        snippet: (a, t) => `curl -s ${a} -H "Authorization: Bearer ${t}" -d '{"jsonrpc":"2.0","id":1,"method":"tools/call",
  "params":{"name":"run_code","arguments":{"conversationId":"demo","language":"python","code":"print(2+2)"}}}'`,
      },
    ],
  },
];

export function openConnect(token: string): void {
  const address = `${location.origin}/mcp`;
  let shown = false;
  let selected = 0;
  const panel = h("div", { role: "tabpanel", id: "connect-panel", "aria-labelledby": "connect-tab-0", tabindex: 0 });
  const tabs = guides.map((guide, i) =>
    h("button", { type: "button", role: "tab", id: `connect-tab-${i}`, "aria-controls": "connect-panel", "data-testid": "connect-tab", onclick: () => select(i) }, guide.name),
  );
  const reveal = h("input", {
    type: "checkbox", role: "switch", "data-testid": "connect-reveal",
    onchange: () => {
      shown = reveal.checked;
      select(selected);
    },
  });
  reveal.disabled = token === "";
  const select = (i: number) => {
    selected = i;
    tabs.forEach((tab, n) => {
      tab.setAttribute("aria-selected", String(n === i));
      tab.tabIndex = n === i ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", `connect-tab-${i}`);
    panel.replaceChildren(
      ...guides[i]!.parts.flatMap(({ text, snippet }) => {
        const code = snippet?.(address, shown ? token : "YOUR_API_KEY");
        if (code === undefined) return [h("p", {}, text)];
        const button = iconButton("copy", "Copy", () => void copy(button, code), "connect-copy");
        return [h("p", {}, text), h("div", { class: "snippet" }, h("pre", { tabindex: 0, "data-testid": "connect-snippet" }, code), button)];
      }),
    );
  };
  const list = h("div", { class: "tabs", role: "tablist", "aria-label": "Clients" }, ...tabs);
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    select((selected + step + tabs.length) % tabs.length);
    tabs[selected]!.focus();
  });
  const dialog = h(
    "dialog",
    { class: "dialog", "aria-labelledby": "connect-title", "data-testid": "connect-dialog" },
    h(
      "header",
      {},
      h("div", {}, h("h2", { id: "connect-title" }, "Connect a client"), h("p", { class: "muted" }, "Any MCP client can run code here. Endpoint: ", h("code", {}, address))),
      iconButton("close", "Close", () => dialog.close(), "connect-close"),
    ),
    list,
    panel,
    h("div", { class: "actions" }, h("label", { class: "switch" }, reveal, h("span", { class: "track", "aria-hidden": "true" }), "Fill in my API key")),
  );
  select(0);
  dialog.addEventListener("close", () => dialog.remove());
  closeOnBackdrop(dialog);
  document.body.append(dialog);
  dialog.showModal();
  tabs[0]!.focus();
}
