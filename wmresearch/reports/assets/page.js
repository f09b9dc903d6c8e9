/* The table */
function sortTable(column, descending) {
  const body = byId("table").tBodies[0];
  const value = (row) => {
    const cell = row.cells[column];
    if (!cell) return null;
    return cell.classList.contains("number") ? (cell.dataset.value ?? null) : cell.textContent;
  };
  const numeric = byId("table").tHead.rows[0].cells[column].classList.contains("number");
  const rows = Array.from(body.rows, (row, place) => ({ row, place, key: value(row) }));
  rows.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.place - b.place;
    const order = numeric ? a.key - b.key : a.key.localeCompare(b.key, "en", { numeric: true });
    return (descending ? -order : order) || a.place - b.place;
  });
  body.append(...rows.map(({ row }) => row));
  for (const [index, cell] of Array.from(byId("table").tHead.rows[0].cells).entries()) {
    if (index === column) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  }
}

function readyTable(state) {
  const heads = Array.from(byId("table").tHead.rows[0].cells);
  const show = (index) => {
    for (const cell of document.querySelectorAll(`#table [data-column="${index}"]`)) {
      cell.hidden = state.columns.includes(index);
    }
  };
  heads.forEach((cell, index) => {
    cell.firstElementChild.addEventListener("click", () => {
      const descending = cell.getAttribute("aria-sort") === "ascending";
      sortTable(index, descending);
      state.sorted = [index, descending];
      saved.write(state.kept());
    });
    if (index === 0) return;
    const box = make("input", { type: "checkbox", checked: !state.columns.includes(index) });
    box.addEventListener("change", () => {
      state.columns = state.columns.filter((each) => each !== index);
      if (!box.checked) state.columns.push(index);
      show(index);
      saved.write(state.kept());
    });
    byId("columns").append(make("label", {}, box, cell.textContent));
    show(index);
  });
  document.querySelector(".columns").hidden = false;
  byId("table").classList.toggle("compact", byId("table").tBodies[0].rows.length > 30);
  if (state.sorted && state.sorted[0] < heads.length) sortTable(...state.sorted);
}

/* Everything */
const SHOWN_AT_FIRST = 8;

function placesOf(groups) {
  let place = 0;
  let base = groups.find((group) => group.baseline);
  for (const group of groups) group.place = group === base ? 0 : ++place;
}

function firstHidden(groups) {
  const withData = groups.filter((group) => group.runs.some((run) => Object.keys(run.curves).length));
  const order = [...withData].sort(
    (a, b) => b.baseline - a.baseline || (a.loss[0] ?? Infinity) - (b.loss[0] ?? Infinity),
  );
  return order.slice(SHOWN_AT_FIRST).map((group) => group.name);
}

function bind(id, state, key, draw, read = (element) => element.value) {
  const element = byId(id);
  if (element.type === "checkbox") element.checked = state[key];
  else element.value = state[key];
  element.addEventListener(element.type === "range" ? "input" : "change", () => {
    state[key] = read(element);
    saved.write(state.kept());
    draw();
  });
}

function readyArms(data, state, draw) {
  const drawn = data.groups.filter((group) => group.runs.some((run) => Object.keys(run.curves).length));
  const boxes = drawn.map((group) => {
    const box = make("input", { type: "checkbox", checked: !state.hidden.has(group.name) });
    box.addEventListener("change", () => {
      if (box.checked) state.hidden.delete(group.name);
      else state.hidden.add(group.name);
      saved.write(state.kept());
      draw();
    });
    byId("arms").append(make("label", {}, box, swatch(group), group.label));
    return [box, group];
  });
  const all = (checked) => {
    for (const [box, group] of boxes) {
      box.checked = checked;
      if (checked) state.hidden.delete(group.name);
      else state.hidden.add(group.name);
    }
    saved.write(state.kept());
    draw();
  };
  byId("all").addEventListener("click", () => all(true));
  byId("none").addEventListener("click", () => all(false));
}

function readyCurves(data, state) {
  if (!data.metrics.length) return () => {};
  byId("curves").hidden = false;
  byId("metric").append(...data.metrics.map((name) => make("option", { value: name }, name.replaceAll("_", " "))));
  const draw = () => {
    byId("smoothed").value = state.smooth ? `over ${2 * state.smooth + 1} points` : "none";
    byId("curves-note").textContent = curvesNote(data, state);
    return drawCurves(data, state);
  };
  bind("metric", state, "metric", draw);
  bind("mode", state, "mode", draw);
  bind("smooth", state, "smooth", draw, (element) => Number(element.value));
  bind("logx", state, "logx", draw, (element) => element.checked);
  bind("logy", state, "logy", draw, (element) => element.checked);
  readyArms(data, state, draw);
  draw().then(() => watchCurves(data, state));
  return draw;
}

function curvesNote(data, state) {
  const { logged, kept } = data.drawn;
  const parts = [
    kept < logged
      ? `Of up to ${whole(logged)} logged steps of a curve ${whole(kept)} are drawn, evenly chosen; their values are the run's own.`
      : "Every logged step is drawn.",
  ];
  if (state.mode === "mean") parts.push("Means are over the finished seeds; shade: 95 % t interval. What diverged is shown run by run.");
  if (!state.logy && !state.logx && /loss|bits/.test(state.metric)) {
    parts.push("The fall of the first steps runs out at the top: double-click shows all.");
  }
  if (state.smooth) parts.push("Smoothed: the mean over neighbouring points, fewer at both ends.");
  return parts.join(" ");
}

