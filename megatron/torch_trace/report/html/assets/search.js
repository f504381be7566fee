// SPDX-License-Identifier: Apache-2.0
// Search over all tables and findings: how many, where, the next one, and back.
"use strict";
(() => {
  const { all, one, refresh, words, matches, redraw, visible } = globalThis.report;
  const search = one("#search"), tools = one("#matches"), count = one("#match-count");
  let found = [], current = -1, before = null, opened = [];

  const MOST = 2000;
  const ranges = (element, wanted) => {
    const made = [], walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const text = node.data.toLowerCase();
      for (const word of wanted) {
        for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
          const range = new Range();
          range.setStart(node, at);
          range.setEnd(node, at + word.length);
          made.push(range);
        }
      }
    }
    return made;
  };
  const highlight = (wanted) => {
    if (!globalThis.Highlight) return;
    CSS.highlights.delete("found");
    if (!wanted.length) return;
    const marks = new Highlight();
    for (const element of found) {
      if (marks.size >= MOST) break;
      ranges(element, wanted).forEach((range) => marks.add(range));
    }
    CSS.highlights.set("found", marks);
  };

  // A search begins before anything moves the page, and an empty field does not end it: somebody types again.
  const begin = () => { before ??= { x: scrollX, y: scrollY, report: one("#report").scrollTop }; };
  const close = () => {
    opened.forEach((part) => { part.open = false; });
    opened = [];
  };
  // At once, as the next search begins where the page is then.
  const back = () => {
    const at = before;
    before = null;
    if (!at) return;
    scrollTo({ left: at.x, top: at.y, behavior: "instant" });
    one("#report").scrollTop = at.report;
  };
  const told = () => {
    count.textContent = found.length ? `${current + 1 || "-"} of ${found.length.toLocaleString("en")}` : "none";
  };
  const apply = () => {
    const wanted = words(search.value);
    if (wanted.length) begin();
    globalThis.report.search(wanted);
    found.forEach((element) => element.classList.remove("current"));
    found = [];
    for (const table of all("table.data")) {
      if (table.classList.contains("tree")) redraw(table); else refresh(table);
    }
    for (const finding of all(".finding")) {
      const hit = matches(finding, wanted);
      finding.classList.toggle("gone", !hit);
      if (hit && wanted.length) found.push(finding);
    }
    // What was found in a folded part is worth seeing.
    if (wanted.length) for (const part of all("details")) {
      if (!part.open && one("tbody tr:not(.gone)", part)) { part.open = true; opened.push(part); }
    }
    if (wanted.length) for (const table of all("table.data")) {
      found.push(...(table.classList.contains("tree") ? visible(table) : all("tbody > tr:not(.gone)", table)));
    }
    found = found.filter((element) => element.checkVisibility?.() ?? true);
    found.sort((a, b) => (a.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1));
    for (const block of all(".block")) block.classList.toggle("gone", wanted.length > 0 && !one("tbody tr:not(.gone)", block) && Boolean(one("table.data", block)));
    one("#nothing").hidden = !wanted.length || found.length > 0;
    current = -1;
    tools.hidden = !wanted.length;
    told();
    highlight(wanted.filter((word) => !/^\d+$/.test(word)));
    if (!wanted.length) close();
  };
  const go = (by) => {
    if (!found.length) return;
    found[current]?.classList.remove("current");
    current = current < 0 && by < 0 ? found.length - 1 : (current + by + found.length) % found.length;
    found[current].classList.add("current");
    found[current].scrollIntoView({ block: "center", behavior: "instant" });
    told();
  };

  let waiting = 0;
  const now = () => {
    clearTimeout(waiting);
    waiting = 0;
    apply();
  };
  search.addEventListener("beforeinput", begin); // what one types moves the page to the field
  search.addEventListener("blur", () => { if (!search.value) before = null; });
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(now, 120); });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    if (waiting || current < 0) now();
    go(event.shiftKey ? -1 : 1);
    event.preventDefault();
  });
  one("#next-match").addEventListener("click", () => go(1));
  one("#previous-match").addEventListener("click", () => go(-1));
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      begin();
      search.focus({ preventScroll: true });
      search.scrollIntoView({ block: "nearest", behavior: "instant" });
      search.select();
      event.preventDefault();
    } else if (event.key === "Escape") {
      if (search.value || waiting || !tools.hidden) {
        search.value = "";
        now();
        search.dispatchEvent(new Event("change"));
      }
      back();
      if (typing) event.target.blur();
    }
  });
})();
