// A button with a menu: arrow keys move, Escape closes it and restores the focus.

export interface Menu {
  close(): void;
}

export function createMenu(button: HTMLButtonElement, list: HTMLElement, fill: () => void): Menu {
  const items = () => [...list.querySelectorAll<HTMLElement>('[role="menuitem"]')];
  const close = () => {
    list.hidden = true;
    button.setAttribute("aria-expanded", "false");
  };
  const move = (to: number) => {
    const all = items();
    if (all.length > 0) all[(to + all.length) % all.length]!.focus();
  };
  button.addEventListener("click", () => {
    if (!list.hidden) return close();
    fill();
    list.hidden = false;
    button.setAttribute("aria-expanded", "true");
    move(0);
  });
  list.addEventListener("keydown", (event) => {
    const at = items().indexOf(document.activeElement as HTMLElement);
    if (event.key === "ArrowDown") move(at + 1);
    else if (event.key === "ArrowUp") move(at - 1);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(-1);
    else if (event.key === "Escape") {
      close();
      button.focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  document.addEventListener("focusin", (event) => {
    if (!list.hidden && !list.contains(event.target as Node) && event.target !== button) close();
  });
  document.addEventListener("pointerdown", (event) => {
    if (!list.hidden && !list.contains(event.target as Node) && !button.contains(event.target as Node)) close();
  });
  return { close };
}
