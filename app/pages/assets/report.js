"use strict";
(function () {
  const { colour, colourOf, short } = hexloop;
  let data = hexloop.data(), query = location.search;
  const SYMBOLS = ["circle", "rect", "triangle", "diamond", "roundRect", "pin", "arrow", "emptyCircle"];
  const DASHES = ["solid", "dashed", "dotted"];
  const SHOWN_SYMBOLS = 60, KEPT_GAPS = 50, PICTURE = { width: 960, height: 540 }, WAIT = 150;
  const hidden = new Set(), drawn = new Map();
  const isLive = "updates" in document.body.dataset, canDrag = !window.matchMedia("(pointer: coarse)").matches;
  const kept = "hexloop" + location.pathname + location.search;
  let waiting = false;
  const state = { axis: "step", smoothing: 0, together: true, ...recalled() };

  function recalled() {
    try { return JSON.parse(sessionStorage.getItem(kept)) || {}; } catch (error) { return {}; }
  }

  function remember() {
    try { sessionStorage.setItem(kept, JSON.stringify(state)); } catch (error) { /* it is only a convenience */ }
  }

  function label(curve, chart) {
    const several = new Set(chart.curves.map(function (each) { return each.name; })).size > 1;
    const run = data.runs[curve.run];
    if (data.runs.length === 1) return curve.name;
    return several ? run + ": " + curve.name : run;
  }

  function axesOf(curve) {
    return (data.axes && data.axes[curve.run]) || {};
  }

  function axisOf(chart) {  // the chosen one, or steps if no curve has it
    return chart.curves.some(function (curve) { return curves.has(curve, state.axis, axesOf(curve)); }) ? state.axis : "step";
  }

  function visible(entry) {
    const axis = axisOf(entry.chart);
    return entry.chart.curves.filter(function (curve) {
      return !hidden.has(curve.run) && curves.has(curve, axis, axesOf(curve));
    });
  }

  function pointsOf(entry, curve) {
    const fine = entry.fine && entry.fine.get(curve.run + "\0" + curve.name);
    const shown = fine ? { ...curve, points: curves.refined(curve.points, fine) } : curve;
    const points = curves.over(shown, axisOf(entry.chart), axesOf(curve));
    return entry.logarithmic ? points.filter(function (point) { return point[1] > 0; }) : points;
  }

  function widthOf(curve) {  // of few runs, equal curves are seen beneath each other
    return data.runs.length > 4 ? 1.7 : 2 + data.runs.length - 1 - curve.run;
  }

  function seriesOf(entry, curve) {
    const chart = entry.chart, one = data.runs.length === 1, shade = colourOf(one ? curve.dash : curve.run);
    const all = pointsOf(entry, curve), axis = axisOf(chart);
    const cut = function (points) { return entry.range ? curves.within(points, ...entry.range) : points; };
    const points = cut(all), gaps = curve.gaps.slice(0, KEPT_GAPS);
    const line = {
      type: "line", name: label(curve, chart), color: shade, symbol: SYMBOLS[curve.run % SYMBOLS.length], symbolSize: 6,
      showSymbol: points.length <= SHOWN_SYMBOLS, lineStyle: { width: widthOf(curve), type: DASHES[curve.dash % DASHES.length] },
      z: 3 + chart.curves.indexOf(curve), emphasis: { disabled: true },
      data: state.smoothing > 0 ? cut(curves.smooth(all, state.smoothing, entry.distance)) : points,
      markLine: gaps.length === 0 ? undefined : {
        silent: true, symbol: "none", animation: false, lineStyle: { color: shade, type: "dotted" },
        label: { formatter: "not finite", color: colour("soft") },
        data: curves.over({ ...curve, points: gaps.map(function (step) { return [step, 0]; }) }, axis, axesOf(curve))
                    .map(function (point) { return { xAxis: point[0] }; })
      }
    };
    if (state.smoothing === 0) return [line];
    return [{ ...line, markLine: undefined, data: points, showSymbol: false, silent: true, name: line.name + " (as logged)",
              lineStyle: { width: 1, opacity: 0.35, type: line.lineStyle.type }, tooltip: { show: false } }, line];
  }

  function extent(entry) {  // of all curves of a chart over its axis
    let first = Infinity, last = -Infinity;
    entry.distance = Infinity;  // all curves of a chart are smoothed over the same distance
    visible(entry).forEach(function (curve) {
      const points = pointsOf(entry, curve);
      if (points.length === 0) return;
      entry.distance = Math.min(entry.distance, curves.spacing(points, curve.count));
      first = Math.min(first, points[0][0]);
      last = Math.max(last, points[points.length - 1][0]);
    });
    return [first, last];
  }

  function horizontal(entry, common) {
    const axis = axisOf(entry.chart), whole = extent(entry), [first, last] = entry.range || [axis === "time" ? 0 : whole[0], whole[1]];
    const ticks = axis === "time" && last - first > 6 ? { customValues: curves.ticks(first, last) } : {};
    return { type: "value", name: curves.WORDS[axis], nameLocation: "middle", nameGap: 26, nameTextStyle: { color: colour("soft") },
             min: Number.isFinite(first) ? first : undefined, max: Number.isFinite(last) ? last : undefined, ...common,
             axisTick: ticks, axisLabel: { ...common.axisLabel, ...ticks, showMinLabel: !entry.range, showMaxLabel: !entry.range,
                          formatter: function (value) {
                            return axis === "time" ? hexloop.duration(value) : Number(value.toPrecision(6)).toLocaleString("en");
                          } } };
  }

  function optionOf(entry) {
    const chart = entry.chart, soft = colour("soft");
    const common = { axisLine: { lineStyle: { color: soft } }, axisLabel: { color: soft, hideOverlap: true },
                     splitLine: { lineStyle: { color: colour("line"), opacity: 0.5 } } };
    const given = function (value) { return Number.isFinite(value) && !(entry.logarithmic && value <= 0) ? value : undefined; };
    return {
      animation: false, backgroundColor: "transparent", textStyle: { color: colour("ink") },
      grid: { left: 8, right: 20, top: 16, bottom: 30, containLabel: true },
      xAxis: horizontal(entry, common),
      yAxis: { type: entry.logarithmic ? "log" : "value", scale: true, min: given(entry.lowest), max: given(entry.highest), ...common,
               axisLabel: { color: soft, hideOverlap: true, formatter: function (value) { return hexloop.withUnit(value, chart.unit); } } },
      tooltip: hexloop.tooltip(function (found) { return words(entry, found); }, { trigger: "axis" }),
      toolbox: { show: false },  // a brush would show one
      brush: canDrag ? { toolbox: [], xAxisIndex: 0, throttleType: "debounce", throttleDelay: 0,
                          brushStyle: { color: colour("line"), opacity: 0.4, borderColor: soft } } : undefined,
      series: visible(entry).flatMap(function (curve) { return seriesOf(entry, curve); })
    };
  }

  function words(entry, found) {
    const logged = found.filter(function (each) { return each.value && !(each.data && each.data.edge); });
    const lines = logged.map(function (each) { return each.seriesName + ": " + hexloop.withUnit(each.value[1], entry.chart.unit); });
    return [logged.length ? curves.place(axisOf(entry.chart), logged[0].value[0]) : ""].concat(lines);
  }

  function draw(entry) {
    if (!entry.isSeen) {
      entry.isStale = true;
      return;
    }
    entry.isStale = false;
    if (!entry.plot) {
      entry.plot = hexloop.plotIn(entry.place);
      entry.plot.on("brushEnd", function (event) {
        const range = event.areas.length ? event.areas[0].coordRange : null;
        if (range && range[1] > range[0]) zoomTo(entry, range);
      });
    }
    entry.plot.setOption(optionOf(entry), true);
    if (canDrag) {  // a drag chooses a range
      const brush = { brushType: "lineX", brushMode: "single" };
      entry.plot.dispatchAction({ type: "takeGlobalCursor", key: "brush", brushOption: brush });
    }
  }

  function redraw() {
    drawn.forEach(draw);
  }

  function soon() {  // once a frame, however often a slider moves
    if (!waiting) requestAnimationFrame(function () {
      waiting = false;
      redraw();
    });
    waiting = true;
  }

  function zoomTo(entry, range) {  // null shows all
    const axis = axisOf(entry.chart);
    drawn.forEach(function (each) {
      if (each !== entry && !(state.together && axisOf(each.chart) === axis)) return;
      each.range = range;
      each.fine = null;
      draw(each);
      refine(each);
    });
    offerAll();
  }

  function offerAll() {
    const button = document.getElementById("show-all");
    if (button) button.hidden = !Array.from(drawn.values()).some(function (entry) { return entry.range; });
  }

  function zoom(entry, factor, around) {
    const [first, last] = extent(entry), [from, to] = entry.range || [first, last];
    const at = around === undefined ? (from + to) / 2 : around;
    const range = [Math.max(at - (at - from) * factor, first), Math.min(at + (to - at) * factor, last)];
    zoomTo(entry, range[0] <= first && range[1] >= last || !(range[1] > range[0]) ? null : range);
  }

  function refine(entry) {  // the board has the points between those of the page
    clearTimeout(entry.timer);
    const cut = visible(entry).filter(function (curve) { return !curve.times && curve.count > curve.points.length; });
    if (!isLive || !entry.range || !entry.isSeen || cut.length === 0) return;
    const axis = axisOf(entry.chart), range = entry.range;
    const steps = cut.map(function (curve) {
      return range.map(function (place) { return curves.stepAt(place, axis, axesOf(curve)); });
    });
    const first = Math.max(Math.floor(Math.min(...steps.map(function (each) { return each[0]; }))), 0);
    const last = Math.max(Math.ceil(Math.max(...steps.map(function (each) { return each[1]; }))), first);
    entry.timer = setTimeout(async function () {
      const found = await asked(entry.chart, { from: first, to: last });
      if (!found || entry.range !== range) return;
      entry.fine = new Map(found.map(function (curve) { return [curve.run + "\0" + curve.name, curve.points]; }));
      draw(entry);
    }, WAIT);
  }

  async function asked(chart, more) {
    const wanted = new URLSearchParams(query);
    Object.entries({ chart: chart.title, ...more }).forEach(function (each) { wanted.set(each[0], each[1]); });
    try {
      const answer = await fetch("points?" + wanted, { cache: "no-store" });
      return answer.ok ? (await answer.json()).curves : null;
    } catch (error) {
      return null;
    }
  }

  function read(entry, move) {
    const shown = visible(entry), curve = shown[0];
    const points = curve ? pointsOf(entry, curve) : [];
    if (points.length === 0) return;
    const last = points.length - 1;
    entry.at = Math.min(Math.max(move(entry.at, last), 0), last);
    const place = points[entry.at][0];
    draw(entry);
    entry.plot.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: entry.at });
    const texts = shown.map(function (each) {
      const near = pointsOf(entry, each).reduce(function (best, point) {
        return best === null || Math.abs(point[0] - place) < Math.abs(best[0] - place) ? point : best;
      }, null);
      return near === null ? "" : label(each, entry.chart) + " " + hexloop.withUnit(near[1], entry.chart.unit) + " at " +
        curves.place(axisOf(entry.chart), near[0]);
    });
    entry.reading.textContent = texts.filter(Boolean).join("; ");
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
      else if (event.key === "0") zoomTo(entry, null);
      else return;
      event.preventDefault();
    });
    entry.place.addEventListener("focus", function () {
      if (!entry.reading.textContent) entry.reading.textContent = "Arrow keys read the values, + and - zoom, 0 shows all.";
    });
    entry.place.addEventListener("dblclick", function () { zoomTo(entry, null); });
    entry.place.addEventListener("wheel", function (event) {
      if (!event.shiftKey || !entry.plot) return;
      event.preventDefault();
      const around = entry.plot.convertFromPixel({ xAxisIndex: 0 }, event.offsetX);
      zoom(entry, (event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, around);
    }, { passive: false });
  }

  function pictureOf(entry) {  // with its title and the names of its curves
    const option = optionOf(entry), names = option.series.map(function (each) { return each.name; });
    return { ...option, brush: undefined, tooltip: undefined, backgroundColor: colour("paper"),
             grid: { left: 16, right: 28, top: names.length > 1 ? 84 : 52, bottom: 36, containLabel: true },
             title: { text: entry.chart.title, left: 16, top: 10, textStyle: { color: colour("ink"), fontSize: 16 } },
             legend: names.length > 1 ? { top: 42, left: 16, type: "scroll", textStyle: { color: colour("ink") },
                                          pageIconColor: colour("ink"), pageTextStyle: { color: colour("ink") } } : undefined };
  }

  const FILES = {
    png: function (entry) {
      const plot = echarts.init(document.createElement("div"), null, { renderer: "canvas", ...PICTURE });
      plot.setOption(pictureOf(entry));
      plot.renderToCanvas({ pixelRatio: 2, backgroundColor: colour("paper") }).toBlob(function (blob) {
        hexloop.download(nameOf(entry, "png"), blob);
        plot.dispose();
      }, "image/png");
    },
    svg: function (entry) {
      const plot = echarts.init(null, null, { renderer: "svg", ssr: true, ...PICTURE });
      plot.setOption(pictureOf(entry));
      hexloop.download(nameOf(entry, "svg"), plot.renderToSVGString(), "image/svg+xml");
      plot.dispose();
    },
    csv: async function (entry) {
      let shown = visible(entry);
      if (isLive && shown.some(function (curve) { return curve.count > curve.points.length; })) {
        const all = await asked(entry.chart, { all: 1 });
        if (all) shown = all.filter(function (curve) { return !hidden.has(curve.run); });
      }
      hexloop.download(nameOf(entry, "csv"), hexloop.csv(curves.rows(shown, data.runs, data.axes)), "text/csv");
      const left = visible(entry).reduce(function (sum, curve) { return sum + curve.count; }, 0) -
        shown.reduce(function (sum, curve) { return sum + curve.points.length; }, 0);
      if (left > 0) entry.reading.textContent = left.toLocaleString("en") + " points are not in this page, and so not in the file.";
    }
  };

  function nameOf(entry, ending) {
    const runs = data.runs.length === 1 ? data.runs[0] : data.runs.length + "-runs";
    return runs + "-" + entry.chart.title + "." + ending;
  }

  function menu(entry) {
    const box = document.querySelector("details.menu[data-chart='" + entry.chart.id + "']");
    if (!box) return;
    ["lowest", "highest"].forEach(function (end) {
      const field = box.querySelector("." + end);
      field.addEventListener("input", function () {
        entry[end] = field.value === "" ? NaN : Number(field.value);
        draw(entry);
      });
    });
    box.parentElement.addEventListener("click", function (event) {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.does === "wide") {
        const wide = entry.place.closest("figure").classList.toggle("whole");
        button.setAttribute("aria-pressed", String(wide));
        return;
      }
      if (button.dataset.does === "closer") zoom(entry, 0.5);
      else if (button.dataset.does === "further") zoom(entry, 2);
      else FILES[button.dataset.does](entry);
    });
  }

  const watcher = new IntersectionObserver(function (found) {
    found.forEach(function (each) {
      const entry = drawn.get(each.target.id);
      if (!entry || entry.place !== each.target) return;  // of runs that were drawn before
      entry.isSeen = each.isIntersecting;
      if (!entry.isSeen || !entry.isStale) return;
      draw(entry);
      refine(entry);
    });
  }, { rootMargin: "400px" });

  /* A control whose value is kept while the page is open, also if it is loaded again. */
  function control(name, event, set, get) {
    const box = document.getElementById(name);
    if (!box) return;
    set(box);
    box.addEventListener(event, function () {
      get(box);
      remember();
    });
  }

  /* Draws the charts of the data where the page has places for them, and follows the controls above them. */
  function start() {
    data.charts.forEach(function (chart) {
      const place = document.getElementById(chart.id);
      const entry = { chart: chart, place: place, reading: document.getElementById(chart.id + "-reading"), at: -1, logarithmic: false,
                      plot: null, range: null, fine: null, lowest: NaN, highest: NaN, isSeen: false, isStale: true, timer: 0 };
      drawn.set(chart.id, entry);
      keys(entry);
      menu(entry);
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
    control("axis", "change", function (box) {
      if (Array.from(box.options).some(function (each) { return each.value === state.axis; })) box.value = state.axis;
      else state.axis = "step";
    }, function (box) {
      state.axis = box.value;
      drawn.forEach(function (entry) { entry.range = entry.fine = null; });
      offerAll();
      redraw();
    });
    control("smoothing", "input", function (box) {
      box.value = String(Math.round(state.smoothing * 100));
      document.getElementById("smoothing-value").textContent = box.value;
    }, function (box) {
      state.smoothing = Number(box.value) / 100;
      document.getElementById("smoothing-value").textContent = box.value;
      soon();
    });
    control("together", "change", function (box) { box.checked = state.together; }, function (box) { state.together = box.checked; });
    control("show-all", "click", function () {}, function () {
      drawn.forEach(function (entry) { entry.range = entry.fine = null; });
      offerAll();
      redraw();
    });
    control("find", "input", function () {}, function (box) {
      const wanted = box.value.trim().toLowerCase();
      document.querySelectorAll("#curves .group").forEach(function (group) {
        const figures = Array.from(group.querySelectorAll("figure"));
        figures.forEach(function (figure) {
          figure.hidden = !figure.querySelector("figcaption strong").textContent.toLowerCase().includes(wanted);
        });
        group.hidden = figures.every(function (figure) { return figure.hidden; });
      });
    });
  }

  function closeMenus(except) {
    document.querySelectorAll("details.menu[open]").forEach(function (each) { if (each !== except) each.open = false; });
  }
  document.addEventListener("click", function (event) { closeMenus(event.target.closest("details.menu")); });
  document.addEventListener("keydown", function (event) {
    const open = event.key === "Escape" && document.querySelector("details.menu[open]");
    if (!open) return;
    closeMenus();
    open.querySelector("summary").focus();
  });

  /* Draws other runs than before, for which the page has got other places. search: names the runs in addresses. */
  hexloop.showCurves = function (fresh, search) {
    drawn.forEach(function (entry) {
      clearTimeout(entry.timer);
      watcher.unobserve(entry.place);
      if (entry.plot) hexloop.remove(entry.place);
    });
    drawn.clear();
    hidden.clear();
    data = fresh;
    query = search;
    start();
  };

  start();
  hexloop.onData(function (fresh) {
    if (!fresh.axes) return;  // of the list of the runs
    data.runs = fresh.runs;
    data.axes = fresh.axes;
    fresh.charts.forEach(function (chart) {
      const entry = drawn.get(chart.id);
      entry.chart = chart;
      draw(entry);
      refine(entry);
    });
  });
  hexloop.onTheme(redraw);
  window.addEventListener("beforeprint", function () {
    drawn.forEach(function (entry) {
      entry.isSeen = true;
      draw(entry);
    });
  });
})();
