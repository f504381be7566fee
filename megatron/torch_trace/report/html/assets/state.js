// SPDX-License-Identifier: Apache-2.0
// What one looks at is in the address behind `#`, so that a link shows the same to somebody else.
"use strict";
(() => {
  const { all, one, refresh, sortBy } = globalThis.report;
  const FIELDS = { q: "#search", ranks: "#ranks-filter", heat: "#heat-order" };
  const parts = () => {
    const [anchor, query = ""] = location.hash.slice(1).split("?");
    return { anchor: decodeURIComponent(anchor), wanted: new URLSearchParams(query) };
  };
  let sorted = null;

  const save = () => {
    const now = new URLSearchParams();
    for (const [name, selector] of Object.entries(FIELDS)) {
      const field = one(selector);
      if (field?.value && !(name === "heat" && field.selectedIndex === 0)) now.set(name, field.value);
    }
    if (sorted) now.set("sort", sorted);
    const query = now.toString(), { anchor } = parts();
    history.replaceState(null, "", `#${encodeURIComponent(anchor)}${query ? `?${query}` : ""}`);
  };
  const show = () => {
    const target = parts().anchor && document.getElementById(parts().anchor);
    if (!target) return;
    const table = target.closest("table.data");
    if (table && target.classList.contains("gone") && !table.classList.contains("tree")) {
      table.dataset.all = "";
      refresh(table);
    }
    for (let around = target.closest("details"); around; around = around.parentElement?.closest("details")) around.open = true;
    all(".target").forEach((other) => other.classList.remove("target"));
    target.classList.add("target");
    target.scrollIntoView({ block: target.matches("section") ? "start" : "center" });
  };
  const begin = () => {
    const { wanted } = parts();
    for (const [name, selector] of Object.entries(FIELDS)) {
      const field = one(selector);
      if (!field || !wanted.has(name)) continue;
      field.value = wanted.get(name);
      field.dispatchEvent(new Event(name === "heat" ? "change" : "input"));
    }
    const [id, column, order] = (wanted.get("sort") ?? "").split(":");
    const table = id ? document.getElementById(id) : null;
    if (table?.matches("table.data:not(.tree)") && table.tHead.rows[0].cells[column]) {
      sortBy(table, Number(column), order === "descending");
      sorted = wanted.get("sort");
    }
    show();
  };

  for (const selector of Object.values(FIELDS)) {
    for (const kind of ["input", "change"]) one(selector)?.addEventListener(kind, save);
  }
  for (const head of all("table.data:not(.tree) th button")) head.addEventListener("click", () => {
    const cell = head.closest("th");
    sorted = `${cell.closest("table").id}:${cell.cellIndex}:${cell.getAttribute("aria-sort")}`;
    save();
  });
  // One link for all rows, in the first cell of the row below the pointer.
  const link = document.createElement("a");
  link.className = "anchor row-link";
  link.textContent = "#";
  link.setAttribute("aria-label", "Link to this row");
  document.addEventListener("pointerover", (event) => {
    const row = event.target.closest?.("table.data tbody tr[id]");
    if (!row || link.parentElement === row.cells[0]) return;
    link.href = `#${row.id}`;
    row.cells[0].append(link);
  });
  document.addEventListener("pointerout", (event) => { if (!event.relatedTarget?.closest?.("table.data tbody tr[id]")) link.remove(); });
  addEventListener("hashchange", show);
  if (location.hash) begin();
})();
