// SPDX-License-Identifier: Apache-2.0
// Curves of memory over time with uPlot, and zooming into an icicle. All tables stand without it.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("curves").textContent);
  const sizes = ["B", "kB", "MB", "GB", "TB"];
  const size = bytes => {
    let n = 0;
    while (Math.abs(bytes) >= 999.5 && n < sizes.length - 1) { bytes /= 1000; n += 1; }
    return `${n && bytes < 100 ? Number(bytes.toPrecision(3)) : Math.round(bytes)} ${sizes[n]}`;
  };
  const duration = us => !us ? "0" : Math.abs(us) >= 1e6 ? `${Number((us / 1e6).toPrecision(4))} s`
    : Math.abs(us) >= 1e3 ? `${Number((us / 1e3).toPrecision(4))} ms` : `${Math.round(us)} us`;
  const moment = value => data.timed ? duration(value) : `entry ${value}`;
  const colour = name => {
    const swatch = document.createElement("i");
    swatch.style.color = `var(--${name})`;
    document.body.append(swatch);
    const found = getComputedStyle(swatch).color;
    swatch.remove();
    return found;
  };
  const strip = 15;
  const whole = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].flatMap(power => [1, 2, 5].map(n => n * 10 ** power));

  // Marks of what training did, in a strip above the curves.
  const marks = chart => u => {
    const { ctx, bbox } = u, ratio = devicePixelRatio, height = strip * ratio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top - height, bbox.width, height);
    ctx.clip();
    ctx.font = `${10 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    // A step's name would stand below the marks of its micro-batches.
    const covered = chart.ranges.some(one => one[0] !== "step");
    // Micro-batches above the phases that lie in them or around them.
    const depth = ["step", "phase", "optimizer", "backward", "forward"];
    const ordered = [...chart.ranges].sort((a, b) => depth.indexOf(a[0]) - depth.indexOf(b[0]));
    for (const [kind, label, start, end] of ordered) {
      const left = u.valToPos(start, "x", true), right = u.valToPos(end, "x", true);
      if (right < bbox.left || left > bbox.left + bbox.width) continue;
      ctx.fillStyle = colours[kind];
      ctx.fillRect(left, bbox.top - height, Math.max(right - left, 1), height - ratio);
      if (kind === "step" && covered) continue;
      if (ctx.measureText(label).width + 4 * ratio < right - left) {
        ctx.fillStyle = colours.text;
        ctx.fillText(label, Math.max(left, bbox.left) + 2 * ratio, bbox.top - height / 2);
      }
    }
    ctx.restore();
  };

  // The peak, and what the GPU has, where it is in sight.
  const signs = chart => u => {
    const { ctx, bbox } = u, ratio = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    const x = u.valToPos(chart.times[chart.peak], "x", true);
    const y = u.valToPos(chart.peak_bytes, "y", true);
    ctx.strokeStyle = ctx.fillStyle = colours.text;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.arc(x, y, 3.5 * ratio, 0, 7);
    ctx.fill();
    const said = `peak ${size(chart.peak_bytes)}`, width = ctx.measureText(said).width;
    const fits = x + width + 8 * ratio < bbox.left + bbox.width;
    ctx.fillText(said, fits ? x + 6 * ratio : x - width - 6 * ratio, Math.max(y - 5 * ratio, bbox.top + 11 * ratio));
    if (chart.capacity) {
      const at = u.valToPos(chart.capacity, "y", true);
      ctx.strokeStyle = ctx.fillStyle = colours.high;
      ctx.lineWidth = 2 * ratio;
      ctx.beginPath();
      ctx.moveTo(bbox.left, at);
      ctx.lineTo(bbox.left + bbox.width, at);
      ctx.stroke();
      ctx.fillText(`the GPU has ${size(chart.capacity)}`, bbox.left + 6 * ratio, at + 13 * ratio);
    }
    ctx.restore();
  };

  let colours = {};
  const look = () => {
    const names = ["forward", "backward", "optimizer", "step", "phase", "text", "muted", "line", "high", ...data.categories];
    colours = Object.fromEntries(names.map(name => [name, colour(name)]));
  };
  let plots = [];
  const toCapacity = document.getElementById("to-capacity");
  const draw = () => {
    for (const one of plots) one.destroy();
    look();
    const most = toCapacity && toCapacity.checked ? data.capacity * 1.03 : data.most * 1.08;
    plots = data.charts.map(chart => {
      const holder = document.getElementById(`plot-${chart.id}`);
      const readout = document.getElementById(`readout-${chart.id}`);
      const names = data.categories.filter(name => chart.categories[name]);
      const bytes = names.map(name => chart.categories[name].map(value => value * 1024));
      const sums = [];
      bytes.forEach((values, n) => sums.push(n ? values.map((v, i) => v + sums[n - 1][i]) : values));
      const stepped = uPlot.paths.stepped({ align: 1 });
      const areas = names.map((name, n) => ({
        stroke: colours[name], fill: colours[name], width: 0, paths: stepped, points: { show: false }, at: n,
      })).reverse();
      const reserved = chart.reserved.map(value => value * 1024);
      const axis = { stroke: colours.muted, grid: { stroke: colours.line, width: 1 }, ticks: { stroke: colours.line, width: 1 }, font: "11px system-ui, sans-serif" };
      const u = new uPlot({
        width: holder.clientWidth || 800,
        height: data.charts.length > 4 ? 170 : 230,
        padding: [chart.ranges.length ? strip + 6 : 8, 18, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: "memory" }, points: { show: false }, drag: { x: true, y: false } },
        scales: { x: { time: false, range: (u, low, high) => low === null || high === low ? [data.start, data.end] : [low, high] }, y: { range: [0, most] } },
        axes: [
          { ...axis, size: 32, incrs: whole, values: (u, ticks) => ticks.map(moment) },
          { ...axis, size: 70, values: (u, ticks) => ticks.map(size) },
        ],
        series: [{}, ...areas, { stroke: colours.text, width: 1.5, dash: [5, 4], paths: stepped, points: { show: false } }],
        hooks: {
          draw: [marks(chart), signs(chart)],
          setCursor: [u => {
            const i = u.cursor.idx;
            if (i === null || i === undefined) { readout.textContent = ""; return; }
            const held = names.map((name, n) => [name.replaceAll("_", " "), bytes[n][i]]).filter(one => one[1]);
            held.sort((a, b) => b[1] - a[1]);
            const total = held.reduce((sum, one) => sum + one[1], 0);
            readout.textContent = `${moment(chart.times[i])}: ${size(total)} in use, ${size(reserved[i])} reserved; `
              + held.map(([name, value]) => `${name} ${size(value)}`).join(", ");
          }],
        },
      }, [chart.times, ...[...sums].reverse(), reserved], holder);
      u.setScale("x", { min: data.start, max: data.end });
      return u;
    });
    document.documentElement.dataset.drawn = plots.length;
  };
  draw();
  if (toCapacity) toCapacity.addEventListener("change", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => {
      for (const one of plots) one.setSize({ width: one.root.parentElement.clientWidth, height: one.height });
    });
  });

  // A click on a frame makes it as wide as the picture; on the widest one it shows all again.
  for (const icicle of document.querySelectorAll(".icicle")) {
    icicle.addEventListener("click", event => {
      const button = event.target.closest("button");
      if (!button) return;
      const chosen = button.parentElement;
      const again = chosen.dataset.zoomed === "yes";
      for (const one of icicle.querySelectorAll(".aside")) one.classList.remove("aside");
      for (const one of icicle.querySelectorAll("[data-zoomed]")) delete one.dataset.zoomed;
      if (again) return;
      chosen.dataset.zoomed = "yes";
      for (let at = chosen; at !== icicle; at = at.parentElement)
        if (at.parentElement.classList.contains("below"))
          for (const sibling of at.parentElement.children) if (sibling !== at) sibling.classList.add("aside");
    });
  }
})();
