// SPDX-License-Identifier: Apache-2.0
// Order and filter of the ranks, in the table and in the columns alike.
"use strict";
(() => {
  const { all, one, refresh, sortBy } = globalThis.report;
  const ranks = one("#ranks"), slim = one("#slim"), order = one(".order");
  if (!ranks || !order) return; // a recording of the CPU alone
  order.hidden = ranks.tBodies[0].rows.length < 2;
  // The parts stand behind the window's length, which stands behind the bar.
  const parts = [...ranks.tHead.rows[0].cells].findIndex((head) => head.textContent.trim() === "breakdown") + 2;
  const columns = { "-1": 0, 0: parts, 1: parts + 1, 3: parts + 3 };
  all("button", order).forEach((button) => button.addEventListener("click", () => {
    all("button", order).forEach((other) => other.setAttribute("aria-pressed", other === button));
    const by = Number(button.dataset.by);
    sortBy(ranks, columns[by], by >= 0);
    if (!slim) return;
    const key = (column) => (by < 0 ? Number(column.dataset.r) : -Number(column.dataset.s.split(" ")[by]));
    slim.append(...all("i", slim).map((column) => [key(column), column]).sort(([a], [b]) => a - b).map(([, column]) => column));
  }));
  const accepts = (wish, rank, where) => wish.every((word) => {
    const range = /^(\d+)(?:-(\d+))?$/.exec(word);
    if (range) return rank >= Number(range[1]) && rank <= Number(range[2] ?? range[1]);
    return where.includes(word);
  });
  const filter = one("#ranks-filter");
  filter?.addEventListener("input", () => {
    const wish = filter.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    let found = 0;
    for (const row of ranks.tBodies[0].rows) {
      const coordinates = parts < 4 ? [] : (one(".name", row.cells[1])?.title || row.cells[1].textContent).trim().split(" ");
      const inside = accepts(wish, Number(row.cells[0].dataset.v), coordinates);
      if (inside) delete row.dataset.out; else row.dataset.out = "";
      found += inside;
    }
    refresh(ranks);
    if (slim) for (const column of slim.children) column.classList.toggle("gone", !accepts(wish, Number(column.dataset.r), column.dataset.w.split(" ")));
    one("#ranks-found").textContent = wish.length ? `${found} of ${ranks.tBodies[0].rows.length}` : "";
  });
  slim?.addEventListener("pointerover", (event) => { if (event.target.title) one("#slim-told").textContent = event.target.title; });
})();
