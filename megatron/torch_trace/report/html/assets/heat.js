// SPDX-License-Identifier: Apache-2.0
// All ranks over time: a row a rank, drawn on a canvas; order, tooltip, a range of time.
"use strict";
(() => {
  const { one } = globalThis.report;
  const figure = one("#heat-map"), source = one("#heat-rows");
  if (!figure || !source) return;
  const canvas = one("canvas", figure), told = one("#heat-told"), order = one("#heat-order"), labels = one(".heat-labels", figure);
  const everything = one("#heat-everything");
  const rows = source.content.textContent.split(";").map((line) => {
    const [rank, where, host, start, end, own, idle, letters] = line.split("|");
    const at = Object.fromEntries(where.split(" ").filter(Boolean).map((one) => /^(.*?)(\d+)$/.exec(one)).filter(Boolean).map((one) => [one[1], Number(one[2])]));
    return { rank: Number(rank), at, where, host, start: Number(start), end: Number(end), own: BigInt(own), idle: Number(idle), letters };
  });
  const PARTS = ["compute", "exposed_communication", "exposed_memory", "idle"];
  const NAMES = ["compute", "exposed communication", "exposed copies", "idle"], LEVELS = 6;
  const first = Math.min(...rows.map((row) => row.start)), last = Math.max(...rows.map((row) => row.end));
  const span = Math.max(1, last - first);
  let shown = rows, cursor = null, range = null, from = null;

  const key = (row) => {
    const by = order.value;
    if (by === "rank") return row.rank;
    if (by === "idle") return -row.idle;
    return by === "host" ? row.host : row.at[by] ?? -1;
  };
  const group = (row) => (order.value === "host" ? row.host : `${order.value}${row.at[order.value] ?? "?"}`);
  const height = () => (rows.length <= 32 ? 14 : rows.length <= 128 ? 6 : rows.length <= 512 ? 2 : 1);

  const draw = () => {
    const width = Math.max(200, Math.round(canvas.clientWidth)), each = height(), scale = Math.min(2, devicePixelRatio || 1);
    canvas.width = width * scale;
    canvas.height = each * rows.length * scale;
    canvas.style.height = `${each * rows.length}px`;
    const brush = canvas.getContext("2d"), style = getComputedStyle(figure);
    brush.scale(scale, scale);
    // The colours of the page, whatever its theme.
    const paint = PARTS.map((name) => { figure.style.color = `var(--${name})`; return getComputedStyle(figure).color; });
    figure.style.color = "";
    brush.fillStyle = style.backgroundColor;
    brush.fillRect(0, 0, width, each * rows.length);
    shown.forEach((row, n) => {
      const left = ((row.start - first) / span) * width, each_slice = ((row.end - row.start) / span) * width / row.letters.length;
      for (let slice = 0; slice < row.letters.length; slice += 1) {
        const code = row.letters.charCodeAt(slice) - 65;
        brush.globalAlpha = 0.35 + (0.65 * ((code % LEVELS) + 1)) / LEVELS;
        brush.fillStyle = paint[Math.floor(code / LEVELS)];
        brush.fillRect(left + slice * each_slice, n * each, each_slice + 0.6, each > 4 ? each - 1 : each);
      }
    });
    brush.globalAlpha = 1;
    if (range) {
      brush.strokeStyle = getComputedStyle(document.body).color;
      brush.strokeRect(range[0] * width, 0.5, (range[1] - range[0]) * width, each * rows.length - 1);
    }
  };
  const label = () => {
    const each = height(), every = Math.ceil(16 / each), grouped = !["rank", "idle"].includes(order.value);
    let before = null, free = -Infinity;
    labels.replaceChildren(...shown.flatMap((row, n) => {
      const words = grouped ? group(row) : `${row.rank}`;
      if (grouped ? words === before || n * each < free : n % every) return [];
      before = words;
      free = n * each + 14;
      const made = document.createElement("span");
      made.textContent = words;
      made.style.top = `${n * each}px`;
      return [made];
    }));
  };
  const arrange = () => {
    shown = [...rows].sort((a, b) => {
      const x = key(a), y = key(b);
      return (x < y ? -1 : x > y ? 1 : 0) || a.rank - b.rank;
    });
    label();
    draw();
  };
  const partOf = (row, time) => {
    const at = Math.floor(((time - row.start) / Math.max(1, row.end - row.start)) * row.letters.length);
    return at < 0 || at >= row.letters.length ? null : row.letters.charCodeAt(at) - 65;
  };
  const ms = (ns) => `${(ns / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} ms`;
  const tell = () => {
    const row = shown[cursor.row], time = first + cursor.x * span, code = partOf(row, time);
    const what = code === null ? "outside of its window" :
      `${NAMES[Math.floor(code / LEVELS)]}, about ${Math.round((100 * ((code % LEVELS) + 0.5)) / LEVELS)} % of that slice`;
    told.textContent = `Rank ${row.rank}${row.where ? ` (${row.where})` : ""} at ${ms(time - first)}: ${what}.`;
    // What a click shows in the timeline beside the page.
    Object.assign(canvas.dataset, { rank: row.rank, start: row.own, duration: row.end - row.start });
  };
  const addUp = () => {
    const sums = [0, 0, 0, 0];
    for (const row of rows) {
      for (let slice = 0; slice < row.letters.length; slice += 1) {
        const time = row.start + ((slice + 0.5) * (row.end - row.start)) / row.letters.length;
        if (time < first + range[0] * span || time > first + range[1] * span) continue;
        sums[Math.floor((row.letters.charCodeAt(slice) - 65) / LEVELS)] += 1;
      }
    }
    const all = sums.reduce((a, b) => a + b, 0) || 1;
    told.textContent = `From ${ms(range[0] * span)} to ${ms(range[1] * span)}, slices of all ranks that are mostly ${NAMES.map((name, n) => `${name}: ${Math.round((100 * sums[n]) / all)} %`).join(", ")}.`;
    const row = shown[cursor.row];
    delete canvas.dataset.scrub;
    Object.assign(canvas.dataset, {
      rank: row.rank, start: row.own + BigInt(Math.round(first + range[0] * span - row.start)), duration: Math.max(1, Math.round((range[1] - range[0]) * span)),
    });
  };
  // Moments of tables are of a rank's own clock.
  const clocks = new Map(rows.map((row) => [row.rank, row]));
  const filter = () => {
    everything.hidden = !range;
    if (!range) { globalThis.report.showRange(null); return; }
    const from = first + range[0] * span, to = first + range[1] * span;
    globalThis.report.showRange((rank, start, duration) => {
      const row = clocks.get(rank), at = row && row.start + Number(start - row.own);
      return row !== undefined && at <= to && at + duration >= from;
    }, span / 2);
    told.textContent += " Tables show the rows whose example lies in the range; their numbers are of the whole window.";
  };
  const leave = () => {
    if (!range) return;
    range = null;
    canvas.dataset.scrub = "";
    filter();
    draw();
  };
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    cursor = {
      x: Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)),
      row: Math.min(rows.length - 1, Math.max(0, Math.floor((event.clientY - box.top) / height()))),
    };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    // A drag that ends beside the map is a click on the map all the same.
    canvas.setPointerCapture(event.pointerId);
    leave();
    point(event);
    tell();
    from = cursor.x;
  });
  canvas.addEventListener("pointermove", (event) => {
    point(event);
    if (from !== null && Math.abs(cursor.x - from) > 0.01) {
      range = [Math.min(from, cursor.x), Math.max(from, cursor.x)];
      draw();
      addUp();
    } else if (!range) tell();
  });
  for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, () => {
    if (from !== null && range) filter();
    from = null;
  });
  everything.addEventListener("click", () => { leave(); tell(); canvas.focus(); });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && range) { leave(); tell(); return; }
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!steps) return;
    cursor ??= { x: 0, row: 0 };
    const anchor = range && (cursor.x === range[0] ? range[1] : range[0]), before = cursor.x;
    cursor.x = Math.min(1, Math.max(0, cursor.x + steps[0] / 120));
    cursor.row = Math.min(rows.length - 1, Math.max(0, cursor.row + steps[1]));
    event.preventDefault();
    const other = anchor ?? before;
    if (event.shiftKey && other !== cursor.x) {
      range = [Math.min(other, cursor.x), Math.max(other, cursor.x)];
      draw();
      addUp();
      filter();
      return;
    }
    leave();
    tell();
  });
  figure.hidden = false;
  order.addEventListener("change", arrange);
  addEventListener("resize", draw);
  new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("print").addEventListener("change", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  arrange();
})();
