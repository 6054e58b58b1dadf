"use strict";
// The charts of the overview: drawn from a range, then a point a second by server-sent events.
(() => {
  const root = document.querySelector("[data-charts]");
  if (root === null) return;
  const LIVE_SECONDS = 900;
  const FIRST_SECONDS = 120;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const figure = (name, text) => { const one = root.querySelector(`[data-figure="${name}"]`); if (one !== null) one.textContent = text; };
  const short = (value) => value == null ? "—" : value >= 10000 ? `${(value / 1000).toFixed(1)}k` : value >= 100 ? Math.round(value).toLocaleString() : value >= 1 || value === 0 ? String(Math.round(value * 10) / 10) : value.toPrecision(2);
  const ms = (us) => us == null ? "—" : us < 10000 ? `${(us / 1000).toFixed(2)} ms` : `${Math.round(us / 1000)} ms`;

  const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
  const minute = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
  const second = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const span = () => points.length ? points[points.length - 1][0] - points[0][0] : 0;
  const label = (at) => (step === 1 ? second : span() > 2.5 * 86400 ? day : minute).format(new Date(at * 1000));
  const whole = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

  let points = [];
  let step = 1;
  let plots = [];

  // Stacked from below: refused, by failure mode is a line of its own, shadow, allowed on top.
  function rates() {
    const at = [], allowed = [], shadow = [], refused = [], failing = [];
    for (const [time, a, r, s, , f] of points) {
      at.push(time); refused.push(r || null); shadow.push(s ? r + s : null); allowed.push(a == null ? null : r + s + a); failing.push(f || null);
    }
    return [at, allowed, shadow, refused, failing];
  }
  function times() {
    return [points.map((p) => p[0]), points.map((p) => p[6] == null ? null : p[6] / 1000), points.map((p) => p[7] == null ? null : p[7] / 1000)];
  }

  function describe(place) {
    const p = points[place ?? points.length - 1];
    if (p === undefined) return;
    figure("allowed", short(p[1])); figure("refused", short(p[2])); figure("shadow", short(p[3])); figure("failure", short(p[5]));
    figure("p50-value", ms(p[6])); figure("p99-value", ms(p[7]));
    figure("at", place == null ? "" : whole.format(new Date(p[0] * 1000)));
    if (place == null) { figure("rate", p[1] == null ? "—" : short(p[1] + p[2] + p[3])); figure("p99", ms(p[7])); }
  }

  // A range that was dragged over a chart is shown, in whole minutes.
  function zoom(u) {
    if (u.select.width < 8) return;
    const [since, until] = [u.select.left, u.select.left + u.select.width].map((x) => u.posToVal(x, "x"));
    window.headgateRange(Math.floor(since / 60) * 60, Math.ceil(until / 60) * 60);
  }

  function options(box, series, unit) {
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    return {
      width: box.clientWidth, height: box.clientHeight, padding: [10, 26, 0, 0], series: [{}, ...series],
      cursor: { y: false, points: { show: false }, sync: { key: "headgate" }, drag: { x: true, y: false, setScale: false } },
      legend: { show: false },
      scales: { x: { time: true }, y: { range: (u, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, size: 28, space: 72, values: (u, splits) => splits.map(label) }, { ...axis, size: 58, values: (u, values) => values.map((v) => short(v) + unit) }],
      hooks: { setCursor: [(u) => describe(u.cursor.idx ?? undefined)], setSelect: [zoom] },
    };
  }

  function draw() {
    for (const plot of plots) plot.destroy();
    const [rate, time] = ["rate", "time"].map((name) => root.querySelector(`[data-chart="${name}"]`));
    for (const box of [rate, time]) box.replaceChildren();
    // A line needs two points; one alone is drawn as a dot.
    const lone = points.filter((p) => p[6] != null).length < 2;
    const dots = { show: lone, size: 5 };
    const area = (name, alpha) => ({ stroke: color(name), fill: color(name) + alpha, width: 1, points: { show: false } });
    plots = [
      new uPlot(options(rate, [area("--allowed", "55"), area("--shadow", "cc"), area("--refused", "dd"), { stroke: color("--delayed"), width: 2, points: { show: false } }], ""), rates(), rate),
      new uPlot(options(time, [{ stroke: color("--accent"), width: 1.5, spanGaps: true, points: dots }, { stroke: color("--delayed"), width: 1.5, spanGaps: true, points: dots }], " ms"), times(), time),
    ];
    describe();
  }

  function update() {
    if (plots.length === 0) { draw(); return; }
    plots[0].setData(rates());
    plots[1].setData(times());
    if (plots[0].cursor.idx == null) describe();
  }

  function fill() {
    // At most fifteen minutes; of a service that has just started, at least two.
    if (step !== 1) return;
    const now = points.length ? points[points.length - 1][0] : Math.floor(Date.now() / 1000);
    points = points.filter((p) => p[0] > now - LIVE_SECONDS);
    if (!points.length || points[0][0] > now - FIRST_SECONDS) points.unshift([now - FIRST_SECONDS, null, null, null, null, null, null, null]);
  }

  function follow(url) {
    const last = points.length ? points[points.length - 1][0] : 0;
    const source = new EventSource(`${url}?since=${last}`);
    source.onmessage = (event) => {
      points = points.concat(JSON.parse(event.data));
      fill();
      update();
    };
    source.onerror = () => figure("rate", "reconnecting…");
    addEventListener("pagehide", () => source.close());
  }

  fetch(root.dataset.url, { headers: { Accept: "application/json" } })
    .then((answer) => { if (!answer.ok) throw new Error(`${answer.status}`); return answer.json(); })
    .then((found) => {
      points = found.points;
      step = found.step;
      fill();
      draw();
      if (root.dataset.live) follow(root.dataset.live);
    })
    .catch(() => { for (const one of root.querySelectorAll(".loading")) one.textContent = "The chart could not be loaded. Reload the page to try again."; });

  document.addEventListener("headgate:theme", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(() => { for (const plot of plots) { const box = plot.root.parentElement; plot.setSize({ width: box.clientWidth, height: box.clientHeight }); } }).observe(root);
})();
