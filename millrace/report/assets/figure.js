"use strict";
// Stretches the lanes of a figure in time: boxes by a transform, numbers and axis by their places,
// so that text keeps its form. A number is shown where its box is wide enough.
(function () {
  const plot = document.getElementById("plot");
  const picture = plot.querySelector("svg");
  const width = Number(picture.dataset.width);
  const narrowest = Number(picture.dataset.narrowest);
  const mostZoom = Math.max(8, 60000 / width);
  const boxes = Array.from(picture.querySelectorAll(".x"));
  const texts = Array.from(picture.querySelectorAll(".n text, .axis text"), function (node) {
    return {
      node: node,
      x: Number(node.getAttribute("x")),
      room: node.dataset.w === undefined ? Infinity : Number(node.dataset.w),
      need: node.textContent.length * 6.2 + 4,
    };
  });
  let zoom = 0;

  // The least zoom at which the whole time is in view.
  function fitting() {
    const figure = plot.parentElement;
    const others = Array.from(figure.children, function (part) {
      return part === plot ? 0 : part.getBoundingClientRect().width;
    }).reduce(function (a, b) { return a + b; }, 0);
    const space = document.body.clientWidth - 40 - others;
    return Math.max(0.2, space / width);
  }

  // `at` is the place in the view that stays where it is.
  function show(wanted, at) {
    const next = Math.min(Math.max(wanted, Math.min(1, fitting())), mostZoom);
    if (next === zoom) {
      return;
    }
    const place = zoom > 0 ? (plot.scrollLeft + at) / zoom : 0;
    zoom = next;
    picture.setAttribute("width", width * zoom);
    const edge = Math.min(Math.max((narrowest * zoom - 1) / 8, 0), 0.7);
    picture.style.setProperty("--edge", edge);
    for (const box of boxes) {
      box.setAttribute("transform", "scale(" + zoom + " 1)");
    }
    for (const text of texts) {
      const fits = text.room * zoom >= text.need;
      text.node.classList.toggle("hidden", !fits);
      if (fits) {
        text.node.setAttribute("x", text.x * zoom);
      }
    }
    plot.scrollLeft = place * zoom - at;
  }

  function middle() { return plot.clientWidth / 2; }

  // As wide as all numbers need, where that is not beyond reason.
  function withNumbers() {
    return texts.reduce(function (most, text) {
      return text.room > 0 ? Math.max(most, text.need / text.room) : most;
    }, 0);
  }

  document.querySelector(".tools").hidden = false;
  document.getElementById("in").onclick = function () { show(zoom * 1.5, middle()); };
  document.getElementById("out").onclick = function () { show(zoom / 1.5, middle()); };
  document.getElementById("fit").onclick = function () { show(fitting(), 0); };
  document.getElementById("numbers").onclick = function () { show(withNumbers(), middle()); };
  plot.addEventListener("wheel", function (event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      show(zoom * Math.exp(-event.deltaY / 300), event.clientX - plot.getBoundingClientRect().left);
    }
  }, { passive: false });
  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    if (event.key === "+" || event.key === "=") {
      show(zoom * 1.5, middle());
    } else if (event.key === "-") {
      show(zoom / 1.5, middle());
    } else if (event.key === "0") {
      show(fitting(), 0);
    }
  });
  let from = null;
  plot.addEventListener("pointerdown", function (event) {
    if (event.button === 0 && event.pointerType === "mouse") {
      from = { x: event.clientX, scroll: plot.scrollLeft };
      plot.classList.add("dragged");
    }
  });
  window.addEventListener("pointermove", function (event) {
    if (from !== null) {
      plot.scrollLeft = from.scroll - (event.clientX - from.x);
    }
  });
  window.addEventListener("pointerup", function () {
    from = null;
    plot.classList.remove("dragged");
  });
  show(Math.min(Math.max(1, fitting()), 3), 0);
  if (fitting() < 1) {
    show(fitting(), 0);
  }
})();
