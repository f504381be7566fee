// SPDX-License-Identifier: Apache-2.0
// The shell of `torch-trace view`: Perfetto in a frame, and rows that move it.
"use strict";
(() => {
  const body = document.body, pane = document.querySelector("#timeline");
  const state = document.querySelector("#timeline-state");
  const toggle = document.querySelector("#toggle-timeline");
  const { ui, timeline, offsets, ranks } = body.dataset;
  const say = (words) => { state.textContent = words; };
  let frame = null, shift = null, pending = null, heard = false, ready = false;

  toggle.addEventListener("click", () => {
    const alone = body.classList.toggle("alone");
    toggle.setAttribute("aria-expanded", !alone);
    toggle.textContent = alone ? "Show timeline" : "Hide timeline";
  });

  // The UI opens absolute addresses only, and only those of the very origin that it came from.
  const address = (path) => `${ui}#!/viewer?url=${encodeURIComponent(location.origin + path)}&hideSidebar=true`;

  const begin = (answer) => {
    shift = new Map(Object.entries(answer.offset_ns).map(([rank, ns]) => [rank, BigInt(ns)]));
    // A new frame, so that the memory of the one before is given back.
    frame?.remove();
    heard = ready = false;
    frame = document.createElement("iframe");
    frame.title = "Timeline in Perfetto";
    frame.src = address(answer.timeline ?? timeline);
    pane.append(frame);
    followTheme(frame);
    others.tell(answer);
    say("Loading the timeline ...");
    ping();
  };
  const others = otherRanks({ address: ranks, offsets, say, begin, forget: () => { pending = null; } });

  // PONG says that the UI listens; it goes on listening while and after it loads the trace.
  const ping = () => {
    if (heard) return;
    frame.contentWindow?.postMessage("PING", location.origin);
    setTimeout(ping, 250);
  };
  addEventListener("message", (event) => {
    if (event.origin !== location.origin || event.source !== frame?.contentWindow || event.data !== "PONG" || heard) return;
    heard = true;
    begun();
  });

  // It is ready when its tracks are drawn in their order.
  const begun = async () => {
    const arranged = frame;
    await arrangeTracks(arranged);
    if (arranged !== frame) return;
    ready = true;
    say("A click on a row shows it here.");
    if (pending) show(pending);
  };

  const ask = async () => {
    let answer;
    try {
      answer = await (await fetch(offsets, { cache: "no-store" })).json();
    } catch {
      say("The server does not answer; is torch-trace view still running?");
      setTimeout(ask, 3000);
      return;
    }
    if (answer.state === "ready") begin(answer);
    else if (answer.state === "failed") say(`No timeline: ${answer.message}`);
    else {
      say(answer.message || "Making the timeline ...");
      setTimeout(ask, 700);
    }
  };

  // The UI of the same origin can be asked for more than zooming; a version that cannot only zooms.
  const shown = () => frame.contentWindow.app.trace;

  // What is no slice, a micro-batch for instance, is marked on the GPU of its rank.
  let selected = 0;
  const select = async (rank, from, duration, cpu) => {
    const mine = selected += 1;
    try {
      const { engine, selection, workspace } = shown();
      // What is said about a selection must not cover the little that a small frame shows.
      const drawer = { switchToCurrentSelectionTab: frame.clientHeight > 500 };
      const mainThread = new RegExp(`^rank 0*${Number(rank)} main thread`);
      const threads = cpu ? workspace.flatTracks.filter((one) => one.uri && mainThread.test(one.name)) : [];
      if (threads.length) {
        selection.selectArea({ start: from, end: from + duration, trackUris: threads.map((one) => one.uri) }, drawer);
        for (let above = threads[0].parent; above; above = above.parent) above.expand?.();
        // The row is there when its group has been drawn open, and must not end up at the lower edge,
        // where Perfetto leaves it, or below what is said about the selection. A busy browser draws late.
        for (let asked = 0, seen = 0; asked < 60 && seen < 3; asked += 1) {
          await pause(asked ? 1000 : 200);
          await new Promise((done) => { frame.contentWindow.requestAnimationFrame(done); });
          if (mine !== selected) return;
          shown().scrollTo({ track: { uri: threads[0].uri, expandGroup: true } });
          // The row of a group has those of its members inside.
          const rows = [...frame.contentDocument.querySelectorAll(".pf-track")];
          const row = rows.findLast((one) => one.innerText.split("\n").some((line) => mainThread.test(line)));
          row?.scrollIntoView({ block: "center" });
          if (row) seen += 1;
        }
        return;
      }
      // Tracks of GPUs are named `rank 07 stream 7 compute`: of equal slices that rank's comes first.
      const found = await engine.query(`select s.id as id from slice s join track t on t.id = s.track_id
        where s.ts = ${from} and s.dur = ${duration}
        order by t.name glob 'rank [0-9]*' and cast(substr(t.name, 6) as int) = ${Number(rank)} desc limit 1`);
      const row = found.iter({ id: 0 });
      if (row.valid()) {
        selection.selectSqlEvent("slice", row.id, { scrollToSelection: true, ...drawer });
        return;
      }
      const gpu = new RegExp(`^rank 0*${Number(rank)} (GPU|stream) ?`);
      const tracks = workspace.flatTracks.filter((one) => one.uri && gpu.test(one.name));
      if (!tracks.length) {
        selection.clearSelection();
        return;
      }
      selection.selectArea({ start: from, end: from + duration, trackUris: tracks.map((one) => one.uri) }, drawer);
      // The first of its streams, so that they are opened.
      shown().scrollTo({ track: { uri: (tracks[1] ?? tracks[0]).uri, expandGroup: true } });
    } catch { /* zoomed is enough */ }
  };

  const SECOND = 1e9;
  const show = ({ rank, start, duration, cpu }) => {
    const offset = shift?.get(rank);
    if (offset === undefined) {
      others.suggest(rank);
      return;
    }
    others.withdraw();
    const from = start + offset, to = from + duration;
    select(rank, from, duration, cpu);
    frame.contentWindow.postMessage({ perfetto: {
      timeStart: Number(from) / SECOND, timeEnd: Number(to) / SECOND, viewPercentage: 0.4,
    } }, location.origin);
    say(`Rank ${rank} at ${(Number(from) / 1e6).toFixed(3)} ms, ${(Number(duration) / 1e6).toFixed(3)} ms long.`);
  };

  const visit = (element, event) => {
    const { rank, start, duration } = element.dataset;
    const moment = { rank, start: BigInt(start), duration: BigInt(duration), cpu: element.dataset.cpu !== undefined };
    if (element.dataset.scrub !== undefined && event?.clientX !== undefined) {
      // A lane is the whole window: a click in it means the part around the pointer.
      const box = element.getBoundingClientRect(), part = moment.duration / 50n;
      const at = BigInt(Math.round(1000 * Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1)));
      moment.start += (moment.duration * at) / 1000n - part / 2n;
      moment.duration = part;
    }
    document.querySelectorAll(".marked").forEach((other) => other.classList.remove("marked"));
    if (element.dataset.scrub === undefined) element.classList.add("marked");
    if (body.classList.contains("alone")) toggle.click();
    pending = moment;
    if (ready) show(moment);
  };

  const report = document.querySelector("#report");
  report.addEventListener("click", (event) => {
    const button = event.target.closest(".cpu-side");
    const element = button ?? event.target.closest("[data-start]");
    if (!element || (!button && event.target.closest("button, a, summary, .twist")) || String(getSelection())) return;
    visit(element, event);
  });
  report.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    // The strip of the critical path has the focus for all of its parts.
    const strip = event.target.matches(".strip") ? event.target : null;
    const element = strip ? strip.querySelector(".chosen[data-start]") : event.target.closest("[data-start]");
    if (!element || (!strip && event.target !== element)) return;
    visit(element);
    event.preventDefault();
  });
  // One stop of the Tab key for each table or row of blocks; arrows move inside.
  const groups = "tbody, .blocks, .columns, .slim";
  for (const element of document.querySelectorAll("[data-start]")) {
    if (element.closest(".strip")) continue;
    const group = element.closest(groups);
    if (!element.closest(".tree")) element.tabIndex = group && group.querySelector("[data-start]") !== element ? -1 : 0;
    if (element.matches("i")) element.setAttribute("role", "button");
  }
  report.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    const group = event.target.closest(groups);
    if (!step || !group || event.target.closest(".tree") || !event.target.matches("[data-start]")) return;
    const members = [...group.querySelectorAll("[data-start]")].filter((one) => !one.classList.contains("gone"));
    const next = members[members.indexOf(event.target) + step];
    if (!next) return;
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    event.preventDefault();
  });
  ask();
})();
