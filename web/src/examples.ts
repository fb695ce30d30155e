// Examples for each language. A new conversation starts with the first one.
import { visible } from "./format.ts";

export type ExampleName = "plot" | "csv" | "api" | "fail";

export interface Example {
  name: ExampleName;
  title: string;
  about: string;
  network?: boolean;
  code: string;
}

const python: Example[] = [
  {
    name: "plot",
    title: "Draw a plot",
    about: "matplotlib, shown below the output",
    code: `import numpy as np
import matplotlib.pyplot as plt

t = np.linspace(0, 4 * np.pi, 600)
fig, ax = plt.subplots(figsize=(8, 4.5))

for k in range(1, 6):
    y = np.sin(t * k / 2) * np.exp(-t / (4 + k))
    ax.plot(t, y, linewidth=2, label=f"mode {k}")
    print(f"mode {k}: peak {y.max():.3f} at t = {t[y.argmax()]:.2f}")

ax.set(title="Damped oscillations", xlabel="t", ylim=(-1, 1.3))
ax.spines[["top", "right"]].set_visible(False)
ax.grid(alpha=0.2)
ax.legend(frameon=False, ncols=5, loc="upper right")
plt.show()`,
  },
  {
    name: "csv",
    title: "Analyse a CSV",
    about: "pandas; writes two files",
    code: `import numpy as np
import pandas as pd

# Files in /data stay with the conversation.
rng = np.random.default_rng(7)
pd.DataFrame({
    "region": rng.choice(["north", "south", "east", "west"], 400),
    "month": rng.integers(1, 13, 400),
    "amount": rng.gamma(3, 40, 400).round(2),
}).to_csv("/data/sales.csv", index=False)

sales = pd.read_csv("/data/sales.csv")
print(f"{len(sales)} sales, {sales.amount.sum():,.2f} in all")

by_region = sales.groupby("region").amount
summary = by_region.agg(["count", "sum", "mean", "max"]).round(2)
summary.to_csv("/data/summary.csv")
summary`,
  },
  {
    name: "api",
    title: "Call an API",
    about: "turns network access on",
    network: true,
    code: `import sys
import requests

# Code has no network by itself: this example has turned on
# network access in the settings.
try:
    reply = requests.get("https://api.github.com/repos/python/cpython", timeout=10)
except requests.RequestException as problem:
    print(problem, file=sys.stderr)
    sys.exit("No answer. Is network access on, and the server on the internet?")

reply.raise_for_status()
repo = reply.json()
print(repo["full_name"], "has", f"{repo['stargazers_count']:,}", "stars")
print(repo["description"])`,
  },
  {
    name: "fail",
    title: "A program that fails",
    about: "colours, standard error and a traceback",
    code: `import sys

print("\\x1b[32m✓\\x1b[0m step one went well")
print("\\x1b[33m!\\x1b[0m step two has \\x1b[1mdoubts\\x1b[0m", file=sys.stderr)


def ratio(rows):
    return sum(rows) / len(rows)


print("mean of nothing:", ratio([]))`,
  },
];

const javascript: Example[] = [
  {
    name: "plot",
    title: "Draw a plot",
    about: "an SVG file, in the list of files",
    code: `import { writeFileSync } from "node:fs";

const points = Array.from({ length: 120 }, (_, i) => [i * 5, 110 - 80 * Math.sin(i / 9) * Math.exp(-i / 70)]);
const svg = \`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 220">
  <rect width="600" height="220" fill="#fff"/>
  <path d="M0 110H600" stroke="#ddd"/>
  <polyline points="\${points.map((p) => p.map((n) => n.toFixed(1)).join(",")).join(" ")}" fill="none" stroke="#0f766e" stroke-width="3"/>
</svg>\`;
writeFileSync("/data/wave.svg", svg);
console.log("wave.svg is in the files; click it for a preview.");`,
  },
  {
    name: "csv",
    title: "Analyse a CSV",
    about: "papaparse; writes two files",
    code: `import { readFileSync, writeFileSync } from "node:fs";
import Papa from "papaparse";

// Files in /data stay with the conversation.
const regions = ["north", "south", "east", "west"];
const made = Array.from({ length: 400 }, (_, i) => ({ region: regions[(i * 7) % 4], amount: ((i * 37) % 211) + 20 }));
writeFileSync("/data/sales.csv", Papa.unparse(made));

const sales = Papa.parse(readFileSync("/data/sales.csv", "utf8"), { header: true, dynamicTyping: true }).data;
const totals = {};
for (const { region, amount } of sales) totals[region] = (totals[region] ?? 0) + amount;
console.table(totals);
writeFileSync("/data/totals.json", JSON.stringify(totals, null, 2));`,
  },
  {
    name: "api",
    title: "Call an API",
    about: "turns network access on",
    network: true,
    code: `// Code has no network by itself: this example has turned on
// network access in the settings.
const reply = await fetch("https://api.github.com/repos/nodejs/node").catch((problem) => {
  throw new Error("No answer. Is network access on, and the server on the internet?", { cause: problem });
});
if (!reply.ok) throw new Error(\`the API answered \${reply.status}\`);
const repo = await reply.json();
console.log(\`\${repo.full_name} has \${repo.stargazers_count.toLocaleString("en")} stars\`);
console.log(repo.description);`,
  },
  {
    name: "fail",
    title: "A program that fails",
    about: "colours, standard error and a stack trace",
    code: `console.log("\\x1b[32m✓\\x1b[0m step one went well");
console.error("\\x1b[33m!\\x1b[0m step two has \\x1b[1mdoubts\\x1b[0m");

function first(rows) {
  return rows[0].name.toUpperCase();
}

console.log("first of nothing:", first([]));`,
  },
];

