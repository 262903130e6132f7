"use strict";
/* The media of runs: one panel for each name, with a slider over its steps. All texts are set as text. */
(function () {
  const SMALL = 160, CACHED = 200;
  const MARGIN = { left: 8, right: 16, top: 12, bottom: 24, containLabel: true };
  const panels = new Map();
  const cache = new Map();
  let runs = [];

  function made(name, attributes, ...children) {
    const element = document.createElement(name);
    Object.entries(attributes).forEach(function ([key, value]) {
      if (key === "text") element.textContent = value;
      else element.setAttribute(key, value);
    });
    element.append(...children);
    return element;
  }

  function contentOf(item) {
    if (item.content) return Promise.resolve(item.content);
    if (!cache.has(item.address)) {
      const asked = fetch(item.address).then(function (answer) {
        if (!answer.ok) throw new Error("missing");
        return answer.json();
      });
      asked.catch(function () { cache.delete(item.address); });
      cache.set(item.address, asked);
      if (cache.size > CACHED) cache.delete(cache.keys().next().value);
    }
    return cache.get(item.address);
  }

  function table(content) {
    const head = made("tr", {}, ...content.columns.map(function (name) { return made("th", { scope: "col", text: name }); }));
    const rows = content.rows.map(function (row) {
      return made("tr", {}, ...row.map(function (cell) {
        const text = cell === null ? "" : typeof cell === "number" ? hexloop.short(cell, 6) : String(cell);
        return made("td", typeof cell === "number" ? { class: "n", text } : { text });
      }));
    });
    return made("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "table" },
                made("table", {}, made("thead", {}, head), made("tbody", {}, ...rows)));
  }

  function histogram(place, content, number) {
    const { edges, counts } = content, soft = hexloop.colour("soft"), line = hexloop.colour("line");
    const axis = { axisLine: { lineStyle: { color: soft } }, splitLine: { lineStyle: { color: line, opacity: 0.5 } },
                   axisLabel: { color: soft, hideOverlap: true, formatter: function (value) { return hexloop.short(value, 4); } } };
    const points = counts.map(function (count, bin) { return [edges[bin], count]; }).concat([[edges[counts.length], counts[counts.length - 1]]]);
    hexloop.plotIn(place).setOption({
      animation: false, backgroundColor: "transparent", grid: MARGIN,
      xAxis: { type: "value", min: edges[0], max: edges[counts.length], ...axis }, yAxis: { type: "value", ...axis },
      tooltip: hexloop.tooltip(function (found) {
        const bin = Math.min(found[0].dataIndex, counts.length - 1);
        return [hexloop.short(edges[bin]) + " to " + hexloop.short(edges[bin + 1]) + ": " + counts[bin].toLocaleString("en")];
      }, { trigger: "axis" }),
      series: [{ type: "line", step: "end", symbol: "none", data: points, color: hexloop.colourOf(number),
                 lineStyle: { width: 1 }, areaStyle: { opacity: 0.5 } }]
    }, true);
  }

  function image(item, words) {
    const picture = made("img", { src: item.address, alt: words, class: "medium", loading: "lazy" });
    picture.addEventListener("load", function () {
      if (picture.naturalWidth < SMALL) picture.classList.add("enlarged");
    });
    picture.addEventListener("error", function () { picture.replaceWith(missing()); });
    return picture;
  }

  function missing() {
    return made("p", { class: "note", text: "The file is missing or damaged." });
  }

  function shown(item, words, number) {
    if (item.missing) return missing();
    if (item.kind === "image") return image(item, words);
    if (item.kind === "audio") return made("audio", { controls: "", preload: "metadata", src: item.address, "aria-label": words });
    const place = made("div", {});
    if (item.kind === "histogram") place.className = "histogram";
    contentOf(item).then(function (content) {
      if (item.kind === "text") place.append(made("pre", { tabindex: "0", text: content.text }));
      else if (item.kind === "table") place.append(table(content));
      else if (place.isConnected) {
        histogram(place, content, number);
        place.setAttribute("role", "img");
        place.setAttribute("aria-label", words + ": histogram of " + content.counts.reduce(function (sum, count) { return sum + count; }, 0) + " values");
      }
    }).catch(function () { place.replaceWith(missing()); });
    return place;
  }

  function stepsOf(data) {
    const steps = new Set(data.runs.flatMap(function (each) { return each.steps.map(function (entry) { return entry.step; }); }));
    return Array.from(steps).sort(function (one, other) { return one - other; });
  }

  function newestUpTo(entries, step) {
    let found = null;
    entries.forEach(function (entry) { if (entry.step <= step) found = entry; });
    return found;
  }

  function draw(panel) {
    const step = panel.steps[panel.at];
    const blocks = panel.data.runs.map(function (each) {
      const entry = newestUpTo(each.steps, step);
      const label = runs[each.run], several = runs.length > 1;
      const title = several ? [made("p", { class: "row-label" }, made("span", { class: "swatch c" + each.run % hexloop.COLOURS, "aria-hidden": "true" }), " " + label)] : [];
      if (entry === null) return made("div", {}, ...title, made("p", { class: "note", text: "Nothing up to this step." }));
      const late = entry.step !== step ? [made("p", { class: "note", text: "from step " + entry.step.toLocaleString("en") })] : [];
      const items = entry.items.map(function (item) {
        const words = [panel.data.name, item.caption, several ? label : "", "step " + entry.step].filter(Boolean).join(", ");
        const caption = item.caption ? [made("figcaption", { text: item.caption })] : [];
        return made("figure", { class: "medium-" + item.kind }, shown(item, words, each.run), ...caption);
      });
      return made("div", {}, ...title, ...late, made("div", { class: "media-items" }, ...items));
    });
    panel.place.replaceChildren(...blocks);
    panel.slider.max = panel.steps.length - 1;
    panel.slider.value = panel.at;
    panel.slider.disabled = panel.steps.length < 2;
    const epoch = panel.data.runs.map(function (each) { return newestUpTo(each.steps, step); }).find(Boolean)?.epoch;
    const words = "step " + step.toLocaleString("en") + (epoch === undefined ? "" : ", epoch " + hexloop.short(epoch, 4));
    panel.slider.setAttribute("aria-valuetext", words);
    panel.reading.textContent = words + " (" + (panel.at + 1) + " of " + panel.steps.length + ")";
  }

  function take(fresh) {
    runs = fresh.runs;
    (fresh.media || []).forEach(function (data) {
      const panel = panels.get(data.id);
      if (!panel) return;
      const before = JSON.stringify(panel.data), isNew = !panel.data, atEnd = isNew || panel.at === panel.steps.length - 1;
      const step = isNew ? 0 : panel.steps[panel.at];
      if (before === JSON.stringify(data)) return;
      panel.data = data;
      panel.steps = stepsOf(data);
      panel.at = atEnd ? panel.steps.length - 1 : Math.max(panel.steps.indexOf(step), 0);
      if (panel.isSeen) draw(panel);
    });
  }

  const watcher = new IntersectionObserver(function (found) {
    found.forEach(function (each) {
      if (!each.isIntersecting) return;
      watcher.unobserve(each.target);
      const panel = panels.get(each.target.id);
      panel.isSeen = true;
      draw(panel);
    });
  }, { rootMargin: "400px" });

  document.querySelectorAll(".media-panel").forEach(function (element) {
    const slider = element.querySelector("input"), panel = {
      place: element.querySelector(".media-shown"), slider, reading: element.querySelector(".media-step"), data: null, steps: [], at: 0
    };
    slider.addEventListener("input", function () {
      panel.at = Number(slider.value);
      draw(panel);
    });
    panels.set(element.id, panel);
  });
  if (panels.size === 0) return;
  take(hexloop.data());
  panels.forEach(function (panel, id) { if (panel.data) watcher.observe(document.getElementById(id)); });
  hexloop.onData(take);
  hexloop.onTheme(function () { panels.forEach(function (panel) { if (panel.isSeen) draw(panel); }); });
})();
