// SPDX-License-Identifier: Apache-2.0
// A range of time: tables show the rows whose example lies in it, or say that they are of the whole window.
"use strict";
(() => {
  const { all, one, refresh } = globalThis.report;
  const tables = all("table.data");
  const rowsOf = (table) => all("tbody > tr[data-start]", table);
  const note = (table, words) => {
    const place = one(".ranged", table.closest(".block"));
    if (place) place.textContent = words;
  };
  // `covers(rank, start, duration)` tells whether that moment of a rank touches the range; null ends the range.
  // Of a rank or a stage the example is all that it did, and a tree without its branches tells nothing.
  globalThis.report.showRange = (covers, longest) => {
    for (const table of tables) {
      const timed = rowsOf(table).filter((row) => Number(row.dataset.duration) <= longest);
      const filters = covers !== null && timed.length > 0 && !table.classList.contains("tree");
      let inside = 0;
      for (const row of all("tbody > tr", table)) {
        const { rank, start, duration } = row.dataset;
        const shown = !filters || (start !== undefined && covers(Number(rank), BigInt(start), Number(duration)));
        if (shown) delete row.dataset.beside; else row.dataset.beside = "";
        inside += shown;
      }
      if (!table.classList.contains("tree")) refresh(table);
      if (covers === null) note(table, "");
      else note(table, filters ? `${inside} of ${table.tBodies[0].rows.length} examples in the range` : "of the whole window");
    }
  };
})();
