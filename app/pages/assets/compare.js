"use strict";
/* On an exported page: shows the curves of the runs that the address names. */
(function () {
  const folders = hexloop.data().folders, named = new URLSearchParams(location.search).getAll("run");
  if (!folders || !named.length) return;
  document.querySelectorAll(".run-shown").forEach(function (box) {
    if (named.includes(folders[Number(box.dataset.run)]) || !box.checked) return;
    box.click();
  });
})();

/* Mean and band of a value over groups of runs: by default over repetitions that differ in their seeds. */
(function () {
  const place = document.getElementById("means-chart");
  let means = hexloop.data().means;
  if (!place || !means) return;
  const DASHES = ["solid", "dashed", "dotted"];

  function chosen(identifier) {
    return Number(document.getElementById(identifier).value) || 0;
  }

  /* For each group: mean, lower and upper end of the band, and the number of runs, in each part of the steps. */
  function bandsOf(value, grouping, band) {
    const groups = new Map();
    grouping.groups.forEach(function (name, run) { groups.set(name, (groups.get(name) || []).concat([value.runs[run]])); });
    return Array.from(groups, function (group) {
      const points = value.steps.map(function (step, part) {
        const found = group[1].map(function (run) { return run[part]; }).filter(Number.isFinite);
        if (!found.length) return null;
        const mean = found.reduce(function (sum, each) { return sum + each; }, 0) / found.length;
        const squares = found.reduce(function (sum, each) { return sum + (each - mean) * (each - mean); }, 0);
        const deviation = found.length > 1 ? Math.sqrt(squares / (found.length - 1)) : 0;
        const ends = band === 0 ? [mean - deviation, mean + deviation] : [Math.min.apply(null, found), Math.max.apply(null, found)];
        return [step, mean, ends[0], ends[1], found.length];
      }).filter(Boolean);
      return { name: group[0], runs: group[1].length, points: points };
    });
  }

  function seriesOf(group, number) {
    const shade = hexloop.colourOf(number), name = group.name + (group.runs > 1 ? " (" + group.runs + " runs)" : "");
    const stack = "band " + number;
    const hidden = { type: "line", color: shade, stack: stack, stackStrategy: "all", symbol: "none", silent: true, lineStyle: { opacity: 0 },
                     tooltip: { show: false }, emphasis: { disabled: true }, name: name };
    return [
      { ...hidden, data: group.points.map(function (point) { return [point[0], point[2]]; }) },
      { ...hidden, areaStyle: { color: shade, opacity: 0.18 }, data: group.points.map(function (point) { return [point[0], point[3] - point[2]]; }) },
      { type: "line", name: name, color: shade, symbol: "circle", showSymbol: group.points.length < 40, symbolSize: 5, emphasis: { disabled: true },
        lineStyle: { width: 2, type: DASHES[Math.floor(number / hexloop.COLOURS) % DASHES.length] },
        data: group.points.map(function (point) { return { value: [point[0], point[1]], band: point }; }) }
    ];
  }

  function draw() {
    const value = means.values[chosen("means-of")], grouping = means.groupings[chosen("means-by")];
    if (!value || !grouping) return;
    const soft = hexloop.colour("soft"), ink = hexloop.colour("ink"), groups = bandsOf(value, grouping, chosen("means-band"));
    const axis = { axisLine: { lineStyle: { color: soft } }, splitLine: { lineStyle: { color: hexloop.colour("line"), opacity: 0.5 } },
                   nameTextStyle: { color: soft } };
    hexloop.plotIn(place).setOption({
      animation: false, backgroundColor: "transparent", textStyle: { color: ink },
      legend: { type: "scroll", top: 0, textStyle: { color: ink }, pageTextStyle: { color: ink } },
      grid: { left: 8, right: 20, top: 40, bottom: 30, containLabel: true },
      xAxis: { type: "value", name: "step", nameLocation: "middle", nameGap: 26, min: "dataMin", max: "dataMax", ...axis,
               axisLabel: { color: soft, hideOverlap: true } },
      yAxis: { type: "value", scale: true, ...axis, axisLabel: { color: soft, formatter: function (each) { return hexloop.short(each); } } },
      dataZoom: [{ type: "inside", zoomOnMouseWheel: "shift", moveOnMouseWheel: false, filterMode: "none" }],
      tooltip: hexloop.tooltip(function (found) {
        const shown = found.filter(function (each) { return each.data.band; });
        return ["step " + (shown.length ? shown[0].value[0].toLocaleString("en") : "")].concat(shown.map(function (each) {
          const point = each.data.band;
          return each.seriesName + ": " + hexloop.short(point[1]) + (point[4] > 1 ? ", " + hexloop.short(point[2]) + " to " + hexloop.short(point[3]) : "");
        }));
      }, { trigger: "axis" }),
      series: groups.flatMap(seriesOf)
    }, true);
  }

  ["means-of", "means-by", "means-band"].forEach(function (name) {
    document.getElementById(name).addEventListener("change", draw);
  });
  hexloop.onData(function (fresh) {
    if (fresh.means && fresh.means.values) { means = fresh.means; draw(); }
  });
  hexloop.onTheme(draw);
  draw();
})();
