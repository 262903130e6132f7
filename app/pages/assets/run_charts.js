"use strict";
/* Charts below the list of the runs: their curves, a scatter of two values, and parallel coordinates. */
(function () {
  const MOST_CURVES = 20, OPENED = 200, MOST_AXES = 8, MOST_GROUP_VALUES = 200, SETTLE = 150, BETWEEN = 2000;
  const { el } = hexloop;

  function withLibrary(act) {
    if (window.echarts) { act(); return; }
    let script = document.getElementById("chart-library");
    if (!script) {
      script = el("script", { id: "chart-library", src: "assets/echarts.min.js" });
      document.body.append(script);
    }
    script.addEventListener("load", act);
  }

  /* The curves of the chosen runs, or of the first ones in the table, as the board has them.
     rows: of these runs, at most so many. chosen, shown: how many are chosen, and in the table. */
  hexloop.runCurves = function (list) {
    const words = el("span", {}), share = el("a", { class: "share", hidden: true }, "Share as one HTML file"), place = el("div", { id: "curves" });
    const box = el("details", { id: "run-curves", on: { toggle: follow } }, el("summary", {}, "Curves of these runs"),
                   el("p", { class: "note" }, words, " ", share), place);
    let isNear = false, isFirst = true, drawn = "", shape = "", timer = 0, asked = 0;
    new IntersectionObserver(function (found) { isNear = found[0].isIntersecting; follow(); }, { rootMargin: "600px" }).observe(box);

    function follow() {
      if (isFirst && list.isComplete()) {
        isFirst = false;
        box.open = list.count() <= OPENED;  // the curves of many long runs take time
      }
      if (!box.open || !isNear || !list.isComplete()) return;
      const rows = list.rows().slice(0, MOST_CURVES), wanted = JSON.stringify(rows.map(function (row) { return [row.folder, row.seen, row.step]; }));
      clearTimeout(timer);
      if (wanted === drawn) {
        if (shape) words.textContent = list.words(rows.length);  // others may be chosen beyond these
        return;
      }
      timer = setTimeout(function () { ask(rows, wanted); }, Math.max(SETTLE, asked + BETWEEN - Date.now()));
    }

    async function ask(rows, wanted) {
      asked = rows.length === 0 ? 0 : Date.now();
      drawn = wanted;
      const search = "?" + new URLSearchParams(rows.map(function (row) { return ["run", row.folder]; }));
      try {
        const answer = rows.length ? await fetch("curves" + search, { cache: "no-store" }) : null;
        const fresh = !answer ? { sections: { curves: "" }, document: { runs: [], charts: [], axes: [] } }
          : answer.ok ? await answer.json() : null;
        if (drawn !== wanted) return;
        if (!fresh) { shape = ""; words.textContent = "The curves cannot be shown: " + (await answer.text()); return; }
        withLibrary(function () { if (drawn === wanted) show(fresh, search, rows.length); });
      } catch (error) {
        words.textContent = "The curves cannot be shown: the board does not answer.";
        drawn = "";
      }
    }

    function show(fresh, search, number) {
      const next = JSON.stringify([search, fresh.document.runs, fresh.document.charts.map(function (chart) { return chart.title; })]);
      words.textContent = list.words(number);
      share.hidden = number === 0;
      share.href = "report" + search;
      if (next === shape) {
        document.dispatchEvent(new CustomEvent("report-data", { detail: fresh.document }));
        return;
      }
      shape = next;
      place.innerHTML = fresh.sections.curves;  // the server has escaped it
      hexloop.showCurves(fresh.document, search);
      place.dataset.runs = String(number);
    }

    return { element: box, follow: follow };
  };

  /* Charts of the values in the table. list: its columns and rows, and what is shown of them. */
  hexloop.runCharts = function (list) {
    const box = el("details", { id: "run-charts", on: { toggle: draw } }, el("summary", {}, "Charts of these runs"),
      el("figure", { class: "plot" }, el("figcaption", {}, el("strong", {}, "Scatter"), " ", picker("scatter-x"), picker("scatter-y"), picker("scatter-colour")),
         el("div", { class: "chart tall", id: "scatter", role: "img", "aria-label": "Two values of each run" })),
      el("figure", { class: "plot" }, el("figcaption", {}, el("strong", {}, "Parallel coordinates"), " of the columns that are shown; drag along an axis to choose runs"),
         el("div", { class: "wide", tabindex: "0" }, el("div", { class: "chart tall", id: "run-parallel", role: "img", "aria-label": "Shown values of each run on parallel axes" }))));

    function picker(identifier) {
      return el("label", { class: "control" }, identifier.slice(8) + " ", el("select", { id: identifier, on: { change: draw } }));
    }

    /* Fills the menus with the columns that there are. */
    function fill() {
      const own = list.measured(), result = own.find(function (column) { return column.kind === "metric"; });
      const argument = own.find(function (column) { return column.kind === "argument"; });
      const first = { "scatter-x": argument || own[0], "scatter-y": result || own[0], "scatter-colour": null };
      Object.entries(first).forEach(function (each) {
        const menu = document.getElementById(each[0]), before = menu.value;
        const wanted = own.some(function (column) { return column.name === before; }) ? before : each[1] && each[1].name;
        const none = each[0] === "scatter-colour" ? [el("option", { value: "", selected: !wanted }, "state")] : [];
        menu.replaceChildren(...none, ...own.map(function (column) {
          return el("option", { value: column.name, selected: column.name === wanted }, column.name);
        }));
      });
    }

    function draw() {
      if (box.open && list.measured().length) withLibrary(function () {
        const rows = list.rows();
        drawScatter(rows, list);
        drawParallel(rows, list);
      });
    }

    return { element: box, draw: draw, fill: fill };
  };

  function axisOf(column, rows) {
    const values = rows.map(function (row) { return row[column.field]; }).filter(function (value) { return value !== null && value !== undefined; });
    const soft = hexloop.colour("soft"), line = { lineStyle: { color: soft } };
    const common = { name: hexloop.cut(column.name, 28), nameTextStyle: { color: soft }, axisLine: line, axisLabel: { color: soft, hideOverlap: true } };
    if (!values.length || values.some(function (value) { return typeof value !== "number"; })) {
      const names = Array.from(new Set(values.map(String))).sort().slice(0, MOST_GROUP_VALUES);
      return { ...common, type: "category", data: names, of: function (value) { return value === null || value === undefined ? null : String(value); } };
    }
    const low = Math.min(...values.slice(0, 1e5)), high = Math.max(...values.slice(0, 1e5));
    const type = low > 0 && high / low > 50 ? "log" : "value";
    return { ...common, type: type, scale: true, of: function (value) { return value; },
             axisLabel: { ...common.axisLabel, formatter: column.field === "seen" || column.field === "started" ? moment : function (value) { return hexloop.short(value); } } };
  }

  function drawScatter(rows, list) {
    const named = ["scatter-x", "scatter-y", "scatter-colour"].map(function (name) { return list.named(document.getElementById(name).value); });
    const x = axisOf(named[0], rows), y = axisOf(named[1], rows), colour = named[2];
    const rule = hexloop.colour("line"), split = { splitLine: { lineStyle: { color: rule, opacity: 0.5 } } };
    const points = rows.map(function (row) {
      return { value: [x.of(row[named[0].field]), y.of(row[named[1].field]), colour ? row[colour.field] : row.state], folder: row.folder };
    }).filter(function (point) { return point.value[0] !== null && point.value[1] !== null && point.value[1] !== undefined; });
    const shades = points.map(function (point) { return point.value[2]; }).filter(Number.isFinite);
    const groups = Array.from(new Set(points.map(function (point) { return String(point.value[2]); }))).sort().slice(0, 8);
    const numeric = colour && shades.length > 0;
    const series = numeric || !points.length ? [{ type: "scatter", name: "runs", data: points, symbolSize: 9, itemStyle: { opacity: 0.8 } }]
      : groups.map(function (group, number) {
        return { type: "scatter", name: group, color: hexloop.colourOf(number), symbolSize: 9, itemStyle: { opacity: 0.8 },
                 data: points.filter(function (point) { return String(point.value[2]) === group; }) };
      });
    const plot = hexloop.plotIn(document.getElementById("scatter"));
    plot.setOption({
      animation: false, backgroundColor: "transparent", textStyle: { color: hexloop.colour("ink") },
      grid: { left: 16, right: 24, top: 40, bottom: 34, containLabel: true },
      legend: numeric ? undefined : { top: 0, textStyle: { color: hexloop.colour("ink") } },
      xAxis: { ...x, ...split, nameLocation: "middle", nameGap: 28 }, yAxis: { ...y, ...split, nameLocation: "end" },
      visualMap: numeric ? [{ type: "continuous", dimension: 2, min: Math.min(...shades), max: Math.max(...shades), orient: "horizontal", top: 0,
                              right: 24, itemHeight: 90, text: [hexloop.cut(colour.name)], textStyle: { color: hexloop.colour("ink") },
                              inRange: { color: hexloop.isDark() ? ["#35608d", "#22a884", "#fde725"] : ["#440154", "#21918c", "#c8b000"] } }] : [],
      tooltip: hexloop.tooltip(function (found) {
        return [found.data.folder, named[0].name + ": " + hexloop.short(found.value[0]), named[1].name + ": " + hexloop.short(found.value[1]),
                (colour ? colour.name : "state") + ": " + hexloop.short(found.value[2])];
      }),
      series: series
    }, true);
    plot.off("click");
    plot.on("click", function (found) { if (found.data && found.data.folder) location.href = list.address(found.data.folder); });
  }

  function drawParallel(rows, list) {
    const own = list.measured().filter(function (column) { return list.isShown(column) && !["seen", "percent", "step", "started"].includes(column.field); });
    const ordered = own.filter(function (column) { return column.kind === "argument"; }).slice(0, MOST_AXES)
      .concat(own.filter(function (column) { return column.kind === "metric"; }).slice(0, MOST_AXES));
    const place = document.getElementById("run-parallel"), plot = hexloop.plotIn(place);
    if (ordered.length < 2 || !rows.length) { plot.clear(); return; }
    const axes = ordered.map(function (column) { return axisOf(column, rows); });
    const last = ordered[ordered.length - 1], values = rows.map(function (row) { return row[last.field]; }).filter(Number.isFinite);
    plot.setOption({
      animation: false, backgroundColor: "transparent", textStyle: { color: hexloop.colour("ink") },
      parallel: { left: 40, right: 60, top: 40, bottom: 24 },
      parallelAxis: axes.map(function (axis, number) { return { ...axis, dim: number, nameTextStyle: { color: hexloop.colour("ink"), fontSize: 11 } }; }),
      visualMap: values.length ? [{ type: "continuous", show: false, dimension: axes.length - 1, min: Math.min(...values), max: Math.max(...values),
                                    inRange: { color: hexloop.isDark() ? ["#56b4e9", "#f0e442"] : ["#0072b2", "#d55e00"] } }] : [],
      tooltip: hexloop.tooltip(function (found) { return [found.name]; }),
      series: [{ type: "parallel", lineStyle: { width: 1.5, opacity: rows.length > 200 ? 0.15 : 0.6 }, inactiveOpacity: 0.03, activeOpacity: 0.9,
                 data: rows.map(function (row) {
                   return { name: row.folder, value: ordered.map(function (column, number) {
                     const value = axes[number].of(row[column.field]);
                     return value === null || value === undefined ? "-" : value;
                   }) };
                 }) }]
    }, true);
  }
})();