const typescript: Example[] = [
  javascript[0]!,
  {
    ...javascript[1]!,
    code: `import { readFileSync, writeFileSync } from "node:fs";
import Papa from "papaparse";

interface Sale {
  region: string;
  amount: number;
}

// Files in /data stay with the conversation.
const regions = ["north", "south", "east", "west"];
const made: Sale[] = Array.from({ length: 400 }, (_, i) => ({ region: regions[(i * 7) % 4]!, amount: ((i * 37) % 211) + 20 }));
writeFileSync("/data/sales.csv", Papa.unparse(made));

const sales = Papa.parse<Sale>(readFileSync("/data/sales.csv", "utf8"), { header: true, dynamicTyping: true }).data;
const totals: Record<string, number> = {};
for (const { region, amount } of sales) totals[region] = (totals[region] ?? 0) + amount;
console.table(totals);
writeFileSync("/data/totals.json", JSON.stringify(totals, null, 2));`,
  },
  {
    ...javascript[2]!,
    code: `interface Repository {
  full_name: string;
  description: string;
  stargazers_count: number;
}

// Code has no network by itself: this example has turned on
// network access in the settings.
const reply = await fetch("https://api.github.com/repos/microsoft/TypeScript").catch((problem: unknown) => {
  throw new Error("No answer. Is network access on, and the server on the internet?", { cause: problem });
});
if (!reply.ok) throw new Error(\`the API answered \${reply.status}\`);
const repo = (await reply.json()) as Repository;
console.log(\`\${repo.full_name} has \${repo.stargazers_count.toLocaleString("en")} stars\`);
console.log(repo.description);`,
  },
  {
    ...javascript[3]!,
    code: `console.log("\\x1b[32m✓\\x1b[0m step one went well");
console.error("\\x1b[33m!\\x1b[0m step two has \\x1b[1mdoubts\\x1b[0m");

interface Row {
  name: string;
}

function first(rows: Row[]): string {
  return rows[0]!.name.toUpperCase();
}

console.log("first of nothing:", first([]));`,
  },
];

const shell: Example[] = [
  {
    name: "plot",
    title: "Draw a plot",
    about: "bars of characters, with colours",
    code: `for n in 3 7 12 18 22 25 22 18 12 7 3; do
  printf '\\e[3%dm' $((n % 6 + 1))
  printf '█%.0s' $(seq "$n")
  printf '\\e[0m %d\\n' "$n"
  sleep 0.1
done`,
  },
  {
    name: "csv",
    title: "Analyse a CSV",
    about: "awk and sort; writes a file",
    code: `# Files in /data stay with the conversation.
awk 'BEGIN {
  srand(7); split("north south east west", r, " ")
  print "region,amount"
  for (i = 0; i < 400; i++) printf "%s,%.2f\\n", r[int(rand() * 4) + 1], rand() * 200
}' > /data/sales.csv

awk -F, 'NR > 1 { n[$1]++; sum[$1] += $2 }
  END { for (k in n) printf "%-6s %4d sales %10.2f\\n", k, n[k], sum[k] }' /data/sales.csv | sort`,
  },
  {
    name: "api",
    title: "Call an API",
    about: "turns network access on",
    network: true,
    code: `# Code has no network by itself: this example has turned on
# network access in the settings.
curl --fail --silent --show-error --max-time 10 https://api.github.com/zen || {
  echo 'No answer. Is network access on, and the server on the internet?' >&2
  exit 1
}
echo`,
  },
  {
    name: "fail",
    title: "A program that fails",
    about: "standard error and an exit code",
    code: `echo -e '\\e[32m✓\\e[0m step one went well'
echo 'step two has doubts' >&2
ls -l /data/no-such-file`,
  },
];

const byLanguage = new Map(Object.entries({ python, javascript, typescript, shell }));

/** Returns the examples for a language. If runs may call a service, one example calls it. */
export function examplesFor(language: string, service?: string): Example[] {
  const all = byLanguage.get(language) ?? [];
  if (service === undefined) return all;
  return all.map((example) => (example.name === "api" ? { name: "api", title: example.title, about: `${visible(service)}, with your credentials`, code: serviceCall(language, service) } : example));
}

function serviceCall(language: string, service: string): string {
  const name = service.toUpperCase().replace(/[^A-Z0-9]/g, "_").replace(/^(?=\d)/, "_"); // as in the environment
  const about = ["The service is in the environment while it is on in the settings.", "The key that goes with the call is added on its way: the code never sees it.", "Put a path here that the service allows."];
  if (language === "python")
    return `import os
import requests

# ${about[0]}
# ${about[1]}
path = "/"  # ${about[2]}

reply = requests.get(
    os.environ["${name}_PROXY_URL"] + path,
    headers={"Authorization": "Bearer " + os.environ["${name}_TOKEN"]},
    timeout=20,
)
print(reply.status_code, reply.reason)
print(reply.text[:2000])`;
  if (language === "shell")
    return `# ${about[0]}
# ${about[1]}
path=/  # ${about[2]}

curl --silent --show-error --max-time 20 --write-out '\\n%{http_code}\\n' \\
  --header "Authorization: Bearer $${name}_TOKEN" "$${name}_PROXY_URL$path"`;
  return `// ${about[0]}
// ${about[1]}
const path = "/"; // ${about[2]}

const reply = await fetch(process.env.${name}_PROXY_URL + path, {
  headers: { Authorization: \`Bearer \${process.env.${name}_TOKEN}\` },
});
console.log(reply.status, reply.statusText);
console.log((await reply.text()).slice(0, 2000));`;
}
