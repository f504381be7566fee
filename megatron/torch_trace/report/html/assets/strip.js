// SPDX-License-Identifier: Apache-2.0
// The critical path: the pointer and arrow keys name a part of it.
"use strict";
(() => {
  const { all, one } = globalThis.report;
  const strip = one("#critical-path .strip");
  if (!strip) return;
  const parts = all("i", strip), told = one("#critical-path .path-told");
  let at = -1;
  const choose = (n) => {
    parts[at]?.classList.remove("chosen");
    at = Math.max(0, Math.min(parts.length - 1, n));
    parts[at].classList.add("chosen");
    told.textContent = `${at + 1} of ${parts.length}: ${parts[at].title}.`;
  };
  for (const kind of ["pointerover", "click"]) strip.addEventListener(kind, (event) => {
    if (event.target.matches("i")) choose(parts.indexOf(event.target));
  });
  strip.addEventListener("keydown", (event) => {
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: parts.length - 1 }[event.key];
    if (to === undefined) return;
    choose(to);
    event.preventDefault();
  });
})();
