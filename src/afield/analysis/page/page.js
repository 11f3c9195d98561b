"use strict";
const NARROW = 620;
const dark = matchMedia("(prefers-color-scheme: dark)");
const charts = [...document.querySelectorAll(".chart")];
const pictures = {};

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// What a chart looks like at the reader's width and in the reader's colours.
function layoutOf(chart) {
  const { layout, narrow } = chart.spec;
  const thin = chart.clientWidth < NARROW;
  const ink = style("--ink"), line = style("--line"), faint = style("--faint");
  const made = structuredClone(layout);
  delete made.template;
  Object.assign(made, {
    height: Number(thin ? chart.dataset.narrowHeight : chart.dataset.height),
    margin: { l: 52, r: 12, t: 28, b: 44, ...layout.margin },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, family: "system-ui, sans-serif", size: 12 },
    legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, xanchor: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: faint, activecolor: style("--accent") },
    hoverlabel: { bgcolor: style("--panel"), bordercolor: line, font: { color: ink } },
  });
  for (const name of new Set([...Object.keys(made).filter((key) => /^[xy]axis/.test(key)), "xaxis", "yaxis"])) {
    made[name] = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, ...made[name] };
  }
  for (const shape of made.shapes || []) shape.line = { ...shape.line, color: faint };
  if (thin) {
    for (const [path, value] of Object.entries(narrow)) {
      const [, first, place, last] = path.match(/^(\w+?)(?:\[(\d+)\])?\.(\w+)$/);
      (place === undefined ? made[first] : made[first][Number(place)])[last] = value;
    }
  }
  return made;
}

function showPicture(chart, event) {
  const point = event.points[0];
  const source = pictures[chart.spec.pictures][point.customdata];
  const box = document.getElementById("hovered");
  box.querySelector("img").src = source;
  const words = document.createElement("textarea"); // which turns Plotly's text into plain text
  words.innerHTML = point.text.replaceAll("<br>", "\n");
  box.querySelector("p").textContent = words.value;
  box.hidden = false;
  const { clientX: x, clientY: y } = event.event;
  box.style.left = `${Math.max(4, Math.min(x + 16, innerWidth - box.offsetWidth - 4))}px`;
  box.style.top = `${Math.max(4, Math.min(y + 16, innerHeight - box.offsetHeight - 4))}px`;
}

function draw(chart) {
  chart.spec = JSON.parse(document.getElementById(`${chart.id}-spec`).textContent);
  // These buttons alone: one of Plotly's own sends the chart to a server, and the reader's images are the reader's.
  const buttons = [["toImage", "zoom2d", "pan2d", "resetScale2d"]];
  const config = { responsive: false, displaylogo: false, modeBarButtons: buttons, plotlyServerURL: "" };
  Plotly.newPlot(chart, chart.spec.data, layoutOf(chart), config);
  chart.drawnWidth = chart.clientWidth;
  if (chart.spec.pictures) {
    pictures[chart.spec.pictures] = JSON.parse(document.getElementById(chart.spec.pictures).textContent);
    for (const kind of ["plotly_hover", "plotly_click"]) chart.on(kind, (event) => showPicture(chart, event));
    chart.on("plotly_unhover", () => { document.getElementById("hovered").hidden = true; });
  }
}

function redraw(chart) {
  Plotly.react(chart, chart.data, layoutOf(chart));
  chart.drawnWidth = chart.clientWidth;
}

charts.forEach(draw);
dark.addEventListener("change", () => charts.forEach(redraw));
addEventListener("resize", () => charts.filter((chart) => chart.clientWidth !== chart.drawnWidth).forEach(redraw));

for (const group of document.querySelectorAll(".switch")) {
  const buttons = [...group.querySelectorAll("button")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      Plotly.restyle(group.dataset.chart, { visible: JSON.parse(button.dataset.visible) });
    });
  }
}

// A click on a column's name sorts by it; numbers by their value, the largest first, and what has none last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const rows = [...table.tBodies[0].rows];
    const value = (row) => row.cells[column].dataset.value;
    const numeric = rows.some((row) => value(row) !== undefined);
    const now = head.getAttribute("aria-sort");
    const falling = now ? now === "ascending" : numeric;
    const words = new Intl.Collator(undefined, { numeric: true });
    rows.sort((a, b) => {
      const [one, two] = [value(a), value(b)];
      if (numeric && (one === undefined || two === undefined)) return (one === undefined) - (two === undefined);
      const order = numeric ? one - two : words.compare(a.cells[column].textContent, b.cells[column].textContent);
      return falling ? -order : order;
    });
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    table.tBodies[0].append(...rows);
  }));
}
