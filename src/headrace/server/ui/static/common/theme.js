// Light, dark, or as the system says.

import { coloursChanged } from "./colours.js";
import { byId } from "./dom.js";

const STORED = "headrace.theme";
const NEXT = { system: "dark", dark: "light", light: "system" };
const WORDS = { system: "as the system", dark: "dark", light: "light" };

export function startTheme() {
  let theme = "system";
  try {
    theme = localStorage.getItem(STORED) ?? "system";
  } catch {
    // a browser that keeps nothing
  }
  const button = byId("theme");
  const apply = (chosen) => {
    theme = chosen in NEXT ? chosen : "system";
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.setAttribute("aria-label", `Theme: ${WORDS[theme]}`);
    button.title = `Theme: ${WORDS[theme]}`;
    coloursChanged();
  };
  apply(theme);
  button.addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    // The first press always shows a difference.
    apply(theme === "system" && dark ? "light" : theme === "light" && dark ? "dark" : NEXT[theme]);
    try {
      localStorage.setItem(STORED, theme);
    } catch {
      // as above
    }
  });
}
