/* Curves */
const LATE = 0.1;
const MOST_ROWS = 16;

function curvesOf(data, group, metric, all) {
  const found = [];
  for (const run of group.runs) {
    if (!(metric in run.curves) || !(all || run.counted)) continue;
    const [steps, packed] = run.curves[metric];
    packed.read ??= unpackNumbers(packed);
    found.push({ run, steps: data.steps[steps], values: packed.read });
  }
  return found;
}

function bandOf(data, group, metric, window) {
  const curves = curvesOf(data, group, metric, false);
  if (!curves.length) return null;
  const at = curves.map((curve) => {
    const values = smoothedValues(curve.values, window);
    return new Map(Array.from(curve.steps, (step, index) => [step, values[index]]));
  });
  const steps = Array.from(curves[0].steps).filter((step) => at.every((values) => values.has(step)));
  const points = steps.map((step) => spreadOf(at.map((values) => values.get(step)), data.t));
  return { steps, points };
}

function linesOf(data, state) {
  const shown = data.groups.filter((group) => !state.hidden.has(group.name));
  const window = state.smooth ? 2 * state.smooth + 1 : 1;
  if (state.mode === "runs") {
    return shown.flatMap((group) =>
      curvesOf(data, group, state.metric, true).map((curve) => ({
        group, name: `${group.name} · seed ${curve.run.seed}`, steps: curve.steps,
        values: smoothedValues(curve.values, window), logged: curve.values, diverged: curve.run.state === "diverged",
      })),
    );
  }
  return shown.flatMap((group) => {
    const band = bandOf(data, group, state.metric, window);
    if (!band || !band.steps.length) return [];
    const values = band.points.map((point) => point.mean);
    const alone = band.points[0].n === 1;
    const logged = alone ? curvesOf(data, group, state.metric, false)[0].values : null;
    return [{ group, name: group.name, steps: band.steps, values, points: band.points, logged }];
  });
}

function drawCurves(data, state) {
  const plot = byId("curves-plot");
  const lines = linesOf(data, state);
  const traces = [];
  for (const { group, steps, values, points } of lines) {
    const { colour, dash, marker } = look(group);
    if (points && points[0].n > 1) {
      const edges = [points.map((p) => p.mean + p.half), points.map((p) => p.mean - p.half)];
      const edge = { x: steps, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, meta: "band" };
      traces.push({ ...edge, y: edges[0] }, { ...edge, y: edges[1], fill: "tonexty", fillcolor: colour + (lines.length > 3 ? "1a" : "2b") });
    }
    const few = steps.length <= 30;
    traces.push({
      x: steps, y: values, name: plainText(group.name), meta: group.name, mode: few ? "lines+markers" : "lines", hoverinfo: "none",
      line: { color: colour, dash: few && state.mode === "runs" ? "solid" : dash, width: state.mode === "runs" ? 1.3 : 2 },
      marker: { symbol: marker, size: 7, color: colour },
    });
  }
  const layout = layoutOf("step", plainText(titleOf(state.metric)), {
    hovermode: "x", hoverdistance: -1, uirevision: `${state.metric} ${state.logx} ${state.logy}`,
  });
  layout.xaxis.type = state.logx ? "log" : "linear";
  layout.yaxis.type = state.logy ? "log" : "linear";
  const range = windowOf(lines, state);
  if (range) layout.yaxis.range = range;
  if (!lines.length) layout.annotations = [nothing("Nothing to draw: choose a row above.")];
  return Plotly.react(plot, traces, layout, PLOT_CONFIG);
}

function titleOf(metric) {
  const name = metric.replaceAll("_", " ");
  return /loss$/.test(metric) ? `${name} (nats/token)` : name;
}

function nothing(text) {
  return { text, xref: "paper", yref: "paper", x: 0.5, y: 0.5, showarrow: false };
}

/* A loss falls so far in its first steps that the rest would be flat: that part runs out at the top. */
function windowOf(lines, state) {
  if (state.logy || state.logx || !/loss|bits_per_byte/.test(state.metric)) return null;
  let [low, high] = [Infinity, -Infinity];
  const steady = lines.filter((line) => !line.diverged);
  for (const { steps, values } of steady.length ? steady : lines) {
    const from = LATE * steps[steps.length - 1];
    for (let index = 0; index < steps.length; index++) {
      low = Math.min(low, values[index]);
      if (steps[index] >= from) high = Math.max(high, values[index]);
    }
  }
  if (!(high > low)) return null;
  return [low - 0.06 * (high - low), high + 0.06 * (high - low)];
}

