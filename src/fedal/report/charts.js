"use strict";
// Draws the page's embedded JSON. All text goes through textContent, so nothing from a run becomes markup.

const data = JSON.parse(document.getElementById("data").textContent);
const AXES = {
  iterations: { index: 0, title: "iterations (rounds × tau)", show: (x) => x.toLocaleString("en") },
  seconds: { index: 1, title: "seconds, wall clock", show: (x) => `${round(x)} s` },
  bytes: { index: 2, title: "uploaded by all clients together", show: bytes },
};
const MEAN = 3, LOW = 4, HIGH = 5, SEEDS = 6;
const state = { axis: "iterations", hidden: new Set() };

function round(x) { return String(Number(x.toPrecision(3))); }

function bytes(x) {
  const units = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]];
  const unit = units.find(([, factor]) => Math.abs(x) >= factor);
  return unit ? `${round(x / unit[1])} ${unit[0]}` : `${round(x)} B`;
}

function value(y, unit) {
  if (unit === "share") return y.toFixed(4);
  if (unit === "points") return (y >= 0 ? "+" : "−") + Math.abs(y).toFixed(4);
  return round(y);
}

function svg(name, attributes, parent) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (parent) parent.append(node);
  return node;
}

function text(parent, x, y, content, attributes) {
  svg("text", { x, y, ...attributes }, parent).textContent = content;
}

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

