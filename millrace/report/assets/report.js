// The page of a run: draws the curves and starts the timeline from the JSON in the element "data".
"use strict";

(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const redraws = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Read at each drawing, so that a change between light and dark needs only a redraw.
  const axis = (more) => Object.assign({
    stroke: () => color("--muted"),
    grid: {stroke: () => color("--line"), width: 1},
    ticks: {show: false},
    font: "12px system-ui, sans-serif",
  }, more);

  // A scale needs some length even when there is one value only.
  const range = (_, min, max) => min === null ? [0, 1] : min === max ? [min - 1, max + 1] : [min, max];

  function plot(id, columns, series, valueScale, valueUnit) {
    const box = document.getElementById(id);
    if (!box) return;
    const size = () => ({width: Math.max(box.clientWidth, 200), height: 260});
    const chart = new uPlot({
      ...size(),
      scales: {x: {time: false, range}, y: valueScale || {}},
      axes: [axis({size: 34, values: (_, steps) => steps.map((s) => Number.isInteger(s) ? s.toLocaleString("en") : "")}),
             axis({size: 54, values: (_, ticks) => ticks.map((v) => parseFloat(v.toPrecision(10)) + (valueUnit || ""))})],
      series: [{label: "step", value: (_, v) => v === null ? "-" : v.toLocaleString("en")}, ...series],
      cursor: {drag: {x: true, y: false}},
    }, columns, box);
    new ResizeObserver(() => {
      if (size().width !== chart.width) chart.setSize(size());
    }).observe(box);
    redraws.push(() => chart.redraw(false));
  }

  const digits = (places) => (_, v) => v === null || v === undefined ? "-" : v.toPrecision(places);
  const few = data.loss.step.length < 40;
  const loss = [{
    label: "loss of a step", value: digits(4), width: few ? 2 : 1, points: {show: few, size: 5},
    stroke: () => color(data.loss.smooth_steps > 1 ? "--raw" : "--accent"),
  }];
  const columns = [data.loss.step, data.loss.raw];
  if (data.loss.smooth_steps > 1) {
    loss.push({
      label: `mean over about ${2 * data.loss.smooth_steps} steps`, value: digits(4), width: 2,
      points: {show: false}, stroke: () => color("--accent"),
    });
    columns.push(data.loss.smooth);
  }
  plot("loss", columns, loss);

  plot("accuracy", [data.evals.step, data.evals.accuracy.map((a) => a === null ? null : a * 100)], [{
    label: "accuracy", value: (_, v) => v === null || v === undefined ? "-" : v.toFixed(2) + " %", width: 2,
    points: {show: true, size: 7}, stroke: () => color("--accent"),
  }], {range: {min: {pad: 0.1, soft: 0, mode: 0}, max: {pad: 0.1, hard: 100, mode: 1}}}, " %");

  const box = document.getElementById("timeline");
  if (box) {
    const timeline = millraceTimeline(box, data.timeline, data.paints);
    redraws.push(() => timeline.recolor());
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((redraw) => redraw()));
})();
