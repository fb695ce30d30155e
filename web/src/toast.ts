// A line at the bottom of the page about the last action, with a way to undo it.
import { byId, h, iconButton } from "./dom.ts";

const shownFor = 12_000;
let timer: ReturnType<typeof setTimeout> | undefined;

/** Shows it for a while, or as long as it has the pointer or the focus. */
export function showToast(text: string, action?: { label: string; act: () => void }): void {
  const toast = byId("toast");
  toast.replaceChildren(h("span", {}, text));
  if (action) {
    const act = () => {
      hideToast();
      action.act();
    };
    toast.append(h("button", { type: "button", class: "button", "data-testid": "toast-action", onclick: act }, action.label));
  }
  toast.append(iconButton("close", "Dismiss", hideToast));
  toast.hidden = false;
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => (toast.matches(":hover, :focus-within") ? wait() : hideToast()), shownFor);
  };
  wait();
}

export function hideToast(): void {
  clearTimeout(timer);
  byId("toast").hidden = true;
}
