// The page of the studio: plain modules, no build step. The server computes; this file sends requests and draws.

const $ = (id) => document.getElementById(id);
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((c) => c !== null && c !== undefined));
  return element;
};
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const number = (v, digits = 3) => (v === null || v === undefined ? "–" : v !== 0 && Math.abs(v) < 1e-3 ? Number(v).toExponential(1) : Number(v).toPrecision(digits).replace(/\.?0+$/, (m) => (m.includes(".") ? "" : m)));

const state = { runs: [], run: null, tab: "", input: null, pad: "view", hidden: new Set(), rowsBegin: 0 };
let toastTimer = 0;

function toast(text) {
  $("toast").textContent = text;
  $("toast").hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => ($("toast").hidden = true), 8000);
}

// Requests: a task streams events; a newer one of the same channel stops the older.

const channels = new Map();

async function task(name, body, { channel = name, onframe = () => {} } = {}) {
  channels.get(channel)?.abort();
  const control = new AbortController();
  channels.set(channel, control);
  try {
    const response = await fetch(`api/${name}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: control.signal });
    if (!response.ok) throw new Error((await response.json()).error ?? response.statusText);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the studio stopped before it answered");
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const [, event, data] = part.match(/^event: (.*)\ndata: (.*)$/s);
        const values = JSON.parse(data);
        if (event === "error") throw new Error(values.says);
        if (event === "done") return values;
        onframe(values, event);
      }
    }
  } catch (error) {
    if (error.name === "AbortError") return null;
    toast(error.message);
    return null;
  } finally {
    if (channels.get(channel) === control) channels.delete(channel);
  }
}
const stop = () => { for (const control of channels.values()) control.abort(); };

// Drawing.

const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

function drawGrid(canvas, shown, columns = Math.ceil(Math.sqrt(shown.n)), gap = 1) {
  const [channels, height, width] = state.run.form;
  const rows = Math.ceil(shown.n / columns), bytes = bytesOf(shown.pixels);
  const w = columns * (width + gap) - gap, h = rows * (height + gap) - gap;
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; canvas.style.aspectRatio = `${w} / ${h}`; }
  const image = new ImageData(w, h);
  for (let k = 0, at = 0; k < shown.n; k++) {
    const top = Math.floor(k / columns) * (height + gap), left = (k % columns) * (width + gap);
    for (let i = 0; i < height; i++) for (let j = 0; j < width; j++) {
      const to = 4 * ((top + i) * w + left + j);
      for (let c = 0; c < 3; c++) image.data[to + c] = bytes[at + (channels === 3 ? c : 0)];
      image.data[to + 3] = 255;
      at += channels;
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function drawPoints(canvas, shown) {
  const [low, high] = state.run.bounds, context = prepare(canvas), { width, height } = canvas;
  context.fillStyle = color("--chart");
  for (const [x, y] of shown.values) {
    context.beginPath();
    context.arc(((x - low) / (high - low)) * width, height - ((y - low) / (high - low)) * height, 4 * devicePixelRatio, 0, 7);
    context.fill();
  }
}

function drawShown(canvas, shown, columns) {
  if (state.run.kind === "image") drawGrid(canvas, shown, columns);
  else if (state.run.kind === "points") drawPoints(canvas, shown);
}

function prepare(canvas) {
  const ratio = devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  const w = Math.max(1, Math.round(box.width * ratio)), h = Math.max(1, Math.round(box.height * ratio));
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, w, h);
  return context;
}

// Lines over steps: series is a list of {at, values, color}; all share both axes.
function drawLines(canvas, series, { cursor = null, label = "", alpha = 1 } = {}) {
  const context = prepare(canvas), ratio = devicePixelRatio || 1, left = 52 * ratio, bottom = 18 * ratio, top = 8 * ratio;
  const points = series.flatMap((s) => s.values.map((v, i) => [s.at[i], v])).filter(([, v]) => v !== null && v !== undefined);
  if (!points.length) return;
  const xs = points.map((p) => p[0]), sorted = points.map((p) => p[1]).sort((a, b) => a - b);
  const x0 = Math.min(...xs), x1 = Math.max(...xs, x0 + 1);
  let y0 = sorted[0], y1 = sorted[sorted.length - 1];
  if (y1 - y0 < 1e-9) { y0 -= 1; y1 += 1; }
  const X = (x) => left + ((x - x0) / (x1 - x0)) * (canvas.width - left - 6 * ratio);
  const Y = (y) => top + (1 - (y - y0) / (y1 - y0)) * (canvas.height - top - bottom);
  context.font = `${11 * ratio}px system-ui`;
  context.fillStyle = color("--soft");
  context.textAlign = "right";
  for (const y of [y0, (y0 + y1) / 2, y1]) {
    context.fillText(number(y), left - 6 * ratio, Y(y) + 4 * ratio);
    context.strokeStyle = color("--line");
    context.lineWidth = ratio;
    context.beginPath(); context.moveTo(left, Y(y)); context.lineTo(canvas.width, Y(y)); context.stroke();
  }
  context.fillText(`${label} ${x1}`, canvas.width - 4 * ratio, canvas.height - 4 * ratio);
  context.globalAlpha = alpha;
  context.lineWidth = 1.6 * ratio;
  for (const s of series) {
    context.strokeStyle = color(s.color ?? "--chart");
    context.beginPath();
    let open = false;
    s.values.forEach((v, i) => {
      if (v === null || v === undefined) { open = false; return; }
      open ? context.lineTo(X(s.at[i]), Y(v)) : context.moveTo(X(s.at[i]), Y(v));
      open = true;
    });
    context.stroke();
  }
  context.globalAlpha = 1;
  if (cursor !== null) {
    context.strokeStyle = color("--second");
    context.beginPath(); context.moveTo(X(cursor), top); context.lineTo(X(cursor), canvas.height - bottom); context.stroke();
  }
}

function drawHistogram(canvas, score) {
  const context = prepare(canvas), ratio = devicePixelRatio || 1, bottom = 18 * ratio, top = 16 * ratio;
  const most = Math.max(...score.counts, 1), width = canvas.width / score.counts.length;
  const X = (v) => ((v - score.low) / (score.high - score.low)) * canvas.width;
  score.counts.forEach((count, i) => {
    const height = (count / most) * (canvas.height - top - bottom);
    context.fillStyle = color("--chart");
    context.globalAlpha = 0.45;
    context.fillRect(i * width + 1, canvas.height - bottom - height, width - 2, height);
  });
  context.globalAlpha = 1;
  context.font = `${11 * ratio}px system-ui`;
  const mark = (value, tint, text, dashed, line) => {
    const at = Math.min(Math.max(X(value), 2 * ratio), canvas.width - 2 * ratio), end = at > canvas.width / 2;
    context.strokeStyle = context.fillStyle = color(tint);
    context.lineWidth = 2 * ratio;
    context.setLineDash(dashed ? [5 * ratio, 4 * ratio] : []);
    context.beginPath(); context.moveTo(at, top * line); context.lineTo(at, canvas.height - bottom); context.stroke();
    context.setLineDash([]);
    context.textAlign = end ? "right" : "left";
    context.fillText(text, at + (end ? -5 : 5) * ratio, top * line + 10 * ratio);
  };
  mark(score.threshold, "--soft", "threshold", true, 1.2);
  mark(score.value, score.inside ? "--good" : "--bad", "this x", false, 0.1);
  context.fillStyle = color("--soft");
  context.textAlign = "left";
  context.fillText(number(score.low), 2, canvas.height - 4 * ratio);
  context.textAlign = "right";
  context.fillText(number(score.high), canvas.width - 2, canvas.height - 4 * ratio);
}

// Parts of panels.

function bars(labels, chosen = null, most = 12) {
  const box = make("div");
  if (!labels) return box;
  for (const { name, values } of state.run.labels) {
    const probs = labels[name];
    if (!probs) continue;
    if (state.run.labels.length > 1) box.append(make("h3", {}, name));
    const list = make("div", { class: "bars" }), top = probs.indexOf(Math.max(...probs));
    const order = values.map((_, i) => i);
    if (values.length > most) order.sort((a, b) => probs[b] - probs[a]).splice(most);
    for (const i of order) {
      const fill = make("b");
      fill.style.width = `${100 * (probs[i] ?? 0)}%`;
      const held = chosen?.[name]?.includes(values[i]);
      list.append(make("span", { class: i === top ? "top" : "" }, values[i] + (held ? " ●" : "")), make("i", {}, fill), make("span", {}, ((probs[i] ?? 0)).toFixed(3)));
    }
    box.append(list);
  }
  return box;
}

const notes = (lines) => make("div", { class: "notes" }, ...[...new Set(lines ?? [])].map((line) => make("p", {}, line)));
const picture = (shown, columns, kind = "pixels") => { const canvas = make("canvas", { class: kind }); drawShown(canvas, shown, columns); return canvas; };
const inside = (score) => score && make("p", { class: "fact" }, make("span", { class: `pill ${score.inside ? "good" : "bad"}` }, score.inside ? "in distribution" : "out of distribution"), ` log p(x) = ${number(score.value, 4)}${score.trained ? "" : " (a score: not trained as a density)"}`);

function range(label, min, max, value, show = (v) => v, step = 1) {
  const output = make("output", {}, String(show(value)));
  const input = make("input", { type: "range", min, max, step, value, "aria-label": label, oninput: () => (output.textContent = show(+input.value)) });
  const box = make("label", { class: "field" }, label, input, output);
  return { box, get value() { return +input.value; }, input };
}

// Choices of labels: any subset, "any" where a label is free.
function labelChooser(onchange, { needed = false } = {}) {
  const given = {}, box = make("div");
  const pick = (name, value, buttons) => {
    if (value === null || given[name] === value) delete given[name]; else given[name] = value;
    for (const [v, button] of buttons) button.setAttribute("aria-pressed", String((given[name] ?? null) === v));
    onchange();
  };
  for (const { name, values } of state.run.labels) {
    const buttons = [], options = values.length <= 40 ? values : values.slice(0, 40);
    const two = values.length === 2 && state.run.labels.length > 1;
    const add = (text, value) => { const b = make("button", { "aria-pressed": String(value === null && !needed), onclick: () => pick(name, value, buttons) }, text); buttons.push([value, b]); return b; };
    const chips = make("div", { class: "chips" }, needed && !two ? null : add("any", null), ...options.map((v) => add(v, v)));
    box.append(two ? make("div", { class: "attribute" }, name, chips) : make("div", {}, make("h3", {}, name), chips));
  }
  return { box, given };
}

const baseFields = () => ({ run: state.run.id, seed: 0 });
const inputFields = (extra = {}) => ({ ...baseFields(), input: { ...state.input, ...(state.input?.row !== undefined ? { of: state.input.of ?? state.run.id } : {}) }, ...extra });

// A film that was received: play, pause, scrub.
class Player {
  constructor(canvas, { columns = () => undefined, onstep = () => {} } = {}) {
    this.canvas = canvas; this.columns = columns; this.onstep = onstep; this.frames = []; this.at = 0; this.playing = true; this.last = 0;
    this.play = make("button", { onclick: () => this.toggle(), title: "Space" }, "Pause");
    this.slider = make("input", { type: "range", min: 0, max: 1, value: 0, "aria-label": "Step", oninput: () => { this.playing = false; this.show(+this.slider.value); this.paint(); } });
    this.output = make("output");
    this.box = make("div", { class: "scrub" }, this.play, this.slider, this.output);
    this.speed = 30;
    const loop = (time) => {
      if (!this.canvas.isConnected && this.started) return;
      this.started ||= this.canvas.isConnected;
      if (this.playing && this.at < this.frames.length - 1 && time - this.last >= 1000 / this.speed) { this.show(this.at + 1); this.last = time; }
      requestAnimationFrame(loop);
    };
    requestAnimationFrame(loop);
  }
  begin() { this.frames = []; this.at = 0; this.playing = true; this.paint(); }
  add(frame) { this.frames.push(frame); this.slider.max = Math.max(1, this.frames.length - 1); if (this.frames.length === 1) this.show(0); }
  toggle() { this.playing = !this.playing; if (this.playing && this.at >= this.frames.length - 1) this.show(0); this.paint(); }
  paint() { this.play.textContent = this.playing ? "Pause" : "Play"; }
  show(at) {
    const frame = this.frames[at];
    if (!frame) return;
    this.at = at; this.slider.value = at;
    this.output.textContent = `step ${frame.step}`;
    drawShown(this.canvas, frame, this.columns());
    this.onstep(frame);
  }
}

// Panels. Each gives its element and is told when the input changes.

const panels = {};

panels.sample = () => {
  const run = state.run, table = run.kind === "table";
  const chooser = labelChooser(() => restart());
  const chains = range("Chains", 1, 64, 16), steps = range("Steps", 10, 1000, Math.min(run.steps, 1000), (v) => v, 10);
  const base = run.temperature, warm = range("Temperature", -2, 2, 0, (v) => number(base * 10 ** v, 3), 0.05);
  const speed = range("Speed", 2, 60, 30, (v) => `${v} /s`);
  const start = make("select", { "aria-label": "Start" }, ...[["", "as trained"], ["noise", "noise"], ["class", "class Gaussians"], ["buffer", "replay buffer"]].map(([v, t]) => make("option", { value: v }, t)));
  const canvas = make("canvas", { class: table ? "" : run.kind === "points" ? "square" : "pixels square", "aria-label": "Chains" }), chart = make("canvas", { class: "chart", "aria-label": "Energy of each chain" });
  const said = make("div"), list = make("div", { class: "scroll" });
  if (table) canvas.hidden = true;
  let seed = 0, energies = [], player;
  const lines = (cursor) => {
    const at = player.frames.map((f) => f.step), n = energies[0]?.length ?? 0;
    drawLines(chart, Array.from({ length: n }, (_, i) => ({ at, values: energies.map((e) => e[i]) })), { cursor, label: "step", alpha: 0.55 });
  };
  player = new Player(canvas, { onstep: (frame) => { lines(frame.step); if (table) fill(frame); } });
  const fill = (frame) => list.replaceChildren(make("table", {}, make("tr", {}, ...run.columns.map((c) => make("th", {}, c))), ...frame.values.map((row) => make("tr", {}, ...row.map((v) => make("td", {}, number(v, 4)))))));
  const fields = () => ({ ...baseFields(), seed, given: chooser.given, chains: chains.value, steps: steps.value, ...(run.warmed && warm.value !== 0 ? { temperature: base * 10 ** warm.value } : {}), ...(start.value ? { start: start.value } : {}) });
  async function restart(fresh = false) {
    if (fresh) seed += 1;
    player.begin(); player.speed = speed.value; energies = [];
    const began = performance.now();
    const done = await task("sample", fields(), { onframe: (frame) => {
      energies.push(frame.energy); player.add(frame);
      if (player.frames.length === 1) document.documentElement.dataset.firstPicture ||= String(Math.round(performance.now()));
    } });
    if (done) said.replaceChildren(make("p", { class: "hint" }, `${done.n} chains, ${steps.value} steps in ${number((performance.now() - began) / 1000, 2)} s` + (done.probs && Object.keys(chooser.given).length ? `; mean p(given | x) ${number(done.probs.reduce((a, b) => a + b, 0) / done.n)}` : "")), notes([...run.notes, ...done.notes]));
  }
  const save = (name, href) => make("a", { download: name, href }).click();
  for (const part of [chains, steps, warm]) part.input.addEventListener("change", () => restart());
  speed.input.addEventListener("input", () => (player.speed = speed.value));
  start.addEventListener("change", () => restart());
  const element = make("section", { class: "panel two" },
    make("div", { class: "card" }, make("h2", {}, "Given"), run.labels.length ? chooser.box : make("p", { class: "hint" }, "This run has no labels."), make("h3", {}, "Chains"), chains.box, steps.box, run.warmed ? warm.box : null, speed.box, make("label", { class: "field" }, "Start", start),
      make("div", { class: "buttons" }, make("button", { class: "main", onclick: () => restart(true), title: "R" }, "Restart"), table ? null : make("button", { onclick: () => { const zoom = document.createElement("canvas"); const k = Math.max(1, Math.floor(720 / canvas.width)); zoom.width = canvas.width * k; zoom.height = canvas.height * k; const c = zoom.getContext("2d"); c.imageSmoothingEnabled = false; c.drawImage(canvas, 0, 0, zoom.width, zoom.height); save("samples.png", zoom.toDataURL("image/png")); } }, "Save PNG"), table ? null : make("button", { onclick: async () => { const done = await task("film", fields()); if (done) save("chains.gif", `data:image/gif;base64,${done.gif}`); } }, "Save GIF"))),
    make("div", { class: "card result sample" }, make("div", { class: "stage" }, canvas, list, player.box), make("div", {}, make("h2", {}, "Energy of each chain"), make("p", { class: "hint" }, "−log p(x, given), up to a constant; lower is more like the data"), chart, said)));
  return { element, begin: () => restart(), restart: () => restart(true), player };
};

function answerBox(answer) {
  const histogram = make("canvas", { class: "chart" }), near = make("div", { class: "neighbors" });
  const box = make("div", {},
    make("div", { class: "columns" },
      make("div", {}, make("h3", {}, "p(label | x)"), bars(answer.labels, answer.set), answer.set ? make("p", { class: "hint" }, "● in the conformal set, which contains the true value for 90 % of in-distribution inputs") : null),
      make("div", {}, make("h3", {}, "As the model receives it"), state.run.kind === "image" ? make("div", { class: "small" }, picture(answer.x, 1)) : null, answer.true ? make("p", { class: "fact" }, "True: ", Object.entries(answer.true).map(([k, v]) => (state.run.labels.length > 1 ? `${k} ${v}` : v)).join(", ")) : null, inside(answer.score), answer.gradient_norm !== null ? make("p", { class: "fact" }, `Gradient norm of log p(x): ${number(answer.gradient_norm)}`) : null)),
    answer.score ? make("div", {}, make("h3", {}, `log p(x) of held-out data; the threshold leaves ${100 * answer.score.quantile} % of them out`), histogram) : null,
    answer.neighbors ? make("div", {}, make("h3", {}, "Nearest training rows"), near) : null, notes(answer.notes));
  if (answer.neighbors && state.run.kind === "image") {
    const bytes = bytesOf(answer.neighbors.pixels), each = bytes.length / answer.neighbors.n;
    for (let i = 0; i < answer.neighbors.n; i++) {
      const part = btoa(String.fromCharCode(...bytes.slice(i * each, (i + 1) * each)));
      near.append(make("div", {}, picture({ n: 1, pixels: part }, 1), `${state.run.labels.length === 1 ? `${Object.values(answer.neighbors.labels[i])[0]} · ` : ""}${number(answer.neighbors.distance[i], 2)}`));
    }
  }
  requestAnimationFrame(() => answer.score && drawHistogram(histogram, answer.score));
  return box;
}

panels.ask = () => {
  const result = make("div", { class: "card result" }, make("h2", {}, "Prediction"));
  const update = async () => {
    const answer = state.input && (await task("ask", inputFields()));
    if (answer) result.replaceChildren(make("h2", {}, "Prediction"), answerBox(answer));
  };
  return { element: make("section", { class: "panel" }, result), begin: update, update };
};

panels.complete = () => {
  const chains = range("Chains", 1, 16, 8), steps = range("Steps", 10, 1000, Math.min(state.run.steps, 1000), (v) => v, 10);
  const canvas = make("canvas", { class: "pixels" }), mean = make("canvas", { class: "pixels" }), spread = make("canvas", { class: "pixels" }), said = make("div");
  const player = new Player(canvas, { columns: () => 4 });
  let seed = 0;
  async function go() {
    if (!state.input) return;
    if (!state.hidden.size) hideHalf();
    seed += 1; player.begin();
    const done = await task("complete", inputFields({ seed, hidden: [...state.hidden], chains: chains.value, steps: steps.value }), { onframe: (frame) => player.add(frame) });
    if (!done) return;
    drawShown(mean, done.mean, 1);
    if (done.spread) {
      const most = Math.max(...done.spread, 1e-9), bytes = new Uint8Array(done.spread.length), [c, h, w] = state.run.form;
      for (let k = 0; k < c; k++) for (let i = 0; i < h * w; i++) bytes[i * c + k] = (255 * done.spread[k * h * w + i]) / most;
      let text = ""; for (const b of bytes) text += String.fromCharCode(b);
      drawGrid(spread, { n: 1, pixels: btoa(text) }, 1);
    }
    said.replaceChildren(make("h3", {}, "p(label | completed x), mean of the chains"), bars(done.probs), inside(done.score) ?? "", notes(done.notes));
  }
  return {
    element: make("section", { class: "panel" }, make("div", { class: "card result" }, make("h2", {}, "Complete"), make("p", { class: "hint" }, "Brush out a region of the input; several chains fill it in."), chains.box, steps.box,
      make("div", { class: "buttons" }, make("button", { class: "main", onclick: go, title: "R" }, "Complete"), make("button", { onclick: () => { hideHalf(); go(); } }, "Hide the lower half"), make("button", { onclick: () => { state.hidden.clear(); showInput(); } }, "Show all")),
      make("div", { class: "columns" }, make("div", {}, make("h3", {}, "Chains"), canvas, player.box), make("div", { class: "small" }, make("h3", {}, "Mean"), mean), make("div", { class: "small" }, make("h3", {}, "Spread"), spread)), said)),
    begin: go, update: go, restart: go, player,
  };
};

panels.convert = () => {
  const chooser = labelChooser(() => go(), { needed: true }), steps = range("Steps", 10, 1000, Math.min(state.run.steps, 1000), (v) => v, 10);
  const canvas = make("canvas", { class: "pixels" }), chart = make("canvas", { class: "chart" }), said = make("div");
  const player = new Player(canvas, { columns: () => 1 });
  let seed = 0;
  async function go() {
    if (!state.input || !Object.keys(chooser.given).length) return;
    seed += 1; player.begin();
    const done = await task("convert", inputFields({ seed, to: chooser.given, steps: steps.value }), { onframe: (frame) => player.add(frame) });
    if (!done) return;
    if (done.probs) drawLines(chart, [{ at: done.steps, values: done.probs }], { label: "step" });
    said.replaceChildren(make("div", { class: "columns" }, make("div", {}, make("h3", {}, "Before"), bars(done.before)), make("div", {}, make("h3", {}, "After"), bars(done.after))), make("p", { class: "fact" }, `Mean change of a pixel: ${number(done.change)}`), notes(done.notes));
  }
  return {
    element: make("section", { class: "panel" }, make("div", { class: "card result" }, make("h2", {}, "Convert to"), chooser.box, steps.box, make("div", { class: "buttons" }, make("button", { class: "main", onclick: go, title: "R" }, "Convert")),
      make("div", { class: "columns" }, make("div", {}, make("h3", {}, "Path of the chain"), make("div", { class: "film" }, canvas, player.box)), make("div", {}, make("h3", {}, "p(new labels | x) on the way"), chart)), said)),
    begin: () => { if (!Object.keys(chooser.given).length) { const buttons = chooser.box.querySelectorAll(".chips button"); buttons[Math.min(3, buttons.length - 1)]?.click(); } else go(); }, update: go, restart: go, player,
  };
};

panels.attack = () => {
  const radius = range("Radius", 1, 50, 8, (v) => `${v} %`), steps = range("PGD steps", 1, 100, 20), refine = range("Refine steps", 0, 100, 10);
  const result = make("div");
  let seed = 0;
  async function go() {
    if (!state.input) return;
    seed += 1;
    const done = await task("attack", inputFields({ seed, radius: radius.value / 100, steps: steps.value, refine: refine.value }));
    if (!done) return;
    const titles = { before: "Before", attacked: "Attacked", refined: "Refined by the chain" };
    result.replaceChildren(make("p", { class: "fact" }, make("span", { class: `pill ${done.changed ? "bad" : "good"}` }, done.changed ? "the attack changed the label" : "the label held")),
      make("div", { class: "columns" }, ...Object.entries(done.stages).map(([name, stage]) => make("div", {}, make("h3", {}, titles[name]), make("div", { class: "small" }, picture(stage.x, 1)), inside(stage.score), bars(stage.labels)))), notes(done.notes));
  }
  for (const part of [radius, steps, refine]) part.input.addEventListener("change", go);
  return { element: make("section", { class: "panel" }, make("div", { class: "card result" }, make("h2", {}, "Attack"), make("p", { class: "hint" }, "A small L∞ attack; the radius is a share of the range of a pixel."), radius.box, steps.box, refine.box, make("div", { class: "buttons" }, make("button", { class: "main", onclick: go, title: "R" }, "Attack")), result)), begin: go, update: go, restart: go };
};

panels.compare = () => {
  const others = state.runs.filter((r) => !r.trouble && r.kind === state.run.kind), result = make("div", { class: "columns" });
  const choose = make("select", { "aria-label": "Second run", onchange: () => update() }, ...others.map((r) => make("option", { value: r.id }, r.name)));
  choose.value = String((others.find((r) => r.id !== state.run.id) ?? state.run).id);
  async function update() {
    if (!state.input) return;
    const first = state.run, second = state.runs[+choose.value], fields = inputFields();
    const [a, b] = await Promise.all([task("ask", fields, { channel: "first" }), task("ask", { ...fields, run: second.id }, { channel: "second" })]);
    if (!a || !b) return;
    const columns = [[first, a], [second, b]].map(([run, answer]) => { state.run = run; const box = make("div", { class: "card" }, make("h2", {}, run.name), make("p", { class: "hint" }, run.about), answerBox(answer)); state.run = first; return box; });
    result.replaceChildren(...columns);
  }
  return { element: make("section", { class: "panel" }, make("div", { class: "card" }, make("h2", {}, "Compare"), make("label", { class: "field" }, "Second run", choose), others.length < 2 ? make("p", { class: "hint" }, "Open more runs: jointenergy studio RUN RUN") : null), result), begin: update, update };
};

panels.row = () => {
  const run = state.run, result = make("div"), boxes = [];
  let timer = 0;
  const cells = run.columns.map((name, i) => {
    const filled = make("small"), field = make("input", { type: "text", inputmode: "decimal", placeholder: "missing", "aria-label": name, oninput: () => { clearTimeout(timer); timer = setTimeout(go, 250); } });
    boxes.push({ field, filled, i });
    return make("label", {}, name, field, filled);
  });
  async function go() {
    const values = boxes.map(({ field }) => (field.value.trim() === "" ? null : Number(field.value)));
    if (values.some((v) => Number.isNaN(v))) return toast("a field must hold a number; leave it empty if the value is missing");
    const missing = values.some((v) => v === null), input = { values };
    const done = missing ? await task("complete", { ...baseFields(), input, chains: 32, steps: Math.min(run.steps, 500) }) : await task("ask", { ...baseFields(), input });
    if (!done) return;
    for (const { filled, i } of boxes) filled.textContent = missing && values[i] === null ? `${number(done.mean.values[0][i], 3)} (${number(done.low?.values[0][i], 2)} to ${number(done.high?.values[0][i], 2)})` : "";
    result.replaceChildren(make("div", { class: "columns" }, make("div", {}, make("h3", {}, "p(label | row)"), bars(missing ? done.probs : done.labels)), make("div", {}, make("h3", {}, "In distribution?"), inside(done.score) ?? "", make("canvas", { class: "chart" }))), notes(done.notes));
    const chart = result.querySelector("canvas");
    if (done.score) requestAnimationFrame(() => drawHistogram(chart, done.score));
  }
  async function begin() {
    const picked = await task("rows", { ...baseFields(), begin: state.rowsBegin, n: 1 });
    if (!picked) return;
    boxes.forEach(({ field, i }) => (field.value = picked.values[0][i] === null ? "" : number(picked.values[0][i], 5)));
    go();
  }
  return { element: make("section", { class: "panel" }, make("div", { class: "card result" }, make("h2", {}, "One row"), make("p", { class: "hint" }, "Empty a field to impute it: the mean, and the range of 90 % of the draws."), make("div", { class: "cells" }, ...cells), make("div", { class: "buttons" }, make("button", { onclick: () => { state.rowsBegin += 1; begin(); } }, "Next test row"), make("button", { onclick: () => { boxes.forEach(({ field }) => (field.value = "")); go(); } }, "Empty all")), result)), begin, restart: go };
};

panels.train = () => {
  const charts = { "log p of data and samples": ["f_data", "f_samples"], loss: ["loss"], gap: ["gap"], "gradient norm": ["gradient_norm"] };
  const canvases = Object.keys(charts).map((name) => make("canvas", { class: "chart", "aria-label": name }));
  const head = make("p", { class: "fact" }), events = make("ul", { class: "events" }), checks = make("div", { class: "scroll" }), samples = make("img", { class: "trainpic", alt: "Samples of the newest checkpoint", hidden: true });
  const element = make("section", { class: "panel" }, make("div", { class: "card" }, make("h2", {}, "Training"), head, make("div", { class: "columns" }, ...Object.keys(charts).map((name, i) => make("div", {}, make("h3", {}, name), canvases[i])))),
    make("div", { class: "columns" }, make("div", { class: "card" }, make("h2", {}, "Samples"), samples), make("div", { class: "card" }, make("h2", {}, "Checks"), checks), make("div", { class: "card" }, make("h2", {}, "Events of the guard"), events)));
  async function update() {
    try {
      const response = await fetch(`api/training/${state.run.id}`), told = await response.json();
      if (!response.ok) throw new Error(told.error);
      const now = told.at[told.at.length - 1] ?? 0;
      head.textContent = `iteration ${now.toLocaleString("en")} of ${told.iterations.toLocaleString("en")}` + (told.seconds ? `, ${number(told.seconds / 60, 2)} minutes` : "");
      Object.values(charts).forEach((names, i) => drawLines(canvases[i], names.filter((n) => told.curves[n]).map((n, k) => ({ at: told.at, values: told.curves[n], color: k ? "--second" : "--chart" })), { label: "iteration" }));
      if (told.samples.length) { const source = `api/training/${state.run.id}/samples/${told.samples[0]}`; if (!samples.src.endsWith(source)) samples.src = source; samples.hidden = false; }
      checks.replaceChildren(make("table", {}, make("tr", {}, ...["iteration", "accuracy", "healthy"].map((h) => make("th", {}, h))), ...told.checks.slice(-12).reverse().map((c) => make("tr", {}, make("td", {}, String(c.iteration)), make("td", {}, c.accuracy === null ? "–" : c.accuracy.toFixed(3)), make("td", {}, make("span", { class: `pill ${c.healthy ? "good" : "bad"}` }, c.healthy ? "healthy" : "not healthy"))))));
      events.replaceChildren(...(told.events.length ? told.events.slice().reverse().map((e) => make("li", {}, `${e.iteration}: ${e.says}`)) : [make("li", {}, "The guard has not intervened.")]));
    } catch (error) { head.textContent = error.message; }
  }
  const tick = () => { if (!element.isConnected) return; update().finally(() => setTimeout(tick, 2000)); };
  return { element, begin: () => tick(), restart: update };
};

const TITLES = { sample: "Sample", ask: "Ask", complete: "Complete", convert: "Convert", attack: "Attack", compare: "Compare", row: "Row", train: "Train" };
const WITH_INPUT = ["ask", "complete", "convert", "attack", "compare"];
let current = null;

function tabsOf(run) {
  const labeled = run.labels?.length > 0;
  if (run.trouble) return ["train"];
  const image = run.kind === "image" ? ["sample", "ask", "complete", ...(labeled ? ["convert", "attack"] : []), "compare"] : ["row", "sample"];
  return [...image, ...(run.trains ? ["train"] : [])];
}

function openTab(name) {
  stop();
  state.tab = name;
  for (const button of $("tabs").children) { const on = button.dataset.tab === name; button.setAttribute("aria-selected", String(on)); button.tabIndex = on ? 0 : -1; }
  const withInput = WITH_INPUT.includes(name);
  $("input").hidden = !withInput;
  document.querySelector("main").classList.toggle("with-input", withInput);
  state.pad = name === "complete" ? "brush" : "view";
  $("draw").setAttribute("aria-pressed", "false");
  current = panels[name]();
  $("panels").replaceChildren(current.element);
  history.replaceState(null, "", `#${state.run.id}/${name}`);
  if (withInput) { showInput(); loadRows().then(() => current?.begin()); } else requestAnimationFrame(() => current.begin());
}

function openRun(id, tab) {
  state.run = state.runs[id]; state.input = null; state.hidden.clear(); state.rowsBegin = 0; state.loaded = null;
  $("run").value = String(id);
  $("about").textContent = state.run.trouble || `${state.run.about} ${state.run.weights.toLocaleString("en")} weights.`;
  $("about").title = $("about").textContent;
  const names = tabsOf(state.run);
  $("tabs").replaceChildren(...names.map((name, i) => make("button", { role: "tab", "data-tab": name, onclick: () => openTab(name), title: `Key ${i + 1}` }, TITLES[name])));
  openTab(names.includes(tab) ? tab : names[0]);
}

// The input: test rows, an image, a drawing; and the brush that hides a region.

async function loadRows() {
  const key = `${state.run.id}/${state.rowsBegin}`;
  if (state.loaded === key) return;
  const found = await task("rows", { ...baseFields(), begin: state.rowsBegin, n: 24 });
  if (!found) return;
  state.loaded = key; state.found = found;
  const bytes = bytesOf(found.pixels), each = bytes.length / found.n;
  $("rows").replaceChildren(...Array.from({ length: found.n }, (_, i) => {
    let text = ""; for (const b of bytes.subarray(i * each, (i + 1) * each)) text += String.fromCharCode(b);
    const one = { n: 1, pixels: btoa(text) }, row = found.begin + i, label = Object.values(found.labels[i]).join(" ");
    const button = make("button", { role: "option", "aria-label": `test row ${row}, ${label}`, title: label, "data-row": row, onclick: () => { state.thumb = one; pick({ row, of: state.run.id }); } }, picture(one, 1, ""));
    button.one = one;
    return button;
  }));
  if (!state.input) { state.thumb = $("rows").firstElementChild.one; state.input = { row: found.begin, of: state.run.id }; showInput(); }
}

function pick(input) {
  state.input = input;
  if (state.tab !== "complete") state.pad = "view";
  $("draw").setAttribute("aria-pressed", String(state.pad === "draw"));
  showInput();
  current?.update?.();
}

function showInput() {
  const pad = $("pad"), context = pad.getContext("2d");
  $("pad-hint").textContent = state.pad === "brush" ? "Brush over the region to fill in." : state.pad === "draw" ? "Draw with the mouse or a finger." : "Pick a test row, draw, or open, drop or paste an image.";
  for (const button of $("rows").children) button.setAttribute("aria-selected", String(state.input?.row === +button.dataset.row));
  context.imageSmoothingEnabled = false;
  context.fillStyle = "#000";
  context.fillRect(0, 0, pad.width, pad.height);
  const source = state.input?.row !== undefined && state.thumb ? picture(state.thumb, 1) : state.picture;
  if (source) context.drawImage(source, 0, 0, pad.width, pad.height);
  const [, height, width] = state.run.form ?? [1, 8, 8];
  context.fillStyle = "rgba(250, 82, 82, .72)";
  if (state.tab === "complete") for (const at of state.hidden) context.fillRect(((at % width) * pad.width) / width, (Math.floor(at / width) * pad.height) / height, pad.width / width + 0.5, pad.height / height + 0.5);
}

function hideHalf() {
  const [, height, width] = state.run.form;
  state.hidden = new Set(Array.from({ length: Math.floor(height / 2) * width }, (_, i) => Math.ceil(height / 2) * width + i));
  showInput();
}

function takeImage(blob) {
  if (!state.run.form) return;
  createImageBitmap(blob).then(async (bitmap) => {
    const canvas = make("canvas", { width: 288, height: 288 }), context = canvas.getContext("2d");
    const invert = $("invert").getAttribute("aria-pressed") === "true";
    if (invert) context.filter = "invert(1)";
    context.drawImage(bitmap, 0, 0, 288, 288);
    state.picture = canvas; state.blob = blob;
    const buffer = new Uint8Array(await blob.arrayBuffer());
    let text = ""; for (let i = 0; i < buffer.length; i += 8192) text += String.fromCharCode(...buffer.subarray(i, i + 8192));
    pick({ image: btoa(text), invert });
  }).catch(() => toast("the browser cannot read this image"));
}

function setUpPad() {
  const pad = $("pad");
  let drawing = false, last = null;
  const place = (event) => { const box = pad.getBoundingClientRect(); return [((event.clientX - box.left) / box.width) * pad.width, ((event.clientY - box.top) / box.height) * pad.height]; };
  const stroke = (event) => {
    const [x, y] = place(event), [, height, width] = state.run.form;
    if (state.pad === "brush") {
      const reach = Math.max(0.5, width / 16);
      for (let i = Math.floor((y / pad.height) * height - reach + 0.5); i <= (y / pad.height) * height + reach - 0.5; i++) for (let j = Math.floor((x / pad.width) * width - reach + 0.5); j <= (x / pad.width) * width + reach - 0.5; j++) if (i >= 0 && j >= 0 && i < height && j < width) state.hidden.add(i * width + j);
      showInput();
    } else {
      const context = pad.getContext("2d");
      context.strokeStyle = "#fff"; context.lineCap = context.lineJoin = "round"; context.lineWidth = pad.width / Math.min(10, Math.max(6, width / 2.4));
      context.beginPath(); context.moveTo(...(last ?? [x, y])); context.lineTo(x, y); context.stroke();
      last = [x, y];
    }
  };
  pad.addEventListener("pointerdown", (event) => { if (state.pad === "view" || !state.run.form) return; drawing = true; last = null; pad.setPointerCapture(event.pointerId); stroke(event); });
  pad.addEventListener("pointermove", (event) => drawing && stroke(event));
  pad.addEventListener("pointerup", () => {
    if (!drawing) return;
    drawing = false;
    if (state.pad === "brush") return current?.update?.();
    const copy = make("canvas", { width: pad.width, height: pad.height });
    copy.getContext("2d").drawImage(pad, 0, 0);
    state.picture = copy;
    pad.toBlob(async (blob) => { const bytes = new Uint8Array(await blob.arrayBuffer()); let text = ""; for (const b of bytes) text += String.fromCharCode(b); state.input = { image: btoa(text) }; for (const b of $("rows").children) b.setAttribute("aria-selected", "false"); current?.update?.(); });
  });
  $("draw").addEventListener("click", () => {
    const on = state.pad !== "draw";
    state.pad = on ? "draw" : state.tab === "complete" ? "brush" : "view";
    $("draw").setAttribute("aria-pressed", String(on));
    if (on) { state.picture = null; state.input = null; state.thumb = null; }
    showInput();
    if (!on && !state.input) loadRows();
  });
  $("clear").addEventListener("click", () => { state.hidden.clear(); if (state.pad === "draw") { state.picture = null; state.input = null; } showInput(); });
  $("file").addEventListener("change", () => $("file").files[0] && takeImage($("file").files[0]));
  $("invert").addEventListener("click", () => { $("invert").setAttribute("aria-pressed", String($("invert").getAttribute("aria-pressed") !== "true")); if (state.blob && state.input?.image) takeImage(state.blob); });
  $("more-rows").addEventListener("click", () => { state.rowsBegin += 24; if (state.rowsBegin >= (state.found?.of ?? 0)) state.rowsBegin = 0; loadRows(); });
  document.addEventListener("paste", (event) => { const item = [...event.clipboardData.items].find((i) => i.type.startsWith("image/")); if (item) { if (!WITH_INPUT.includes(state.tab)) openTab("ask"); takeImage(item.getAsFile()); } });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => { event.preventDefault(); const file = event.dataTransfer.files[0]; if (file) { if (!WITH_INPUT.includes(state.tab)) openTab("ask"); takeImage(file); } });
}

function setUpKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.("input:not([type=range]), select, textarea")) return;
    const tabs = [...$("tabs").children], at = tabs.findIndex((b) => b.dataset.tab === state.tab);
    if (/^[1-9]$/.test(event.key) && tabs[event.key - 1]) tabs[event.key - 1].click();
    else if (event.target.role === "tab" && (event.key === "ArrowRight" || event.key === "ArrowLeft")) { const next = tabs[(at + (event.key === "ArrowRight" ? 1 : tabs.length - 1)) % tabs.length]; next.click(); next.focus(); }
    else if (event.key === "r") current?.restart?.();
    else if (event.key === "Escape") stop();
    else if (event.key === " " && event.target.tagName !== "BUTTON" && current?.player) { event.preventDefault(); current.player.toggle(); }
  });
}

async function watchStatus() {
  try {
    const now = await (await fetch("api/status")).json();
    $("status").textContent = now.busy || now.waiting ? `${now.busy} running, ${now.waiting} waiting` : "idle";
    $("status").classList.toggle("busy", now.busy > 0);
  } catch { $("status").textContent = "not reachable"; }
  setTimeout(watchStatus, 2000);
}

async function main() {
  const told = await (await fetch("api/runs")).json();
  state.runs = told.runs;
  $("run").replaceChildren(...told.runs.map((run) => make("option", { value: run.id }, run.name)));
  $("run").addEventListener("change", () => openRun(+$("run").value, state.tab));
  setUpPad();
  setUpKeys();
  const [id, tab] = location.hash.slice(1).split("/");
  openRun(state.runs[+id] ? +id : 0, tab);
  watchStatus();
}
main().catch((error) => toast(error.message));
