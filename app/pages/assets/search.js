"use strict";
(function () {
  const CELLS = ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"];  // cividis
  const LINES = { light: ["#00224e", "#4a5a80", "#8a8678", "#b08f00"], dark: ["#5b8def", "#9aa3b5", "#c9bd8a", "#fee838"] };
  const MOST_CELLS = 12, PARTS = 6;
  const { colour, isDark, plotIn } = hexloop;
  const places = ["parallel", "heat-map"].map(function (name) { return document.getElementById(name); });
  let { search, runs: labels } = hexloop.data();
  if (!search || !places[0]) return;

  function short(value) {
    return hexloop.short(value, 4);
  }

  function cut(text) {
    return hexloop.cut(text, 18);
  }

  function chosen(name, axes) {
    const box = document.getElementById(name);
    return axes[box ? Number(box.value) : 0];
  }

  function scale(values) {
    const numbers = values.filter(function (value) { return typeof value === "number"; });
    return { min: Math.min.apply(null, numbers), max: Math.max.apply(null, numbers) };
  }

  function shaded(cells) {  // texts are black on bright cells and white on dark ones
    const range = scale(cells.map(function (cell) { return cell[2]; }));
    return cells.map(function (cell) {
      const isDark = (cell[2] - range.min) / (range.max - range.min) < 0.5;
      return { value: cell, label: { color: isDark ? "#ffffff" : "#000000" } };
    });
  }

  function legend(name, values, colours, dimension) {
    const range = scale(values);
    return { type: "continuous", calculable: false, ...range, dimension: dimension, inRange: { color: colours },
             orient: "horizontal", left: "center", bottom: 0, itemHeight: 140, itemWidth: 12, precision: 6,
             text: [short(range.max), cut(name) + "  " + short(range.min)], textStyle: { color: colour("ink") } };
  }

  function parallel() {
    const axes = search.arguments.concat(search.results), shown = chosen("colour-of", search.results);
    const soft = colour("soft");
    return {
      animation: false, backgroundColor: "transparent", textStyle: { color: colour("ink") },
      parallel: { left: 84, right: 72, top: 72, bottom: 56,
                  parallelAxisDefault: { nameLocation: "end", nameGap: 14, nameTextStyle: { color: colour("ink"), fontSize: 11 },
                                         axisLine: { lineStyle: { color: soft } }, axisTick: { lineStyle: { color: soft } },
                                         axisLabel: { color: soft, fontSize: 10, formatter: function (value) { return cut(short(value)); } } } },
      parallelAxis: axes.map(function (axis, number) {
        return { dim: number, name: cut(axis.name), type: axis.type, scale: true, inverse: false, nameRotate: axes.length > 6 ? 20 : 0,
                 data: axis.type === "category" ? axis.categories : undefined };
      }),
      visualMap: legend(shown.name, shown.values, isDark() ? LINES.dark : LINES.light, axes.indexOf(shown)),
      tooltip: hexloop.tooltip(function (found) {
        return [labels[found.dataIndex]].concat(axes.map(function (axis, number) {
          return axis.name + ": " + short(found.value[number]);
        }));
      }),
      series: [{ type: "parallel", smooth: false, lineStyle: { width: 2.5, opacity: 0.85 }, inactiveOpacity: 0.05,
                 data: labels.map(function (_, run) {
                   const values = axes.map(function (axis) { return axis.values[run] === null ? "-" : axis.values[run]; });
                   const state = search.states[run];
                   return state === undefined || state === "complete" ? values
                     : { value: values, lineStyle: { type: state === "failed" ? "dotted" : "dashed" } };
                 }) }]
    };
  }

  function words(axis) {
    const found = Array.from(new Set(axis.values.filter(function (value) { return value !== null; })));
    return found.sort(function (one, other) { return typeof one === "number" ? one - other : String(one).localeCompare(other); });
  }

  function grouped(axis) {  // the values of an axis, or of one with many numbers, equal parts of its range
    const found = words(axis);
    if (axis.type === "category" || found.length <= MOST_CELLS) {
      return { names: found.map(short), of: function (value) { return found.indexOf(value); } };
    }
    const bend = axis.type === "log" ? Math.log : Number, unbend = axis.type === "log" ? Math.exp : Number;
    const start = bend(found[0]), size = (bend(found[found.length - 1]) - start) / PARTS;
    const names = Array.from({ length: PARTS }, function (_, part) {
      return short(unbend(start + part * size)) + " to " + short(unbend(start + (part + 1) * size));
    });
    return { names: names, of: function (value) { return Math.min(Math.floor((bend(value) - start) / size), PARTS - 1); } };
  }

  function heat() {
    const across = chosen("heat-x", search.arguments), down = chosen("heat-y", search.arguments);
    const measured = chosen("heat-value", search.results), columns = grouped(across), rows = grouped(down), cells = new Map();
    measured.values.forEach(function (value, run) {
      if (typeof value !== "number" || across.values[run] === null || down.values[run] === null) return;
      const key = columns.of(across.values[run]) + "," + rows.of(down.values[run]);
      cells.set(key, (cells.get(key) || []).concat([value]));
    });
    const data = Array.from(cells, function (cell) {
      const place = cell[0].split(",").map(Number);
      return place.concat([cell[1].reduce(function (sum, value) { return sum + value; }, 0) / cell[1].length, cell[1].length]);
    });
    const axis = { type: "category", splitArea: { show: true, areaStyle: { color: [colour("band"), colour("paper")] } },
                   axisLine: { lineStyle: { color: colour("soft") } }, nameLocation: "middle", nameTextStyle: { color: colour("ink") } };
    const label = { color: colour("soft"), fontSize: 10, hideOverlap: true };
    const few = data.length <= 60 && columns.names.length <= 8;
    return {
      animation: false, backgroundColor: "transparent", textStyle: { color: colour("ink") },
      grid: { left: 44, right: 16, top: 12, bottom: 84, containLabel: true },
      xAxis: { ...axis, name: across.name, nameGap: 30, data: columns.names, axisLabel: label },
      yAxis: { ...axis, name: cut(down.name), nameGap: 20 + 5.5 * Math.max.apply(null, rows.names.map(function (each) { return each.length; })), data: rows.names, axisLabel: label },
      visualMap: legend(measured.name, data.map(function (cell) { return cell[2]; }), CELLS, 2),
      tooltip: hexloop.tooltip(function (found) {
        const cell = found.value;
        return [across.name + ": " + columns.names[cell[0]], down.name + ": " + rows.names[cell[1]],
                measured.name + ": " + short(cell[2]) + (cell[3] > 1 ? " (mean of " + cell[3] + " " + search.noun + "s)" : "")];
      }),
      series: [{ type: "heatmap", data: shaded(data), itemStyle: { borderColor: colour("paper"), borderWidth: 1 },
                 label: { show: few, fontSize: 11, formatter: function (found) { return short(found.value[2]); } } }]
    };
  }

  function draw() {
    [parallel, heat].forEach(function (option, number) {
      if (places[number]) plotIn(places[number]).setOption(option(), true);
    });
  }

  ["colour-of", "heat-x", "heat-y", "heat-value"].forEach(function (name) {
    const box = document.getElementById(name);
    if (box) box.addEventListener("change", draw);
  });
  hexloop.onData(function (fresh) {
    if (!fresh.search) return;
    search = fresh.search;
    labels = fresh.runs;
    draw();
  });
  hexloop.onTheme(draw);
  draw();
})();
