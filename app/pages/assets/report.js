"use strict";
(function () {
  const { colour, colourOf, short } = hexloop;
  const data = hexloop.data();
  const SYMBOLS = ["circle", "rect", "triangle", "diamond", "roundRect", "pin", "arrow", "emptyCircle"];
  const DASHES = ["solid", "dashed", "dotted"];
  const SHOWN_SYMBOLS = 60, KEPT_GAPS = 50;
  const hidden = new Set();
  const drawn = new Map();
  const state = { smoothing: 0 };

  function smooth(points) {
    let mean = 0, weight = 0;
    return points.map(function (point) {
      mean = state.smoothing * mean + (1 - state.smoothing) * point[1];
      weight = state.smoothing * weight + (1 - state.smoothing);
      return [point[0], mean / weight];
    });
  }

  function label(curve, chart) {
    const several = new Set(chart.curves.map(function (each) { return each.name; })).size > 1;
    const run = data.runs[curve.run];
    if (data.runs.length === 1) return curve.name;
    return several ? run + ": " + curve.name : run;
  }

  function visible(chart) {
    return chart.curves.filter(function (curve) { return !hidden.has(curve.run); });
  }

  function widthOf(curve) {  // of few runs, equal curves are seen beneath each other
    return data.runs.length > 4 ? 1.7 : 2 + data.runs.length - 1 - curve.run;
  }

  function seriesOf(chart, curve, logarithmic) {
    const one = data.runs.length === 1;
    const shade = colourOf(one ? curve.dash : curve.run);
    let points = curve.points;
    if (logarithmic) points = points.filter(function (point) { return point[1] > 0; });
    const line = {
      type: "line", name: label(curve, chart), color: shade, symbol: SYMBOLS[curve.run % SYMBOLS.length], symbolSize: 6,
      showSymbol: points.length <= SHOWN_SYMBOLS, lineStyle: { width: widthOf(curve), type: DASHES[curve.dash % DASHES.length] },
      z: 3 + chart.curves.indexOf(curve), emphasis: { disabled: true }, data: state.smoothing > 0 ? smooth(points) : points,
      markLine: curve.gaps.length === 0 ? undefined : {
        silent: true, symbol: "none", animation: false, lineStyle: { color: shade, type: "dotted" },
        label: { formatter: "not finite", color: colour("soft") },
        data: curve.gaps.slice(0, KEPT_GAPS).map(function (step) { return { xAxis: step }; })
      }
    };
    if (state.smoothing === 0) return [line];
    return [{ ...line, markLine: undefined, data: points, showSymbol: false, silent: true, name: line.name + " (as logged)",
              lineStyle: { width: 1, opacity: 0.35, type: line.lineStyle.type }, tooltip: { show: false } }, line];
  }

  function optionOf(entry) {
    const chart = entry.chart, ink = colour("ink"), soft = colour("soft"), rule = colour("line");
    const axis = { axisLine: { lineStyle: { color: soft } }, axisLabel: { color: soft, hideOverlap: true },
                   splitLine: { lineStyle: { color: rule, opacity: 0.5 } } };
    return {
      animation: false, backgroundColor: "transparent", textStyle: { color: ink },
      grid: { left: 8, right: 20, top: 16, bottom: 30, containLabel: true },
      xAxis: { type: "value", name: "step", nameLocation: "middle", nameGap: 26, nameTextStyle: { color: soft },
               min: "dataMin", max: "dataMax", ...axis },
      yAxis: { type: entry.logarithmic ? "log" : "value", scale: true, ...axis,
               axisLabel: { color: soft, formatter: short, hideOverlap: true } },
      tooltip: hexloop.tooltip(words, { trigger: "axis" }),
      dataZoom: [{ type: "inside", zoomOnMouseWheel: "shift", moveOnMouseWheel: false, filterMode: "none" }],
      series: visible(chart).flatMap(function (curve) { return seriesOf(chart, curve, entry.logarithmic); })
    };
  }

  function words(found) {
    const lines = found.filter(function (each) { return each.value; }).map(function (each) {
      return each.seriesName + ": " + short(each.value[1]);
    });
    return ["step " + (found.length ? found[0].value[0].toLocaleString("en") : "")].concat(lines);
  }

  function draw(entry) {
    entry.plot = hexloop.plotIn(entry.place);
    entry.plot.setOption(optionOf(entry), true);
  }

  function redraw() {
    drawn.forEach(function (entry) { if (entry.plot) draw(entry); });
  }

  function read(entry, move) {
    const curve = visible(entry.chart)[0];
    if (!curve || curve.points.length === 0) return;
    const last = curve.points.length - 1;
    entry.at = Math.min(Math.max(move(entry.at, last), 0), last);
    const step = curve.points[entry.at][0];
    draw(entry);
    entry.plot.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: entry.at });
    const texts = visible(entry.chart).map(function (each) {
      const near = each.points.reduce(function (best, point) {
        return best === null || Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best;
      }, null);
      return near === null ? "" : label(each, entry.chart) + " " + short(near[1]) + " at step " + near[0].toLocaleString("en");
    });
    entry.reading.textContent = texts.filter(Boolean).join("; ");
  }

  function zoom(entry, factor) {
    const now = entry.plot.getOption().dataZoom[0];
    const middle = (now.start + now.end) / 2, half = Math.min((now.end - now.start) * factor / 2, 50);
    entry.plot.dispatchAction({ type: "dataZoom", start: Math.max(middle - half, 0), end: Math.min(middle + half, 100) });
  }

  function keys(entry) {
    const page = 10;
    const moves = {
      ArrowRight: function (at) { return at + 1; }, ArrowLeft: function (at) { return at - 1; },
      PageDown: function (at, last) { return at + Math.ceil(last / page); },
      PageUp: function (at, last) { return at - Math.ceil(last / page); },
      Home: function () { return 0; }, End: function (at, last) { return last; }
    };
    entry.place.addEventListener("keydown", function (event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (moves[event.key]) read(entry, moves[event.key]);
      else if (event.key === "+") zoom(entry, 0.5);
      else if (event.key === "-") zoom(entry, 2);
      else if (event.key === "0") zoom(entry, 1e6);
      else return;
      event.preventDefault();
    });
    entry.place.addEventListener("focus", function () {
      if (!entry.reading.textContent) entry.reading.textContent = "Arrow keys read the values, + and - zoom, 0 shows all.";
    });
    entry.place.addEventListener("dblclick", function () { zoom(entry, 1e6); });
  }

  const watcher = new IntersectionObserver(function (found) {
    found.forEach(function (each) {
      if (!each.isIntersecting) return;
      watcher.unobserve(each.target);
      draw(drawn.get(each.target.id));
    });
  }, { rootMargin: "400px" });

  data.charts.forEach(function (chart) {
    const place = document.getElementById(chart.id);
    const entry = { chart: chart, place: place, reading: document.getElementById(chart.id + "-reading"), at: -1,
                    logarithmic: false, plot: null };
    drawn.set(chart.id, entry);
    keys(entry);
    watcher.observe(place);
  });

  document.querySelectorAll(".logarithmic").forEach(function (box) {
    box.addEventListener("change", function () {
      const entry = drawn.get(box.dataset.chart);
      entry.logarithmic = box.checked;
      draw(entry);
    });
  });
  document.querySelectorAll(".run-shown").forEach(function (box) {
    box.addEventListener("change", function () {
      if (box.checked) hidden.delete(Number(box.dataset.run));
      else hidden.add(Number(box.dataset.run));
      redraw();
    });
  });
  const slider = document.getElementById("smoothing");
  if (slider) slider.addEventListener("input", function () {
    state.smoothing = Number(slider.value) / 100;
    redraw();
  });
  hexloop.onData(function (fresh) {
    data.runs = fresh.runs;
    fresh.charts.forEach(function (chart) { drawn.get(chart.id).chart = chart; });
    redraw();
  });
  hexloop.onTheme(redraw);
  window.addEventListener("beforeprint", function () { drawn.forEach(draw); });
})();