function readyCosts(data, state) {
  const known = Object.keys(data.costs).filter((name) => {
    const values = new Set(data.groups.filter((g) => g.loss[0] !== null).map((g) => g.costs[name]).filter((v) => v > 0));
    return values.size > 1;
  });
  if (!known.length) return () => {};
  byId("costs").hidden = false;
  if (!known.includes(state.cost)) [state.cost] = known;
  byId("cost").append(...known.map((name) => make("option", { value: name }, data.costs[name])));
  const draw = () => drawCosts(data, state);
  bind("cost", state, "cost", draw);
  draw().then(() => watchCosts(data, state));
  return draw;
}

function readySpectra(data, state) {
  if (!data.spectra.length) return () => {};
  byId("spectra").hidden = false;
  state.spectrum = Math.min(state.spectrum, data.spectra.length - 1);
  byId("spectrum").append(
    ...data.spectra.map((each, index) => make("option", { value: index }, data.groups[each.group].name)),
  );
  const draw = () => {
    const found = data.spectra[state.spectrum];
    state.layer = Math.min(Math.max(0, state.layer), found.layers.length - 1);
    byId("layer").replaceChildren(...found.layers.map((layer, index) => make("option", { value: index }, String(layer))));
    byId("layer").value = state.layer;
    state.step = Math.min(state.step ?? Infinity, found.steps.length - 1);
    byId("step").max = found.steps.length - 1;
    byId("step").value = state.step;
    byId("stepped").value = whole(found.steps[state.step]);
    byId("spectra-note").textContent =
      `Seed ${found.seed}, ${found.steps.length} of its ${found.logged} measurements. Grey: before the first step. ` +
      "W_M with the norm's gain folded in; a click on the right chooses the layer.";
    return drawSpectra(data, state);
  };
  const number = (element) => Number(element.value);
  bind("spectrum", state, "spectrum", draw, number);
  bind("layer", state, "layer", draw, number);
  bind("step", state, "step", draw, number);
  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    byId("play").textContent = "▶";
    byId("play").setAttribute("aria-label", "Play");
  };
  byId("play").addEventListener("click", () => {
    if (timer !== null) return stop();
    const last = () => data.spectra[state.spectrum].steps.length - 1;
    if (state.step >= last()) state.step = -1;
    byId("play").textContent = "❚❚";
    byId("play").setAttribute("aria-label", "Pause");
    timer = setInterval(() => {
      state.step += 1;
      draw();
      if (state.step >= last()) stop();
    }, 450);
  });
  draw().then(() => watchSpectra(data, state, draw));
  return draw;
}

function refresh(seconds) {
  byId("watching").textContent = ` · reads itself again every ${seconds} s`;
  let busy = 0;
  for (const kind of ["pointerdown", "keydown", "input", "wheel", "pointermove"]) {
    addEventListener(kind, () => (busy = Date.now()), { passive: true });
  }
  const again = () => (Date.now() - busy < 3000 ? setTimeout(again, 1000) : location.reload());
  setTimeout(again, 1000 * seconds);
}

async function start() {
  const seconds = Number(document.documentElement.dataset.refresh);
  if (seconds) refresh(seconds);
  const old = saved.read();
  const state = {
    metric: "", mode: "mean", smooth: 0, logx: false, logy: false, cost: "", spectrum: 0, layer: 0, step: null,
    columns: [], sorted: null, ...old, hidden: new Set(old.hidden ?? []),
    kept() {
      return { ...this, hidden: [...this.hidden] };
    },
  };
  readyTable(state);
  if (!("DecompressionStream" in window)) {
    byId("old").textContent = "This browser cannot unpack the plots (it lacks DecompressionStream): one of 2023 or newer can.";
    byId("old").hidden = false;
    return;
  }
  const data = JSON.parse(await unpackText("data"));
  data.steps = data.steps.map(unpackNumbers);
  placesOf(data.groups);
  if (!old.hidden) state.hidden = new Set(firstHidden(data.groups));
  if (!data.metrics.includes(state.metric)) state.metric = data.metrics[0] ?? "";
  for (const { name, svg } of data.figures) {
    const image = document.querySelector(`[data-figure="${CSS.escape(name)}"] img`);
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  }
  const marks = () => {
    for (const row of document.querySelectorAll("#table tbody tr[data-group]")) {
      const group = data.groups[row.dataset.group];
      if (group) row.querySelector(".mark").replaceChildren(swatch(group));
    }
  };
  marks();
  document.head.append(make("script", { textContent: await unpackText("plotly") }));
  const draws = [readyCurves(data, state), readyCosts(data, state), readySpectra(data, state)];
  darkMode.addEventListener("change", () => {
    marks();
    document.querySelectorAll("#arms label svg").forEach((svg) => {
      const group = data.groups.find((each) => svg.nextSibling.textContent.startsWith(each.name));
      svg.replaceWith(swatch(group));
    });
    draws.forEach((draw) => draw());
  });
  if (location.hash) document.querySelector(CSS.escape(location.hash).replace("\\#", "#"))?.scrollIntoView();
  document.documentElement.dataset.ready = "yes";
}

start();
