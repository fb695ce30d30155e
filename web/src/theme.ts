// Light or dark: the system's choice until the person chooses. /theme.js applies it before the
// first paint.
import { byId } from "./dom.ts";

export function themeSwitch(): void {
  const root = document.documentElement;
  const button = byId("theme-switch");
  const apply = (theme: string) => {
    root.dataset["theme"] = theme;
    button.setAttribute("aria-pressed", String(theme === "dark"));
  };
  apply(root.dataset["theme"] ?? "light");
  button.addEventListener("click", () => {
    const theme = root.dataset["theme"] === "dark" ? "light" : "dark";
    apply(theme);
    try {
      localStorage.setItem("sandbox:theme", theme);
    } catch {
      // the choice lasts as long as the page
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
    try {
      if (localStorage.getItem("sandbox:theme")) return;
    } catch {
      // as without a choice
    }
    apply(event.matches ? "dark" : "light");
  });
}
