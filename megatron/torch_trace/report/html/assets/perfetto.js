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
// Until a trace is loaded plugins of the UI add tracks; then it is drawn for the first time.
const PATIENCE = 120_000;
const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });
const appOf = (frame) => { try { return frame.contentWindow?.app; } catch { return undefined; } };
const drawnTrack = (frame) => frame.contentDocument?.querySelector(".pf-track");
// A version that does not tell whether it loads has loaded when it draws a track; one that draws otherwise is not waited for.
const hasLoaded = (frame, since) => {
  const app = appOf(frame);
  if (app?.trace && app.isLoadingTrace === true) return false;
  return Boolean(drawnTrack(frame)) || Date.now() - since > PATIENCE;
};
const isDrawnInOrder = (frame) => {
  const first = appOf(frame)?.trace?.workspace?.children?.[0];
  return !first || !drawnTrack(frame) || drawnTrack(frame).textContent.includes(first.name);
};
// Puts the tracks in order, if it can before they are drawn; done when they are drawn in their order.
const arrangeTracks = async (frame) => {
  const since = Date.now();
  let known;
  while (!hasLoaded(frame, since)) {
    const trace = appOf(frame)?.trace;
    if (trace && trace !== known) trace.onTraceReady?.addListener?.(() => arrangeOnce(frame));
    known = trace;
    await pause(100);
  }
  arrangeOnce(frame);
  for (let asked = 0; asked < 600 && !isDrawnInOrder(frame); asked += 1) {
    frame.contentWindow.raf?.scheduleFullRedraw?.();
    await pause(100);
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
  const follow = () => { if (frame.isConnected) themeOnce(frame); else changes.disconnect(); };
  const changes = new MutationObserver(follow);
  changes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  DARK.addEventListener("change", follow);
  // A version without such a setting stays as it is.
  const since = Date.now();
  while (frame.isConnected && !themeOnce(frame) && Date.now() - since < PATIENCE) await pause(100);
};