/* What all lines say at a step: every value as it was logged, or a mean with its interval. */
function valuesAt(lines, step, smoothing) {
  const rows = [];
  for (const { group, name, steps, values, points, logged } of lines) {
    const index = steps.indexOf(step);
    if (index < 0) continue;
    const point = points?.[index];
    let text;
    if (logged) text = exact(logged[index]) + (smoothing ? ` (drawn: ${rounded(values[index])})` : "");
    else text = `${rounded(point.mean)} ± ${point.half.toPrecision(2)} (${point.n} seeds)`;
    rows.push({ group, name, text, order: values[index] });
  }
  rows.sort((a, b) => a.order - b.order);
  const cut = rows.slice(0, MOST_ROWS).map(({ group, name, text }) => [group, name, text]);
  if (rows.length > MOST_ROWS) cut.push([null, `… and ${rows.length - MOST_ROWS} more`, ""]);
  return cut;
}

function watchCurves(data, state) {
  const plot = byId("curves-plot");
  let at = null;
  const tell = (step, x, y) => {
    at = step;
    const rows = valuesAt(linesOf(data, state), step, state.smooth);
    tip.show(`step ${whole(step)}`, rows, x, y);
    return rows;
  };
  plot.on("plotly_hover", (event) => {
    const box = plot.getBoundingClientRect();
    tell(event.points[0].x, event.event?.clientX ?? box.left + 60, event.event?.clientY ?? box.top + 60);
  });
  plot.on("plotly_unhover", () => tip.hide());
  plot.addEventListener("blur", () => tip.hide());
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") tip.hide();
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!move) return;
    event.preventDefault();
    const steps = [...new Set(linesOf(data, state).flatMap((line) => Array.from(line.steps)))].sort((a, b) => a - b);
    if (!steps.length) return;
    const from = at === null ? -1 : steps.indexOf(at);
    const step = steps[Math.max(0, Math.min(steps.length - 1, from + move))];
    const box = plot.getBoundingClientRect();
    const { _offset: offset, _length: length, range, type } = plot._fullLayout.xaxis;
    const place = type === "log" ? Math.log10(step) : step;
    const x = box.left + offset + (length * (place - range[0])) / (range[1] - range[0]);
    const rows = tell(step, x, box.top + box.height / 2);
    byId("curves-said").textContent = `step ${step}: ${rows.map(([, name, text]) => `${name} ${text}`).join("; ")}`;
  });
}

/* Costs */
function drawCosts(data, state) {
  const points = data.groups.filter((group) => group.loss[0] !== null && group.costs[state.cost] > 0);
  const traces = points.map((group) => {
    const { colour, marker } = look(group);
    const [mean, low] = group.loss;
    return {
      x: [group.costs[state.cost]], y: [mean], mode: "markers", marker: { symbol: marker, size: 10, color: colour },
      error_y: { type: "data", array: [low === null ? 0 : mean - low], color: colour, thickness: 1.2, width: 4 },
      hoverinfo: "none", meta: group.name,
    };
  });
  const front = [];
  for (const group of [...points].sort((a, b) => a.costs[state.cost] - b.costs[state.cost] || a.loss[0] - b.loss[0])) {
    if (!front.length || group.loss[0] < front[front.length - 1].loss[0]) front.push(group);
  }
  traces.unshift({
    x: front.map((group) => group.costs[state.cost]), y: front.map((group) => group.loss[0]), mode: "lines",
    line: { color: colourOf("quiet"), width: 1, shape: "hv" }, hoverinfo: "skip",
  });
  const layout = layoutOf(plainText(data.costs[state.cost]), `${data.loss} (nats/token)`);
  layout.xaxis.exponentformat = "SI";
  if (!points.length) layout.annotations = [nothing("No row has both a mean loss and this cost.")];
  return Plotly.react(byId("costs-plot"), traces, layout, PLOT_CONFIG);
}

function watchCosts(data, state) {
  const plot = byId("costs-plot");
  plot.on("plotly_hover", (event) => {
    const group = data.groups.find((each) => each.name === event.points[0].data.meta);
    if (!group) return;
    const [mean, low, high] = group.loss;
    const rows = [
      [null, data.loss, low === null ? exact(mean) : `${rounded(mean)} ± ${((high - low) / 2).toPrecision(2)}`],
      [null, data.costs[state.cost], whole(group.costs[state.cost])],
      [null, "finished seeds", String(group.n)],
    ];
    tip.show(group.name, rows, event.event.clientX, event.event.clientY);
  });
  plot.on("plotly_unhover", () => tip.hide());
}

