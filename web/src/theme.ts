// Light or dark: the system's choice until the person chooses. /theme.js applies it before the
// first paint.
import { byId } from "./dom.ts";

/** Calls changed when the theme has changed. */
export function themeSwitch(changed: () => void): void {
  const root = document.documentElement;
  const button = byId("theme-switch");
  const apply = (theme: string) => {
    root.dataset["theme"] = theme;
    button.setAttribute("aria-pressed", String(theme === "dark"));
    changed();
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
