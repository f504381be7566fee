// SPDX-License-Identifier: Apache-2.0
// Sort, search, fold, copy, theme. The page says all it knows without any of this.
"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector, root = document) => root.querySelector(selector);

  // Theme: automatic, then light, then dark.
  const themes = ["auto", "light", "dark"];
  const stored = () => { try { return localStorage.getItem("torch-trace-theme"); } catch { return null; } };
  const applyTheme = (name) => {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    one("#theme").textContent = `Theme: ${name}`;
    try { localStorage.setItem("torch-trace-theme", name); } catch { /* a file may not store */ }
  };
  let theme = themes.includes(stored()) ? stored() : "auto";
  applyTheme(theme);
  one("#theme").hidden = false;
  one("#theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    applyTheme(theme);
  });

  // Tables: as many rows as their limit until one asks for all; a search shows every match.
  const words = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
  const textOf = (row) => {
    if (row.told === undefined) {
      const full = all("[title]", row).map((cell) => cell.title).join(" ");
      row.told = `${row.textContent} ${full}`.toLowerCase();
    }
    return row.told;
  };
  // A number alone is a rank: of a row the cell below `rank`, of a sentence `rank 12`.
  const isOfRank = (row, number) => {
    const heads = row.closest("table")?.tHead?.rows[0].cells ?? [];
    const column = [...heads].findIndex((head) => head.textContent.trim() === "rank");
    if (column < 0) return new RegExp(`\\branks? (?:[\\d, ]*[ ,])?${number}\\b`).test(textOf(row));
    const cell = row.cells[column];
    return cell !== undefined && Number(cell.dataset.v ?? cell.textContent) === Number(number);
  };
  const matches = (row, wanted) => wanted.every((word) =>
    (/^\d+$/.test(word) ? isOfRank(row, word) : textOf(row).includes(word)));
  let wanted = [];

  const refresh = (table) => {
    const rows = all("tbody > tr", table);
    const limit = table.dataset.all !== undefined ? Infinity : Number(table.dataset.limit);
    let shown = 0, found = 0;
    for (const row of rows) {
      const match = matches(row, wanted) && row.dataset.out === undefined && row.dataset.beside === undefined;
      found += match;
      const visible = match && (shown < limit || wanted.length > 0);
      shown += visible;
      row.classList.toggle("gone", !visible);
    }
    const more = one(`#more-${table.id}`);
    if (more) {
      more.hidden = wanted.length > 0 || found <= Number(table.dataset.limit);
      more.dataset.printed = `${shown} of ${found.toLocaleString("en")} rows`;
      more.textContent = table.dataset.all !== undefined ? "Show fewer" : `Show all ${found.toLocaleString("en")} rows`;
    }
    const note = one(".found", table.closest(".block"));
    if (note) note.textContent = wanted.length ? `${found} of ${rows.length}` : "";
    return found;
  };

  const value = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
    return cell.classList.contains("n") ? -Infinity : cell.textContent.trim();
  };
  const sortBy = (table, column, descending) => {
    const sign = descending ? -1 : 1;
    const rows = all("tbody > tr", table).map((row) => [value(row, column), row]);
    rows.sort(([a], [b]) => sign * (typeof a === "number" && typeof b === "number" ? a - b || 0 :
      String(a).localeCompare(String(b), "en", { numeric: true })));
    table.tBodies[0].append(...rows.map(([, row]) => row));
    all("th", table).forEach((head, n) => {
      if (n === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    refresh(table);
  };
  const cellText = (cell) => (one(".name", cell)?.title || one(".bar:not(.thin)", cell)?.title || cell.textContent).trim().replace(/\s+/g, " ");
  const copyText = async (text, button) => {
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without a secure context, a file for instance, only the old way is there.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1500);
  };

  for (const table of all("table.data")) {
    const block = table.closest(".block");
    const copy = one(".copy", block);
    copy.hidden = false;
    copy.addEventListener("click", () => copyText(
      all("tr", table).map((row) => [...row.cells].map(cellText).join("\t") + "\n").join(""), copy));
    if (table.classList.contains("tree")) continue;
    all("th", table).forEach((head, column) => one("button", head).addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      sortBy(table, column, now ? now === "ascending" : head.classList.contains("n"));
    }));
    if (table.tBodies[0].rows.length <= Number(table.dataset.limit) + 3) table.dataset.limit = table.tBodies[0].rows.length;
    else {
      const more = document.createElement("button");
      more.type = "button";
      more.id = `more-${table.id}`;
      more.addEventListener("click", () => {
        if (table.dataset.all !== undefined) delete table.dataset.all; else table.dataset.all = "";
        refresh(table);
      });
      table.after(more);
    }
    refresh(table);
  }

  // Trees: arrow keys as in every tree; a branch that is closed hides what is below it.
  const level = (row) => Number(row.getAttribute("aria-level"));
  const redraw = (tree) => {
    let closed = Infinity;
    for (const row of tree.tBodies[0].rows) {
      const depth = level(row);
      if (depth <= closed) closed = Infinity;
      const hit = !wanted.length || matches(row, wanted);
      row.classList.toggle("gone", wanted.length ? !hit : depth > closed);
      if (closed === Infinity && row.getAttribute("aria-expanded") === "false") closed = depth;
    }
  };
  const open = (row, state) => {
    if (!row.hasAttribute("aria-expanded")) return;
    row.setAttribute("aria-expanded", state);
    redraw(row.closest("table"));
  };
  const visible = (tree) => [...tree.tBodies[0].rows].filter((row) => !row.classList.contains("gone"));
  const focusRow = (row) => {
    if (!row) return;
    all("tr[tabindex='0']", row.closest("tbody")).forEach((other) => { other.tabIndex = -1; });
    row.tabIndex = 0;
    row.focus();
  };
  for (const tree of all("table.tree")) {
    const rows = [...tree.tBodies[0].rows];
    rows.forEach((row, n) => { row.tabIndex = n ? -1 : 0; if (level(row) > 2) open(row, false); });
    redraw(tree);
    const fold = one(".fold", tree.closest(".block"));
    fold.hidden = !rows.some((row) => row.getAttribute("aria-expanded") === "false");
    fold.addEventListener("click", () => {
      const opening = fold.textContent === "Open all";
      rows.forEach((row) => { if (row.hasAttribute("aria-expanded")) row.setAttribute("aria-expanded", opening || level(row) <= 2); });
      fold.textContent = opening ? "Close" : "Open all";
      redraw(tree);
    });
    tree.addEventListener("click", (event) => {
      if (!event.target.closest(".twist")) return;
      const row = event.target.closest("tr");
      open(row, row.getAttribute("aria-expanded") !== "true");
      event.stopPropagation();
    });
    tree.addEventListener("keydown", (event) => {
      const row = event.target.closest("tbody tr");
      if (!row) return;
      const shown = visible(tree), at = shown.indexOf(row), expanded = row.getAttribute("aria-expanded");
      const moves = {
        ArrowDown: () => focusRow(shown[at + 1]),
        ArrowUp: () => focusRow(shown[at - 1]),
        Home: () => focusRow(shown[0]),
        End: () => focusRow(shown.at(-1)),
        ArrowRight: () => (expanded === "false" ? open(row, true) : expanded && focusRow(shown[at + 1])),
        ArrowLeft: () => (expanded === "true" ? open(row, false) : focusRow(shown.slice(0, at).findLast((r) => level(r) < level(row)))),
      };
      if (!moves[event.key]) return;
      moves[event.key]();
      event.preventDefault();
    });
  }

  // Where one is, in the list of sections.
  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  all("main > section").forEach((section) => watcher.observe(section));

  // What the other scripts of the page work with.
  globalThis.report = {
    all, one, refresh, sortBy, cellText, copyText, words, textOf, matches, redraw, visible,
    search: (words) => { wanted = words; },
  };
})();
