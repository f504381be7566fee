// SPDX-License-Identifier: Apache-2.0
// Figures: what the pointer's tooltip tells of a part, arrow keys and a touch tell below the figure.
"use strict";
(() => {
  const { all } = globalThis.report;
  const textOf = (part) => part.title || part.querySelector(":scope > title")?.textContent || "";
  for (const figure of all("figure")) {
    const parts = all("[title], svg :has(> title)", figure).filter((part) => !part.closest("button, #critical-path, #heat-map, .caption"));
    if (!parts.length) continue;
    const told = document.createElement("output");
    told.className = "figure-told";
    told.setAttribute("aria-live", "polite");
    figure.append(told);
    let at = -1;
    const choose = (n) => {
      parts[at]?.classList.remove("chosen");
      at = n < 0 ? -1 : Math.min(parts.length - 1, n);
      parts[at]?.classList.add("chosen");
      told.textContent = at < 0 ? "" : `${at + 1} of ${parts.length}: ${textOf(parts[at])}`;
    };
    const of = (target) => parts.findIndex((part) => part.contains(target) || target.closest("[data-start]")?.contains(part));
    // Beside a timeline the parts themselves take the focus, and its arrow keys go on from part to part.
    const isWalked = () => parts.some((part) => part.hasAttribute("tabindex") || part.closest("[data-start][tabindex]"));
    for (const kind of ["click", "focusin"]) figure.addEventListener(kind, (event) => {
      const n = event.target === figure ? Math.max(at, 0) : of(event.target);
      if (n >= 0) choose(n);
    });
    figure.addEventListener("keydown", (event) => {
      if (event.target !== figure) return;
      const to = { ArrowRight: at + 1, ArrowLeft: Math.max(0, at - 1), Home: 0, End: parts.length - 1, Escape: -1 }[event.key];
      if (to === undefined) return;
      choose(to);
      event.preventDefault();
    });
    if (!isWalked()) figure.tabIndex = 0;
  }
})();
