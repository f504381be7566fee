// SPDX-License-Identifier: Apache-2.0
// Perfetto in a frame of ours, beside the report and alone: what it cannot be told by an address.
"use strict";

// Perfetto orders processes by how much they did, and lists the clocks of our parts as a track of the
// "System". Ranks come in order, the CPU of each below its GPU, and that row is of no use to anyone.
const arrangeOnce = (frame) => {
  try {
    const { workspace } = frame.contentWindow.app.trace, rows = [...workspace.children];
    for (const row of rows) if (row.children.length && row.children.every((one) => one.name === "Clock Snapshots")) row.remove();
    const rankOf = (row) => /^(rank \d+) (GPU|CPU)/.exec(row.name);
    const ranks = workspace.children.filter(rankOf);
    const key = (row) => rankOf(row).slice(1).join(" ").replace("GPU", "A").replace("CPU", "B") + row.name;
    const wanted = [...ranks].sort((a, b) => key(a).localeCompare(key(b), "en", { numeric: true }));
    if (wanted.every((row, n) => row === ranks[n])) return;
    for (const row of wanted) { row.remove(); workspace.addChildLast(row); }
  } catch { /* a version that has no such thing: as Perfetto has it */ }
};
// Plugins of the UI still add tracks when the first one is drawn.
const arrangeTracks = async (frame) => {
  while (!frame.contentDocument?.querySelector(".pf-track")) await new Promise((done) => { setTimeout(done, 200); });
  for (const wait of [0, 500, 1500, 4000]) {
    await new Promise((done) => { setTimeout(done, wait); });
    arrangeOnce(frame);
  }
};

// Perfetto is as dark as the page around it, from the first moment that it can be told so, and follows it.
const DARK = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => {
  const { theme } = document.documentElement.dataset;
  return theme === undefined ? DARK.matches : theme === "dark";
};
const themeOnce = (frame) => {
  try {
    const setting = frame.contentWindow.app.settings.get("theme"), wanted = isDark() ? "dark" : "light";
    if (setting.get() !== wanted) {
      setting.set(wanted);
      // It draws again only when it is told that something has changed.
      frame.contentWindow.raf.scheduleFullRedraw();
    }
    return true;
  } catch { return false; }
};
const followTheme = async (frame) => {
  const follow = () => { themeOnce(frame); };
  new MutationObserver(follow).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  DARK.addEventListener("change", follow);
  // A version without such a setting stays as it is.
  for (let asked = 0; asked < 300 && !themeOnce(frame); asked += 1) await new Promise((done) => { setTimeout(done, 100); });
};