// A frame with grid, ticks and scales. Returns the svg node and the two scales.
function frame(plot, height, xs, ys, xTitle, showX, showY) {
  const width = plot.clientWidth, left = 54, right = 14, top = 8, bottom = 44;
  const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
  const x = (v) => left + (width - left - right) * (v - xs[0]) / (xs[1] - xs[0] || 1);
  const y = (v) => height - bottom - (height - top - bottom) * (v - ys[0]) / (ys[1] - ys[0] || 1);
  for (const tick of showY ? ticks(ys[0], ys[1], height / 42) : []) {
    svg("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), class: "grid" }, node);
    text(node, left - 8, y(tick) + 4, showY(tick), { "text-anchor": "end" });
  }
  for (const tick of ticks(xs[0], xs[1], width / 110)) {
    if (!showY) svg("line", { x1: x(tick), x2: x(tick), y1: top, y2: height - bottom, class: "grid" }, node);
    text(node, x(tick), height - bottom + 18, showX(tick), { "text-anchor": "middle" });
  }
  text(node, (left + width - right) / 2, height - 6, xTitle, { "text-anchor": "middle" });
  return { node, x, y, left, right: width - right, bottom: height - bottom, top };
}

// The series of a chart: one per visible group that has the measure.
function series(key) {
  const at = AXES[state.axis].index;
  return data.groups.map((group, index) => {
    const points = (group.curves[key] || []).filter((p) => p[at] !== null);
    const silent = state.axis === "bytes" && points.every((p) => p[at] === 0);
    return { group, index, points, silent, style: `line-${index % 7} dash-${Math.floor(index / 7) % 4}` };
  }).filter((s) => s.points.length && !state.hidden.has(s.index));
}

function path(points, x, y, closed) {
  return points.map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("") + (closed ? "Z" : "");
}

function curveChart(plot) {
  const key = plot.dataset.measure, { name, unit } = data.measures[key];
  const wide = plot.parentElement.classList.contains("wide");
  const tip = document.createElement("div");
  let shown = [], stops = [], now = -1, area = null, marks = null;
  tip.className = "tip";
  tip.hidden = true;
  plot.setAttribute("role", "slider");
  plot.tabIndex = 0;

  function draw() {
    const axis = AXES[state.axis], at = axis.index;
    shown = series(key);
    const moving = shown.filter((s) => !s.silent);
    stops = [...new Set(moving.flatMap((s) => s.points.map((p) => p[at])))].sort((a, b) => a - b);
    const all = shown.flatMap((s) => s.points.flatMap((p) => [p[LOW], p[HIGH]]));
    const reference = key === "discriminator_accuracy" ? data.chance : unit === "points" ? 0 : null;
    if (reference !== null) all.push(reference);
    const low = Math.min(...all), high = Math.max(...all), pad = (high - low || Math.abs(high) || 1) * 0.06;
    const ys = all.length ? [unit === "number" && low >= 0 ? Math.max(0, low - pad) : low - pad, high + pad] : [0, 1];
    area = frame(plot, wide ? Math.min(440, Math.max(260, plot.clientWidth * 0.45)) : 230,
      [0, stops.at(-1) || 1], ys, axis.title, axis.show, round);
    if (reference !== null) {
      svg("line", { x1: area.left, x2: area.right, y1: area.y(reference), y2: area.y(reference), class: "reference" }, area.node);
      if (unit !== "points") text(area.node, area.left + 4, area.y(reference) - 6, `chance ${round(reference)}`);
    }
    for (const s of shown) drawSeries(s, at);
    marks = svg("g", {}, area.node);
    plot.replaceChildren(area.node, tip);
    plot.setAttribute("aria-label", `${name} against ${axis.title}. Arrow keys move through the evaluations.`);
    plot.setAttribute("aria-valuemin", "0");
    plot.setAttribute("aria-valuemax", String(Math.max(0, stops.length - 1)));
    leave();
  }

  function drawSeries(s, at) {
    if (s.silent) {
      const y = area.y(s.points.at(-1)[MEAN]);
      svg("path", { d: `M${area.left} ${y}H${area.right}`, class: `curve silent ${s.style}` }, area.node);
      return;
    }
    if (s.points.some((p) => p[SEEDS] > 1)) {
      const edge = [...s.points.map((p) => [p[at], p[HIGH]]), ...s.points.map((p) => [p[at], p[LOW]]).reverse()];
      svg("path", { d: path(edge, area.x, area.y, true), class: `band ${s.style}` }, area.node);
    }
    svg("path", { d: path(s.points.map((p) => [p[at], p[MEAN]]), area.x, area.y), class: `curve ${s.style}` }, area.node);
    if (s.points.length > 24) return;
    for (const p of s.points) svg("circle", { cx: area.x(p[at]), cy: area.y(p[MEAN]), r: 2.6, class: `dot ${s.style}` }, area.node);
  }

  // Each group's newest evaluation up to the stop.
  function reading(stop) {
    const at = AXES[state.axis].index;
    return shown.map((s) => ({ s, point: s.silent ? s.points.at(-1) : s.points.filter((p) => p[at] <= stop).at(-1) }))
      .filter((r) => r.point).sort((a, b) => b.point[MEAN] - a.point[MEAN]);
  }

  function show(index) {
    if (!stops.length) return;
    now = Math.min(stops.length - 1, Math.max(0, index));
    const stop = stops[now], at = AXES[state.axis].index, cx = area.x(stop), rows = reading(stop);
    marks.replaceChildren();
    svg("line", { x1: cx, x2: cx, y1: area.top, y2: area.bottom, class: "cursor" }, marks);
    const title = document.createElement("b");
    title.textContent = state.axis === "iterations" ? `iteration ${AXES.iterations.show(stop)}` : AXES[state.axis].show(stop);
    tip.replaceChildren(title);
    for (const { s, point } of rows) {
      svg("circle", { cx: s.silent ? cx : area.x(point[at]), cy: area.y(point[MEAN]), r: 4, class: `ring ${s.style}` }, marks);
      const row = document.createElement("div"), line = document.createElement("span");
      const label = document.createElement("span"), number = document.createElement("span");
      line.className = `swatch ${s.style}`;
      label.textContent = s.group.label;
      number.textContent = value(point[MEAN], unit);
      row.append(line, label, number);
      tip.append(row);
    }
    tip.hidden = false;
    const beside = cx + 14 + tip.offsetWidth > plot.clientWidth ? cx - 14 - tip.offsetWidth : cx + 14;
    tip.style.left = `${Math.max(0, Math.min(beside, plot.clientWidth - tip.offsetWidth))}px`;
    const height = rows.reduce((sum, { point }) => sum + area.y(point[MEAN]), 0) / (rows.length || 1);
    tip.style.top = height > (area.top + area.bottom) / 2 ? "0" : `${area.bottom - tip.offsetHeight - 6}px`;
    const words = rows.map(({ s, point }) => {
      const range = point[SEEDS] > 1 ? ` (${value(point[LOW], unit)} to ${value(point[HIGH], unit)}, ${point[SEEDS]} seeds)` : "";
      return `${s.group.label} ${value(point[MEAN], unit)}${range}`;
    });
    plot.setAttribute("aria-valuenow", String(now));
    plot.setAttribute("aria-valuetext", `${title.textContent}: ${words.join(", ")}`);
  }

  function leave() {
    now = -1;
    tip.hidden = true;
    if (marks) marks.replaceChildren();
    plot.setAttribute("aria-valuenow", "0");
    plot.setAttribute("aria-valuetext", `${shown.length} methods, ${stops.length} evaluations`);
  }

  function point(event) {
    const x = event.clientX - plot.getBoundingClientRect().left;
    const distances = stops.map((stop) => Math.abs(area.x(stop) - x));
    show(distances.indexOf(Math.min(...distances)));
  }

  plot.addEventListener("pointermove", point);
  plot.addEventListener("pointerdown", point);
  plot.addEventListener("pointerleave", leave);
  plot.addEventListener("blur", leave);
  plot.addEventListener("keydown", (event) => {
    const last = stops.length - 1;
    const to = { ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: now < 0 ? last : now - 1, ArrowDown: now < 0 ? last : now - 1, Home: 0, End: last };
    if (event.key in to) { show(to[event.key]); event.preventDefault(); }
    if (event.key === "Escape") leave();
  });
  return draw;
}

function clientChart(plot) {
  return function draw() {
    const shown = data.groups.map((group, index) => ({ group, index })).filter(({ group, index }) => group.box && !state.hidden.has(index));
    if (!shown.length) {
      plot.textContent = "No finished run to show.";
      return;
    }
    const row = 58, low = Math.min(...shown.map(({ group }) => group.box[0])), high = Math.max(...shown.map(({ group }) => group.box[4]));
    const pad = (high - low || 0.1) * 0.05;
    const area = frame(plot, row * shown.length + 60, [low - pad, high + pad], [0, 1], `final ${data.accuracy} of a client`, round, null);
    shown.forEach(({ group, index }, place) => {
      const style = `line-${index % 7}`, top = area.top + place * row, middle = top + 36, [, quarter, median, three] = group.box.map(area.x);
      text(area.node, 4, top + 14, group.label, { class: "name" });
      svg("rect", { x: quarter, y: middle - 13, width: Math.max(1, three - quarter), height: 26, rx: 3, class: `box ${style}` }, area.node);
      svg("line", { x1: median, x2: median, y1: middle - 13, y2: middle + 13, class: `median ${style}` }, area.node);
      group.clients.forEach(([accuracy, name], i) => {
        const dot = svg("circle", { cx: area.x(accuracy), cy: middle + ((i * 7) % 11 - 5) * 1.7, r: 3.4, class: `client ${style}` }, area.node);
        svg("title", {}, dot).textContent = `${group.label}, ${name}: ${accuracy.toFixed(4)}`;
      });
    });
    plot.replaceChildren(area.node);
  };
}

function fill(id, rows) {
  const body = document.getElementById(id).tBodies[0];
  rows.forEach((cells, i) => cells.forEach((cell, j) => { body.rows[i].cells[j + 1].textContent = cell; }));
}

const draws = [...document.querySelectorAll(".plot")].map(curveChart);
draws.push(clientChart(document.getElementById("client-plot")));
const drawAll = () => draws.forEach((draw) => draw());

for (const radio of document.querySelectorAll("input[name=axis]")) {
  if (radio.checked) state.axis = radio.value;
  radio.addEventListener("change", () => { state.axis = radio.value; drawAll(); });
}
for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const index = Number(button.dataset.group), hide = !state.hidden.has(index);
    if (hide) state.hidden.add(index); else state.hidden.delete(index);
    button.setAttribute("aria-pressed", String(!hide));
    drawAll();
  });
}

const inputs = ["target-number", "target-range"].map((id) => document.getElementById(id));
for (const input of inputs) {
  input.addEventListener("input", () => {
    const percent = Math.round(Number(input.value));
    if (!(percent >= 1 && percent <= 100)) return;
    inputs.filter((other) => other !== input).forEach((other) => { other.value = percent; });
    fill("target-table", data.targets[percent - 1]);
  });
}
const baseline = document.getElementById("baseline");
baseline.addEventListener("change", () => {
  fill("difference-table", data.differences[Number(baseline.value)]);
  document.getElementById("shortfall").textContent = data.shortfalls[Number(baseline.value)];
});

const theme = document.getElementById("theme"), root = document.documentElement;
const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
const updatePressed = () => theme.setAttribute("aria-pressed", String(isDark()));
theme.hidden = false;
theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; updatePressed(); });
prefersDark.addEventListener("change", updatePressed);
updatePressed();

let width = 0;
new ResizeObserver(() => {
  if (document.body.clientWidth !== width) { width = document.body.clientWidth; drawAll(); }
}).observe(document.body);
