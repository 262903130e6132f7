"use strict";
(function () {
  const SYMBOLS = { complete: "circle", pruned: "triangle", running: "emptyCircle" };
  const SHADES = { complete: "c0", pruned: "c1", running: "c7" };
  const SLICE = { light: ["#c3c7d1", "#00224e"], dark: ["#4a5160", "#fee838"] };  // ends of cividis, or near them
  const KEPT_FAILED = 50;
  const { colour, cut, short } = hexloop;
  let data = hexloop.data();
  if (!data.trials) return;

  function chosen() {
    const box = document.getElementById("objective-of");
    return data.trials.objectives[box ? Number(box.value) : 0];
  }

  function isLogarithmic() {
    const box = document.getElementById("objective-logarithmic");
    return Boolean(box && box.checked);
  }

  function shownOn(axis, value) {
    return value !== null && (!(axis === "log") || value > 0);
  }

  function axisOf(name, type, more) {
    const soft = colour("soft");
    return { type: type, name: cut(name), scale: true, nameLocation: "middle", nameTextStyle: { color: soft },
             axisLine: { lineStyle: { color: soft } }, axisLabel: { color: soft, hideOverlap: true, formatter: function (value) { return cut(short(value)); } },
             splitLine: { lineStyle: { color: colour("line"), opacity: 0.5 } }, ...more };
  }

  function tooltip(words) {
    return hexloop.tooltip(words, { trigger: "item" });
  }

  function about(index) {
    const trials = data.trials;
    return [data.runs[index]].concat(trials.objectives.map(function (each) { return each.name + ": " + short(each.values[index]); }),
      trials.parameters.map(function (axis) { return axis.name + ": " + short(axis.values[index]); }));
  }

  function frame() {
    return { animation: false, backgroundColor: "transparent", textStyle: { color: colour("ink") },
             grid: { left: 24, right: 20, top: 16, bottom: 34, containLabel: true } };
  }

  function bestSoFar(objective, type) {
    let best = null;
    const points = [];
    objective.values.forEach(function (value, index) {
      if (data.trials.states[index] !== "complete" || !shownOn(type, value)) return;
      if (best === null || (objective.minimized ? value < best : value > best)) best = value;
      points.push([data.trials.numbers[index], best]);
    });
    return points;
  }

  function objectiveOption() {
    const trials = data.trials, objective = chosen(), type = isLogarithmic() ? "log" : "value";
    const failed = trials.numbers.filter(function (_, index) { return trials.states[index] === "failed"; });
    const dots = Object.keys(SYMBOLS).map(function (state) {
      return { type: "scatter", name: state, symbol: SYMBOLS[state], symbolSize: 10, color: colour(SHADES[state]), z: 4,
               data: trials.numbers.flatMap(function (number, index) {
                 const value = objective.values[index];
                 return trials.states[index] === state && shownOn(type, value) ? [{ value: [number, value], index: index }] : [];
               }) };
    });
    return {
      ...frame(),
      xAxis: axisOf("trial", "value", { nameGap: 26, minInterval: 1, splitLine: { show: false } }),
      yAxis: axisOf(objective.name, type, { nameLocation: "end", nameTextStyle: { align: "left", color: colour("soft") } }),
      grid: { left: 24, right: 20, top: 34, bottom: 34, containLabel: true },
      tooltip: tooltip(function (found) {
        return found.data.index === undefined ? ["best so far: " + short(found.value[1])] : about(found.data.index);
      }),
      series: [{ type: "line", name: "best so far", step: "end", showSymbol: false, symbolSize: 4, color: colour("c2"), z: 3,
                 lineStyle: { width: 2 }, data: bestSoFar(objective, type),
                 markLine: failed.length === 0 ? undefined : {
                   silent: true, symbol: "none", animation: false, lineStyle: { color: colour("c3"), type: "dotted" },
                   label: { formatter: "\u2716", color: colour("c3") },
                   data: failed.slice(0, KEPT_FAILED).map(function (number) { return { xAxis: number }; }) } }].concat(dots)
    };
  }

  function frontOption() {
    const trials = data.trials, one = trials.objectives[0], other = trials.objectives[1];
    const points = trials.numbers.flatMap(function (number, index) {
      const place = [one.values[index], other.values[index]];
      if (trials.states[index] !== "complete" || place.includes(null)) return [];
      return [{ value: place, index: index, itemStyle: { color: colour(trials.front.includes(number) ? "c2" : "c7") } }];
    });
    return { ...frame(), xAxis: axisOf(one.name, "value", { nameGap: 26 }), yAxis: axisOf(other.name, "value", { nameLocation: "end" }),
             grid: { left: 24, right: 20, top: 34, bottom: 34, containLabel: true },
             tooltip: tooltip(function (found) { return about(found.data.index); }),
             series: [{ type: "scatter", symbolSize: 10, data: points }] };
  }

  function sliceOption(axis) {
    const trials = data.trials, objective = chosen(), type = isLogarithmic() ? "log" : "value";
    const last = Math.max(trials.numbers.length - 1, 1);
    const points = trials.numbers.flatMap(function (number, index) {
      const value = objective.values[index], at = axis.values[index];
      if (at === null || !shownOn(type, value) || trials.states[index] === "failed") return [];
      return [{ value: [at, value, index], index: index, symbol: SYMBOLS[trials.states[index]] }];
    });
    return { ...frame(),
             xAxis: axisOf(axis.name, axis.type, { nameGap: 26, data: axis.type === "category" ? axis.categories : undefined }),
             yAxis: axisOf(objective.name, type, { nameLocation: "end", nameTextStyle: { align: "left", color: colour("soft") } }),
             grid: { left: 24, right: 20, top: 34, bottom: 34, containLabel: true },
             visualMap: { show: false, type: "continuous", min: 0, max: last, dimension: 2,
                          inRange: { color: hexloop.isDark() ? SLICE.dark : SLICE.light } },
             tooltip: tooltip(function (found) { return about(found.data.index); }),
             series: [{ type: "scatter", symbolSize: 9, data: points }] };
  }

  function draw() {
    const options = { "objective-chart": objectiveOption, "front-chart": frontOption };
    data.trials.parameters.forEach(function (axis, number) { options["slice-" + number] = function () { return sliceOption(axis); }; });
    Object.keys(options).forEach(function (name) {
      const place = document.getElementById(name);
      if (place) hexloop.plotIn(place).setOption(options[name](), true);
    });
  }

  ["objective-of", "objective-logarithmic"].forEach(function (name) {
    const box = document.getElementById(name);
    if (box) box.addEventListener("change", draw);
  });
  hexloop.onData(function (fresh) {
    if (!fresh.trials) return;
    data = fresh;
    draw();
  });
  hexloop.onTheme(draw);
  draw();
})();
