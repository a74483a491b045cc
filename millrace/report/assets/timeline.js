// The timeline of workers: what each did when, predicted lane above measured lane, on one canvas.
// millraceTimeline(box, timeline, paints) builds it into the element `box`. `timeline` and `paints` are
// as written by millrace/report/internal/page_data.cc; an event is
// [text, paint, start, duration, wait, bytes], times in nanoseconds.
"use strict";

function millraceTimeline(box, timeline, paints) {
  const TRANSFER = 6, WAIT = 7;
  const AXIS = 24, GAP = 8, FONT = "12px system-ui, sans-serif";
  const sides = ["predicted", "measured"].filter((side) => timeline[side] && timeline[side].kept > 0);

  // Lanes: messages apart from the rest, since they may last while the rank computes on.
  const lanes = [];
  for (const worker of timeline.workers) {
    for (const side of sides) {
      const events = worker[side] || [];
      const split = (transfer) => index(events.filter((e) => (e[1] === TRANSFER) === transfer));
      lanes.push({worker, side, layers: [split(true), split(false)], first: side === sides[0]});
    }
  }

  // Sorted by start, with the latest end so far, which also rises: what is in view is found by bisection.
  function index(events) {
    events.sort((a, b) => a[2] - b[2]);
    let latest = -Infinity;
    return {events, ends: events.map((e) => (latest = Math.max(latest, e[2] + e[3])))};
  }
  function bisect(count, isLeft) {
    let low = 0, high = count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (isLeft(middle)) low = middle + 1; else high = middle;
    }
    return low;
  }

  let least = Infinity, most = -Infinity;
  for (const lane of lanes) {
    for (const {events, ends} of lane.layers) {
      if (events.length) {
        least = Math.min(least, events[0][2]);
        most = Math.max(most, ends[ends.length - 1]);
      }
    }
  }
  const whole = [least, Math.max(most, least + 1)];
  const longest = Math.max(...sides.map((side) => timeline[side].view)) || whole[1] - whole[0];
  const steady = [-0.01 * longest, 1.01 * longest];
  let view = steady.slice();
  const laneHeight = lanes.length > 64 ? 14 : 22;

  // Elements: buttons, canvas, tooltip, key, remarks.
  const make = (tag, parent, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    parent.appendChild(element);
    return element;
  };
  const bar = make("div", box, "timeline-bar");
  const button = (text, title, action) => {
    const element = make("button", bar, "", text);
    element.type = "button";
    element.title = title;
    element.onclick = action;
  };
  button("Steady steps", "Back to the first view (0)", () => show(steady));
  button("Everything", "All that was recorded (a)", () => show(whole));
  button("+", "Closer (+)", () => zoom(0.5, 0.5));
  button("-", "Farther (-)", () => zoom(2, 0.5));
  make("span", bar, "aside", "Wheel or +/- zooms, dragging or arrow keys move.");
  const frame = make("div", box, "timeline-box");
  const canvas = make("canvas", make("div", frame, "timeline-scroll"));
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Timeline of every worker: " + sides.join(" above "));
  const tooltip = make("div", frame, "tooltip");
  tooltip.hidden = true;
  drawLegend(make("div", box, "legend"));
  for (const text of remarks()) make("p", box, "aside", text);
  const pen = canvas.getContext("2d");

  function drawLegend(legend) {
    const used = new Set();
    for (const lane of lanes) {
      for (const {events} of lane.layers) {
        for (const e of events) {
          used.add(e[1]);
          if (e[4] > 0) used.add(WAIT);
        }
      }
    }
    paints.forEach((paint, i) => {
      if (used.has(i)) {
        const entry = make("span", legend);
        const swatch = make("i", entry);
        swatch.style.background = i === WAIT
          ? `repeating-linear-gradient(45deg, ${paint.fill} 0 2px, transparent 2px 5px)` : paint.fill;
        entry.append(paint.name);
      }
    });
  }

  function remarks() {
    const list = [];
    if (sides.every((side) => timeline[side].num_steps > 0)) {
      const where = sides.map((side) => `step ${timeline[side].first_step} of the ${side} trace`);
      list.push(`0 is the start of ${where.join(" and of ")}.`);
    }
    for (const side of sides) {
      const {kept, events, complete} = timeline[side];
      if (kept < events) list.push(`${side}: this page holds ${kept} of ${events} actions, those nearest to 0.`);
      if (!complete) list.push(`${side}: the recording stopped before the run's end.`);
    }
    return list;
  }

  // Geometry.
  let width = 0, left = 0;
  const height = AXIS + timeline.workers.length * (sides.length * laneHeight + GAP) + 4;
  const laneTop = (i) => AXIS + i * laneHeight + Math.floor(i / sides.length) * GAP;
  const xOf = (time) => left + (time - view[0]) / (view[1] - view[0]) * (width - left);
  const timeOf = (x) => view[0] + (x - left) / (width - left) * (view[1] - view[0]);

  function formatTime(ns, reference) {
    const size = Math.abs(reference === undefined ? ns : reference);
    const [unit, name] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "us"] : [1, "ns"];
    return `${parseFloat((ns / unit).toPrecision(reference === undefined ? 4 : 12))} ${name}`;
  }

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // Waits are hatched, so that they are told from idle and from work without colour.
  let hatch = null;
  function makeHatch() {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const brush = tile.getContext("2d");
    brush.strokeStyle = color("--muted");
    brush.globalAlpha = 0.35;
    brush.lineWidth = 1;
    brush.beginPath();
    for (const shift of [-6, 0, 6]) {
      brush.moveTo(shift, 6);
      brush.lineTo(shift + 6, 0);
    }
    brush.stroke();
    hatch = pen.createPattern(tile, "repeat");
  }

  function draw() {
    const scale = window.devicePixelRatio || 1;
    width = canvas.clientWidth || 600;
    left = width < 560 ? 78 : 176;
    const pixels = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) {
      [canvas.width, canvas.height] = pixels;
      canvas.style.height = height + "px";
    }
    if (!hatch) makeHatch();
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = FONT;
    lanes.forEach(drawLane);
    drawAxis();
  }

  function drawLane(lane, i) {
    const top = laneTop(i), inner = laneHeight - 2;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    if (lane.first) {
      const {rank, stages} = lane.worker;
      pen.fillStyle = color("--text");
      pen.fillText(width < 560 ? `rank ${rank}` : `rank ${rank}, ${stages}`,
                   0, top + inner / 2 + 1);
    }
    if (sides.length > 1) {
      pen.textAlign = "right";
      pen.fillStyle = color("--muted");
      pen.fillText(width < 560 ? lane.side.slice(0, 4) : lane.side, left - 8, top + inner / 2 + 1);
    }
    pen.fillStyle = color("--lane");
    pen.fillRect(left, top, width - left, inner);
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width - left, inner);
    pen.clip();
    lane.layers.forEach((layer, above) => drawEvents(layer, top, inner, !above));
    pen.restore();
  }

  // Every box has at least a pixel; what falls on a pixel already painted is skipped, so that a view of
  // the whole run costs no more than its pixels.
  function drawEvents({events, ends}, top, inner, strip) {
    const begin = bisect(ends.length, (i) => ends[i] < view[0]);
    const stop = bisect(events.length, (i) => events[i][2] < view[1]);
    let painted = -Infinity;
    for (let i = begin; i < stop; ++i) {
      const [text, paint, start, duration, wait] = events[i];
      const from = xOf(start), to = xOf(start + duration);
      if (to <= painted) continue;
      const busy = Math.min(to, xOf(start + wait));
      if (busy > from) {
        pen.fillStyle = hatch;
        pen.fillRect(from, top, busy - from, inner);
      }
      const size = to - busy;
      const x = size < 1 ? Math.floor(busy) : busy;
      painted = Math.max(to, x + 1);
      pen.fillStyle = paints[paint].fill;
      pen.fillRect(x, strip ? top + inner - 6 : top, size > 4 ? size - 1 : Math.max(size, 1), strip ? 6 : inner);
      const label = text.replace(/^\d+/, "").replace(/[@<>].*/, "");
      if (!strip && size > 14 && pen.measureText(label).width + 4 < size) {
        pen.fillStyle = paints[paint].ink;
        pen.textAlign = "center";
        pen.fillText(label, busy + size / 2, top + inner / 2 + 1);
      }
    }
  }

  function drawAxis() {
    const span = view[1] - view[0];
    const target = span * 90 / Math.max(width - left, 90);
    const power = Math.pow(10, Math.floor(Math.log10(target)));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= target) || 10 * power;
    pen.textBaseline = "alphabetic";
    pen.strokeStyle = color("--line");
    pen.fillStyle = color("--muted");
    pen.lineWidth = 1;
    for (let k = Math.ceil(view[0] / step); k * step <= view[1]; ++k) {
      const x = Math.round(xOf(k * step)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, AXIS - 6);
      pen.lineTo(x, AXIS);
      for (let i = 1; i <= timeline.workers.length; ++i) {
        const bottom = AXIS + i * (sides.length * laneHeight + GAP);
        pen.moveTo(x, bottom - GAP);
        pen.lineTo(x, bottom);
      }
      pen.stroke();
      const text = formatTime(k * step, Math.max(Math.abs(view[0]), Math.abs(view[1])));
      const half = pen.measureText(text).width / 2;
      pen.textAlign = "center";
      if (x - half > left - 20 && x + half < width) pen.fillText(text, x, AXIS - 10);
    }
  }

  // Moving about. One redraw a frame, however many events arrive.
  let waiting = false;
  function redraw() {
    if (!waiting) {
      waiting = true;
      requestAnimationFrame(() => { waiting = false; draw(); });
    }
  }
  function show([from, to]) {
    const margin = 0.02 * (whole[1] - whole[0]);
    const low = Math.min(whole[0] - margin, steady[0]), high = Math.max(whole[1] + margin, steady[1]);
    const span = Math.min(Math.max(to - from, 50), high - low);
    const start = Math.min(Math.max(from, low), high - span);
    view = [start, start + span];
    tooltip.hidden = true;
    redraw();
  }
  function zoom(factor, at) {
    const span = view[1] - view[0], fixed = view[0] + at * span;
    show([fixed - at * span * factor, fixed + (1 - at) * span * factor]);
  }
  function move(by) {
    const span = view[1] - view[0];
    show([view[0] + by * span, view[1] + by * span]);
  }
  const share = (x) => Math.min(Math.max((x - left) / (width - left), 0), 1);

  // A wheel turn that began outside goes on scrolling the page when the canvas slides under the pointer.
  let scrolledAt = -Infinity;
  window.addEventListener("wheel", (event) => {
    if (event.target !== canvas) scrolledAt = event.timeStamp;
  }, {passive: true, capture: true});
  canvas.addEventListener("wheel", (event) => {
    if (event.timeStamp - scrolledAt < 250) {
      scrolledAt = event.timeStamp;
      return;
    }
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      move((event.deltaX || event.deltaY) / 800);
    } else {
      zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), share(event.offsetX));
    }
  }, {passive: false});

  const pointers = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event.offsetX);
    canvas.setPointerCapture(event.pointerId);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, (event) => pointers.delete(event.pointerId));
  }
  canvas.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) return hover(event);
    const before = [...pointers.values()];
    pointers.set(event.pointerId, event.offsetX);
    const after = [...pointers.values()];
    if (after.length === 1) {
      move((before[0] - after[0]) / (width - left));
    } else {
      const apart = (xs) => Math.max(Math.abs(xs[0] - xs[1]), 10);
      zoom(apart(before) / apart(after), share((after[0] + after[1]) / 2));
    }
  });
  canvas.addEventListener("pointerleave", () => { tooltip.hidden = true; });
  canvas.addEventListener("click", hover);
  canvas.addEventListener("keydown", (event) => {
    const actions = {
      ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15),
      "+": () => zoom(0.7, 0.5), "=": () => zoom(0.7, 0.5), "-": () => zoom(1 / 0.7, 0.5),
      0: () => show(steady), Home: () => show(steady), a: () => show(whole),
    };
    const action = actions[event.key];
    if (action && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      action();
    }
  });

  // The action at a place: work before messages, for it lies on top.
  function eventAt(lane, time) {
    const slack = 2 * (view[1] - view[0]) / (width - left);
    for (const {events, ends} of [lane.layers[1], lane.layers[0]]) {
      const stop = bisect(events.length, (i) => events[i][2] <= time + slack);
      for (let i = stop - 1; i >= 0 && ends[i] >= time - slack; --i) {
        if (events[i][2] + events[i][3] >= time - slack) return events[i];
      }
    }
    return null;
  }
  function hover(event) {
    const row = lanes.findIndex((_, i) => event.offsetY >= laneTop(i) && event.offsetY < laneTop(i) + laneHeight);
    const found = row >= 0 && event.offsetX >= left ? eventAt(lanes[row], timeOf(event.offsetX)) : null;
    tooltip.hidden = !found;
    if (!found) return;
    const [text, paint, start, duration, wait, bytes] = found;
    tooltip.textContent = "";
    make("b", tooltip, "", `${text} (${paints[paint].name})`);
    make("div", tooltip, "", `rank ${lanes[row].worker.rank}, ${lanes[row].side}`);
    make("div", tooltip, "", `starts at ${formatTime(start)}, lasts ${formatTime(duration)}`);
    if (wait > 0) make("div", tooltip, "", `of which it waits ${formatTime(wait)}`);
    if (bytes > 0) make("div", tooltip, "", `moves ${bytes.toLocaleString("en")} bytes`);
    const top = event.offsetY - canvas.parentNode.scrollTop + 16;
    tooltip.style.left = Math.max(0, Math.min(event.offsetX + 14, width - tooltip.offsetWidth)) + "px";
    tooltip.style.top = top + "px";
  }

  new ResizeObserver(redraw).observe(canvas);
  show(steady);
  return {
    recolor() {
      hatch = null;
      redraw();
    },
  };
}
