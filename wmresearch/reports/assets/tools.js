"use strict";
const byId = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

async function unpackText(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function unpackNumbers(packed) {
  const [[kind, text]] = Object.entries(packed);
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
  return new { f4: Float32Array, f8: Float64Array, i4: Int32Array }[kind](bytes);
}

/* Told apart by colour-blind readers, and by dash and marker without any colour; the same as in the figures. */
const COLOURS = {
  light: ["#1a1c20", "#0072b2", "#d55e00", "#00875f", "#b8558f", "#b87a00", "#2f8fc4"],
  dark: ["#f0f1f3", "#5eb2ee", "#ff8d4d", "#3fcf9f", "#e9a3cb", "#f1b93c", "#a5d8f7"],
};
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const SVG_DASHES = ["", "5 2", "1.5 2", "6 2 1.5 2", "8 3"];
const MARKERS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x"];
const SVG_MARKERS = [
  "M15 3a4 4 0 1 0 .01 0z", "M11.5 3.5h7v7h-7z", "M15 2.5l4.5 8h-9z", "M15 2l5 5-5 5-5-5z", "M15 11.5l4.5-8h-9z",
  "M13 2.5h4v2.5h2.5v4H17v2.5h-4V9h-2.5V5H13z", "M11 4.5L12.500 3l2.500 2.500L17.500 3 19 4.500 16.500 7 19 9.500 17.500 11 15 8.500 12.500 11 11 9.500 13.500 7z",
];
const coarse = matchMedia("(pointer: coarse)");
const darkMode = matchMedia("(prefers-color-scheme: dark)");

function look(group) {
  const colours = COLOURS[darkMode.matches ? "dark" : "light"];
  if (group.place === 0) return { colour: colours[0], dash: DASHES[0], marker: MARKERS[0], n: 0 };
  const n = group.place;
  return {
    colour: colours[1 + ((n - 1) % (colours.length - 1))], dash: DASHES[n % DASHES.length],
    marker: MARKERS[n % MARKERS.length], n,
  };
}

function swatch(group) {
  const { colour, n } = look(group);
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("width", "30");
  svg.setAttribute("height", "14");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(space, "path");
  line.setAttribute("d", "M0 7H30");
  line.setAttribute("stroke", colour);
  line.setAttribute("stroke-width", "2");
  line.setAttribute("stroke-dasharray", SVG_DASHES[n % DASHES.length]);
  const marker = document.createElementNS(space, "path");
  marker.setAttribute("d", SVG_MARKERS[n % MARKERS.length]);
  marker.setAttribute("fill", colour);
  svg.append(line, marker);
  return svg;
}

/* Six digits, as people read them; `exact` gives every digit of a number. */
function rounded(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) return value.toExponential(4).replace("-", "−").replace("e+", "e");
  return value.toLocaleString("en", { maximumSignificantDigits: 6 }).replace("-", "−");
}
const exact = (value) => String(value);
const whole = (value) => value.toLocaleString("en");

function spreadOf(values, table) {
  const n = values.length;
  const mean = values.reduce((sum, value) => sum + value, 0) / n;
  if (n < 2) return { mean, half: NaN, n };
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1);
  return { mean, half: ((table[n] ?? 1.96) * Math.sqrt(variance)) / Math.sqrt(n), n };
}

function smoothedValues(values, window) {
  const reach = Math.floor(window / 2);
  if (reach < 1) return values;
  const sums = [0];
  for (const value of values) sums.push(sums[sums.length - 1] + value);
  return Array.from(values, (_, at) => {
    const span = Math.min(at, values.length - 1 - at, reach);
    return (sums[at + span + 1] - sums[at - span]) / (2 * span + 1);
  });
}

const saved = {
  key: `wmresearch ${location.pathname}`,
  read() {
    try {
      return JSON.parse(sessionStorage.getItem(this.key)) ?? {};
    } catch {
      return {};
    }
  },
  write(state) {
    try {
      sessionStorage.setItem(this.key, JSON.stringify(state));
    } catch {
      /* a page from a file may have no storage */
    }
  },
};

const tip = {
  show(title, rows, x, y) {
    const element = byId("tip");
    const lines = rows.map(([group, name, value]) =>
      make("tr", {}, make("td", {}, group ? swatch(group) : ""), make("td", {}, name), make("td", {}, value)),
    );
    element.replaceChildren(make("b", {}, title), make("table", {}, make("tbody", {}, ...lines)));
    element.hidden = false;
    const { width, height } = element.getBoundingClientRect();
    const left = x + 16 + width < innerWidth ? x + 16 : Math.max(8, x - 16 - width);
    element.style.left = `${left}px`;
    element.style.top = `${Math.max(8, Math.min(y - height / 2, innerHeight - height - 8))}px`;
  },
  hide() {
    byId("tip").hidden = true;
  },
};

function colourOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function layoutOf(x, y, more = {}) {
  const axis = {
    gridcolor: colourOf("grid"), linecolor: colourOf("line"), zeroline: false, ticks: "outside", ticklen: 4,
    tickcolor: colourOf("line"), automargin: true, fixedrange: coarse.matches,
  };
  const title = { font: { size: 13 } };
  return {
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colourOf("quiet") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
    margin: { l: 52, r: 14, t: 12, b: 46 }, dragmode: "zoom",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colourOf("line"), activecolor: colourOf("quiet") },
    xaxis: { ...axis, title: { text: x, standoff: 10, ...title } }, yaxis: { ...axis, title: { text: y, standoff: 8, ...title } }, ...more,
  };
}

const PLOT_CONFIG = {
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
  displaylogo: false, responsive: true, doubleClick: "reset+autosize",
  displayModeBar: coarse.matches ? false : "hover",
};

/* Plotly reads some HTML in the texts that it draws. */
const plainText = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
