// SPDX-License-Identifier: Apache-2.0
// Perfetto in a frame of ours, beside the report and alone: what it cannot be told by an address.
"use strict";

// Perfetto orders processes by how much they did, and lists the clocks of our parts as a track of the
// "System". Ranks come in order, and that row is of no use to anyone.
const arrangeTracks = async (frame) => {
  while (!frame.contentDocument?.querySelector(".pf-track")) await new Promise((done) => { setTimeout(done, 200); });
  try {
    const { workspace } = frame.contentWindow.app.trace, rows = [...workspace.children];
    for (const row of rows) if (row.children.length && row.children.every((one) => one.name === "Clock Snapshots")) row.remove();
    const processes = rows.filter((row) => /^rank \d+ CPU/.test(row.name));
    processes.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    for (const row of processes) { row.remove(); workspace.addChildLast(row); }
  } catch { /* a version that has no such thing: as Perfetto has it */ }
};
