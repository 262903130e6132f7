"use strict";
/* What the scripts of all pages share: colours, numbers and durations in words, charts, and files to download. */
const hexloop = (function () {
  const COLOURS = 20;
  const MINUTE = 60, HOUR = 3600, UNITS = ["B", "kB", "MB", "GB", "TB"];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const plots = new Map();

  /* A colour of the style sheet, in the present theme: ink, soft, line, band, paper, c0 to c19. */
  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  }

  /* The colour of a series, by its number. */
  function colourOf(number) {
    return colour("c" + number % COLOURS);
  }

  /* A number with few digits; other values as text, and what is missing as "-". */
  function short(value, digits = 5) {
    if (typeof value !== "number") return value === null || value === undefined ? "-" : String(value);
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(Math.max(digits - 2, 1)).replace(/\.?0+e/, "e");
    return String(Number(value.toPrecision(digits)));
  }

  /* A text of at most this many characters. */
  function cut(text, most = 24) {
    return text.length > most ? text.slice(0, most - 1) + "\u2026" : text;
  }

  /* Seconds in the unit that fits them, as duration_text writes them: "2.1 ms", "3.52 s", "1:02:03". */
  function duration(seconds) {
    if (!Number.isFinite(seconds)) return "-";
    if (seconds === 0) return "0 s";
    if (Math.abs(seconds) < 0.0995) return short(seconds * 1000, 2) + " ms";
    if (Math.abs(seconds) < 120) return short(seconds, 3) + " s";
    const whole = Math.round(Math.abs(seconds)), pair = function (count) { return String(count).padStart(2, "0"); };
    const clock = Math.floor(whole / HOUR) + ":" + pair(Math.floor(whole % HOUR / MINUTE)) + ":" + pair(whole % MINUTE);
    return (seconds < 0 ? "-" : "") + clock;
  }

  /* A number of bytes in decimal units, as format_bytes writes them: "1.5 GB". */
  function bytes(count) {
    let unit = 0;
    while (Math.abs(count) >= 999.5 && unit < UNITS.length - 1) { count /= 1000; unit += 1; }
    return Number(count.toPrecision(3)) + " " + UNITS[unit];
  }

  /* A value with its unit, as charts have it; a number alone without one. */
  function withUnit(value, unit) {
    if (unit === "bytes") return bytes(value);
    if (unit === "bytes per second") return bytes(value) + "/s";
    const sign = { percent: " %", watts: " W", "degrees Celsius": " \u00b0C" }[unit] || "";
    return short(value) + sign;
  }

  /* Lines for a tooltip of the charts, in which braces and bars are marks. */
  function lines(texts) {
    return texts.join("\n").replace(/[{}|]/g, " ");
  }

  /* The tooltip of a chart. words: returns the lines for what the pointer is at. */
  function tooltip(words, more) {
    return { renderMode: "richText", confine: true, backgroundColor: colour("band"), borderColor: colour("line"),
             textStyle: { color: colour("ink"), fontSize: 12 },
             formatter: function (found) { return lines(words(found)); }, ...more };
  }

  /* The chart in an element, which follows its size. It is made by the first call. */
  function plotIn(place) {
    if (!plots.has(place)) {
      plots.set(place, echarts.init(place, null, { renderer: "canvas" }));
      new ResizeObserver(function () { if (plots.has(place)) plots.get(place).resize(); }).observe(place);
    }
    return plots.get(place);
  }

  /* Forgets the chart in an element that leaves the page. */
  function remove(place) {
    if (!plots.has(place)) return;
    plots.get(place).dispose();
    plots.delete(place);
  }

  /* Offers a file to the user. content: a text or a Blob. */
  function download(name, content, type = "text/plain") {
    const blob = content instanceof Blob ? content : new Blob([content], { type: type + ";charset=utf-8" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name.replace(/[^\w.-]+/g, "-").replace(/^[-.]+/, "") || "file";
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 1e4);
  }

  /* Rows as CSV (RFC 4180). A text that a spreadsheet would take for a formula is marked as text. */
  function csv(rows) {
    return rows.map(function (row) {
      return row.map(function (cell) {
        if (cell === null || cell === undefined) return "";
        if (typeof cell === "number") return String(cell);
        const text = /^[=+\-@\t\r]/.test(cell) ? "'" + cell : String(cell);
        return /[",\r\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
      }).join(",");
    }).join("\r\n") + "\r\n";
  }

  /* An element with attributes and children; texts become text, never markup. */
  function el(name, attributes, ...children) {
    const made = document.createElement(name);
    Object.entries(attributes || {}).forEach(function (each) {
      if (each[0] === "on") Object.entries(each[1]).forEach(function (one) { made.addEventListener(one[0], one[1]); });
      else if (each[1] === true) made.setAttribute(each[0], "");
      else if (each[1] !== false && each[1] !== null) made.setAttribute(each[0], each[1]);
    });
    made.append(...children);
    return made;
  }

  /* Calls a function when the theme changes. */
  function onTheme(draw) {
    dark.addEventListener("change", draw);
  }

  /* Calls a function with the new data of a page that is kept up to date. */
  function onData(take) {
    document.addEventListener("report-data", function (event) { take(event.detail); });
  }

  function isDark() {
    return dark.matches;
  }

  /* The data of the page. */
  function data() {
    return JSON.parse(document.getElementById("report-data").textContent);
  }

  document.body.classList.remove("no-script");
  return { COLOURS, bytes, colour, colourOf, csv, cut, data, download, duration, el, isDark, lines, onData, onTheme, plotIn, remove, short, tooltip,
           withUnit };
})();