/* Spectra */
const HEAD_COLOURS = 12;

function spectrumOf(data, state) {
  const found = data.spectra[state.spectrum];
  if (!found.read) {
    found.read = unpackNumbers(found.values);
    found.readRanks = unpackNumbers(found.ranks);
  }
  const [, layers, heads, width] = found.shape;
  return {
    ...found,
    sigma: (step, layer, head) => {
      const from = ((step * layers + layer) * heads + head) * width;
      return Array.from(found.read.subarray(from, from + width));
    },
    rank: (step, layer, head) => found.readRanks[(step * layers + layer) * heads + head],
  };
}

function drawSpectra(data, state) {
  const found = spectrumOf(data, state);
  const top = found.read.reduce((most, value) => Math.max(most, value), 0);
  const floor = top * 1e-5;
  const drawn = (values) => values.map((value) => (value > floor ? value : null));
  const few = found.index.length <= 24;
  const traces = [];
  const colours = COLOURS[darkMode.matches ? "dark" : "light"].slice(1);
  found.heads.forEach((head, h) => {
    traces.push({
      x: found.index, y: drawn(found.sigma(0, state.layer, h)), mode: "lines", hoverinfo: "skip",
      opacity: 0.4, line: { color: colourOf("quiet"), width: 1.2 },
    });
  });
  found.heads.forEach((head, h) => {
    traces.push({
      x: found.index, y: drawn(found.sigma(state.step, state.layer, h)), mode: few ? "lines+markers" : "lines",
      meta: head, hoverinfo: "none",
      line: { color: colours[h % colours.length], dash: DASHES[h % DASHES.length], width: 1.8 },
      marker: { symbol: MARKERS[h % MARKERS.length], size: 5.5 },
    });
  });
  const layout = layoutOf("index k, 1 the largest", "singular value σ of W_M");
  layout.yaxis.type = "log";
  layout.yaxis.exponentformat = "power";
  layout.yaxis.dtick = 1;
  if (top > 0) layout.yaxis.range = [Math.log10(lowest(found, state.layer, floor)) - 0.1, Math.log10(top) + 0.15];
  const ranks = found.layers.map((_, l) => found.heads.map((_, h) => found.rank(state.step, l, h)));
  const most = found.readRanks.reduce((high, value) => Math.max(high, value), 1);
  const heat = {
    type: "heatmap", z: ranks, x: found.heads.map(String), y: found.layers.map(String), colorscale: "Cividis", zmin: 1, zmax: most,
    hoverinfo: "none", xgap: 2, ygap: 2, colorbar: { thickness: 12, outlinewidth: 0, len: 1 },
    texttemplate: found.heads.length <= 8 && found.layers.length <= 12 ? "%{z:.1f}" : "",
  };
  const heatLayout = layoutOf("head", "layer");
  heatLayout.xaxis = { ...heatLayout.xaxis, type: "category", showgrid: false, ticks: "" };
  heatLayout.yaxis = { ...heatLayout.yaxis, type: "category", showgrid: false, ticks: "", autorange: "reversed" };
  return Promise.all([
    Plotly.react(byId("spectra-plot"), traces, layout, PLOT_CONFIG),
    Plotly.react(byId("ranks-plot"), [heat], heatLayout, { ...PLOT_CONFIG, displayModeBar: false }),
  ]);
}

function lowest(found, layer, floor) {
  let least = Infinity;
  for (let step = 0; step < found.shape[0]; step++) {
    for (let head = 0; head < found.shape[2]; head++) {
      for (const value of found.sigma(step, layer, head)) if (value > floor) least = Math.min(least, value);
    }
  }
  return least;
}

function watchSpectra(data, state, redraw) {
  byId("spectra-plot").on("plotly_hover", (event) => {
    const [{ x, y, data: trace }] = event.points;
    const rows = [[null, `head ${trace.meta}, index ${x}`, rounded(y)]];
    tip.show(`step ${whole(spectrumOf(data, state).steps[state.step])}`, rows, event.event.clientX, event.event.clientY);
  });
  byId("ranks-plot").on("plotly_hover", (event) => {
    const [{ x, y, z }] = event.points;
    tip.show(`layer ${y}, head ${x}`, [[null, "effective rank", rounded(z)]], event.event.clientX, event.event.clientY);
  });
  byId("ranks-plot").on("plotly_click", (event) => {
    state.layer = spectrumOf(data, state).layers.map(String).indexOf(event.points[0].y);
    redraw();
  });
  for (const id of ["spectra-plot", "ranks-plot"]) byId(id).on("plotly_unhover", () => tip.hide());
}
