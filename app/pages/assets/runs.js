"use strict";
/* The list of the runs: a table with chosen columns that is sorted, filtered and grouped, and charts of what it shows. */
(function () {
  const place = document.getElementById("run-list");
  if (!place) return;
  const MOST_COMPARED = 20, MOST_AT_ONCE = 50, MOST_AXES = 8, MOST_GROUP_VALUES = 200;
  const SETTLE = 150, REDRAWN = 2000, AGED = 30000, DAY = 86400;
  const DEFAULT_METRICS = 4, DEFAULT_ARGUMENTS = 5;
  const runs = new Map(), selected = new Set();
  const given = hexloop.data().table;  // of an exported page, which has no board behind it
  const pages = given && given.pages;
  let table = null, shape = "", drawnAt = 0, later = 0, editing = false, facts = null, columns = [], test = function () { return true; };
  let view = { filter: "", group: "", sort: "seen:desc", shown: {}, hidden: false };

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

  // The view, which the address and this browser remember

  function remembered() {
    const key = "hexloop-runs " + (place.dataset.folder || "");
    try {
      const hash = location.hash.slice(1);
      const saved = hash.includes("=") ? new URLSearchParams(hash).get("view") : localStorage.getItem(key);
      const found = JSON.parse(saved || "{}");
      if (typeof found.filter === "string") view.filter = found.filter;
      if (typeof found.group === "string") view.group = found.group;
      if (typeof found.sort === "string") view.sort = found.sort;
      if (found.shown && typeof found.shown === "object") view.shown = found.shown;
      view.hidden = found.hidden === true;
    } catch (error) { /* a view that cannot be read is not used */ }
  }

  function remember() {
    const text = JSON.stringify(view);
    try {
      localStorage.setItem("hexloop-runs " + (place.dataset.folder || ""), text);
      history.replaceState(null, "", "#" + new URLSearchParams({ view: text }));
    } catch (error) { /* a browser that keeps nothing */ }
  }

  // Columns

  function percent(row) {
    return row.total ? Math.min(row.step / row.total, 1) : null;
  }

  function left(row) {
    if (row.state !== "running" || !row.total || !row.pace) return null;
    return Math.max((row.total - row.step) * row.pace - Math.max(Date.now() / 1000 - row.seen, 0), 0);
  }

  function ago(seconds) {
    if (seconds === null) return "-";
    const age = Math.max(Date.now() / 1000 - seconds, 0);
    if (age < 60) return "just now";
    if (age < 3600) return Math.round(age / 60) + " min ago";
    if (age < DAY) return Math.round(age / 3600) + " h ago";
    return Math.round(age / DAY) + " d ago";
  }

  function moment(seconds) {
    return seconds === null ? "-" : new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ");
  }

  function columnsOf(fresh) {
    const known = [
      { name: "run", field: "folder", kind: "fact", text: function (row) { return row.folder; } },
      { name: "state", field: "state", kind: "fact", text: function (row) { return row.state; } },
      { name: "progress", field: "percent", kind: "fact", number: true,
        text: function (row) { return row.percent === null ? row.step.toLocaleString("en") : Math.floor(row.percent * 100) + "% of " + row.total.toLocaleString("en"); } },
      { name: "time left", field: "left", kind: "fact", number: true,
        text: function (row) { return row.left === null ? "-" : hexloop.duration(Math.round(row.left)); } }
    ];
    const others = [
      { name: "steps", field: "step", kind: "fact", number: true, text: function (row) { return row.step.toLocaleString("en"); } },
      { name: "last report", field: "seen", kind: "fact", number: true, text: function (row) { return ago(row.seen); } },
      { name: "started", field: "started", kind: "fact", number: true, text: function (row) { return moment(row.started); } },
      { name: "tags", field: "tags", kind: "fact", text: function (row) { return row.tags.join(", "); } },
      { name: "notes", field: "notes", kind: "fact", text: function (row) { return row.notes; } }
    ];
    const plain = function (field) { return function (row) { return hexloop.short(row[field]); }; };
    fresh.metrics.forEach(function (name, number) {
      const words = fresh.arguments.includes(name) ? name + " (logged)" : name;
      known.push({ name: words, field: "m" + number, kind: "metric", number: true, text: plain("m" + number) });
    });
    fresh.arguments.forEach(function (name, number) {
      known.push({ name: name, field: "a" + number, kind: "argument",
                   text: function (row) { const value = row["a" + number]; return value === null || value === undefined ? "-" : String(value); } });
    });
    return known.concat(others);
  }

  function isShown(column) {
    const chosen = view.shown[column.name];
    if (chosen !== undefined) return chosen === true;
    if (column.name === "time left") return Array.from(runs.values()).some(function (row) { return row.left !== null; });
    if (column.kind === "fact") return !["started", "steps"].includes(column.name);
    const same = columns.filter(function (each) { return each.kind === column.kind; });
    const place = same.indexOf(column);
    if (column.kind === "metric") return place < DEFAULT_METRICS && !/_runtime$|per_second$|^train_|^total_flos/.test(column.name);
    return place < DEFAULT_ARGUMENTS;
  }

  function columnNamed(name) {
    const plain = name.trim().toLowerCase();
    const alias = { tag: "tags", note: "notes", name: "run", percent: "progress", step: "steps", left: "time left" }[plain] || plain;
    return columns.find(function (each) { return each.name.toLowerCase() === alias; });
  }

  // Rows

  function rowOf(cells) {
    const row = {};
    facts.facts.forEach(function (name, number) { row[name] = cells[number]; });
    row.metrics.forEach(function (value, number) { row["m" + number] = value; });
    row.arguments.forEach(function (value, number) { row["a" + number] = value; });
    delete row.metrics;
    delete row.arguments;
    row.hidden = Boolean(row.hidden);
    row.percent = percent(row);
    row.left = left(row);
    return row;
  }

  function take(fresh) {
    facts = fresh;
    const names = JSON.stringify([fresh.metrics, fresh.arguments]);
    if (fresh.whole) runs.clear();
    fresh.rows.forEach(function (cells) { runs.set(cells[0], rowOf(cells)); });
    fresh.removed.forEach(function (folder) { runs.delete(folder); selected.delete(folder); });
    if (names !== shape) {
      shape = names;
      columns = columnsOf(fresh);
      filter();
      build();
    } else if (!fresh.whole && fresh.removed.length === 0 && fresh.rows.length <= MOST_AT_ONCE && areDrawn(fresh.rows)) {
      if (!editing) table.updateData(fresh.rows.map(function (cells) { return runs.get(cells[0]); }));
    } else {
      soon();
    }
    say();
  }

  function areDrawn(rows) {
    const drawn = new Set(table.getData().map(function (row) { return row.folder; }));
    return rows.every(function (cells) { return drawn.has(cells[0]) && passes(runs.get(cells[0])); });
  }

  function passes(row) {
    return (view.hidden || !row.hidden) && test(row);
  }

  function shownRows() {
    return Array.from(runs.values()).filter(passes);
  }

  /* Draws again, but not many times while thousands of runs arrive, and not while a cell is edited. */
  function soon() {
    clearTimeout(later);
    const wait = Date.now() - drawnAt < REDRAWN ? (facts.complete ? SETTLE : REDRAWN) : 0;
    later = setTimeout(function () { if (editing) soon(); else redraw(); }, wait);
  }

  function redraw() {
    drawnAt = Date.now();
    const rows = shownRows();
    if (table) table.replaceData(rows).then(function () { place.dataset.drawn = String(rows.length); });
    say();
    drawCharts();
  }

  // Filtering

  const TOKEN = /"([^"]*)"|(\S+?(?:<=|>=|!=|<|>|=|:)"[^"]*")|(\S+)/g;
  const COMPARED = /^(.+?)(<=|>=|!=|<|>|=|:)(.*)$/;

  function filter() {
    const tests = [], unknown = [];
    for (const found of view.filter.matchAll(TOKEN)) {
      let text = found[1] !== undefined ? found[1] : found[0].replace(/"/g, ""), wanted = true;
      if (found[1] === undefined && text.startsWith("-") && text.length > 1 && !/^-[\d.]/.test(text)) { wanted = false; text = text.slice(1); }
      const parts = found[1] === undefined ? COMPARED.exec(text) : null;
      const column = parts && columnNamed(parts[1]);
      if (parts && !column) unknown.push(parts[1]);
      const one = column ? compared(column, parts[2], parts[3]) : contains(text.toLowerCase());
      tests.push(function (row) { return one(row) === wanted; });
    }
    test = function (row) { return tests.every(function (one) { return one(row); }); };
    return unknown;
  }

  function contains(text) {
    return function (row) {
      return columns.some(function (column) {
        return column.kind !== "metric" && column.field !== "seen" && column.text(row).toLowerCase().includes(text);
      });
    };
  }

  function compared(column, sign, text) {
    const number = column.field === "percent" ? Number(text.replace("%", "")) / 100 : Number(text);
    const numeric = text.trim() !== "" && Number.isFinite(number);
    return function (row) {
      const value = row[column.field];
      if (column.field === "tags") {
        const has = sign === ":" ? row.tags.some(function (tag) { return tag.toLowerCase().includes(text.toLowerCase()); }) : row.tags.includes(text);
        return sign === "!=" ? !has : has;
      }
      if (numeric && typeof value === "number") {
        return { "<": value < number, ">": value > number, "<=": value <= number, ">=": value >= number, "!=": value !== number,
                 "=": value === number, ":": value === number }[sign];
      }
      if ("<>".includes(sign[0])) return false;
      const shown = value === null || value === undefined ? "" : String(value).toLowerCase();
      if (sign === ":") return shown.includes(text.toLowerCase());
      return (shown === text.toLowerCase()) === (sign === "=");
    };
  }

  // The table

  function text(value) {
    return document.createTextNode(value);
  }

  function compareValues(one, other, rowOne, rowOther, column, direction) {
    const missing = function (value) { return value === null || value === undefined || value === "" || value === "not finite"; };
    if (missing(one) || missing(other)) {  // what is missing comes last in both orders
      if (missing(one) && missing(other)) return 0;
      return (missing(one) ? 1 : -1) * (direction === "asc" ? 1 : -1);
    }
    if (typeof one === "number" && typeof other === "number") return one - other;
    return String(one).localeCompare(String(other), "en", { numeric: true });
  }

  function addressOf(folder) {
    if (pages) return pages[folder] || "";
    return "runs?" + new URLSearchParams({ run: folder });
  }

  function cellOf(column) {
    return function (cell) {
      const row = cell.getData();
      if (column.field === "folder") {
        const words = row.folder === "." ? "this folder" : row.folder;
        return addressOf(row.folder) ? el("a", { href: addressOf(row.folder), class: "run-name" }, words) : text(words);
      }
      if (column.field === "state") {
        return el("span", { class: "run-state run-" + row.state, title: row.detail || row.state }, row.state);
      }
      if (column.field === "percent" && row.percent !== null) {
        const bar = el("span", { class: "run-bar", "aria-hidden": "true" }, el("span", {}));
        bar.firstChild.style.width = row.percent * 100 + "%";
        return el("span", { class: "run-progress" }, bar, column.text(row));
      }
      if (column.field === "tags") return el("span", {}, ...row.tags.map(function (tag) { return el("span", { class: "tag" }, tag); }));
      if (column.field === "seen") return el("span", { title: moment(row.seen) + " UTC" }, column.text(row));
      return text(column.text(row));
    };
  }

  function definitionOf(column) {
    const made = {
      title: column.name, field: column.field, visible: isShown(column), formatter: cellOf(column), sorter: compareValues,
      hozAlign: column.number ? "right" : "left", headerHozAlign: column.number ? "right" : "left", minWidth: 60, maxInitialWidth: 320,
      headerSortStartingDir: column.kind === "metric" && !/loss|error|perplexity|runtime/i.test(column.name) || column.number && column.kind === "fact" ? "desc" : "asc",
      titleFormatter: function () { return el("span", { title: column.name }, column.name); }
    };
    if (column.field === "folder") Object.assign(made, { frozen: window.innerWidth > 700, minWidth: 120, widthGrow: 2 });
    if (!pages && ["tags", "notes"].includes(column.field)) {
      Object.assign(made, { editor: writer(column), minWidth: 90, tooltip: false });
    }
    return made;
  }

  /* The editor of tags, with commas between them, or of notes. */
  function writer(column) {
    return function (cell, onRendered, success, cancel) {
      const row = cell.getData(), before = column.text(row);
      const box = el("input", { type: "text", value: before, "aria-label": column.name + " of " + row.folder, class: "cell-editor" });
      editing = true;
      const end = function (act) { return function () { if (editing) { editing = false; act(); } }; };
      const done = end(function () {
        cancel();
        if (box.value === before) return;
        if (column.field === "notes") { change([row.folder], { notes: box.value }); return; }
        const tags = box.value.split(",").map(function (tag) { return tag.trim(); }).filter(Boolean);
        change([row.folder], { add: tags.filter(function (tag) { return !row.tags.includes(tag); }),
                               remove: row.tags.filter(function (tag) { return !tags.includes(tag); }) });
      });
      box.addEventListener("blur", done);
      box.addEventListener("keydown", function (event) {
        if (event.key === "Enter") done();
        else if (event.key === "Escape") end(cancel)();
        event.stopPropagation();
      });
      onRendered(function () { box.focus(); box.select(); });
      return box;
    };
  }

  function chooser() {
    return {
      title: "", field: "chosen", headerSort: false, width: 40, minWidth: 40, hozAlign: "center", frozen: window.innerWidth > 700, resizable: false,
      titleFormatter: function () {
        return el("input", { type: "checkbox", id: "choose-all", "aria-label": "Choose all shown runs", on: { change: function (event) {
          shownRows().forEach(function (row) { if (event.target.checked) selected.add(row.folder); else selected.delete(row.folder); });
          place.querySelectorAll("input.choose").forEach(function (box) { box.checked = selected.has(box.value); });
          say();
        } } });
      },
      formatter: function (cell) {
        const folder = cell.getData().folder;
        const box = el("input", { type: "checkbox", class: "choose", value: folder, "aria-label": "Choose " + folder });
        box.checked = selected.has(folder);
        box.addEventListener("change", function () {
          if (box.checked) selected.add(folder); else selected.delete(folder);
          if (box.checked && !pages) fetch("updates?" + new URLSearchParams({ run: folder })).catch(function () {});  // it is read meanwhile
          say();
        });
        return box;
      }
    };
  }

  function groupValue(row) {
    const column = columnNamed(view.group);
    if (view.group === "folder") return row.folder.includes("/") ? row.folder.slice(0, row.folder.lastIndexOf("/")) : ".";
    if (!column) return "";
    return column.field === "tags" ? row.tags[0] || "no tag" : column.text(row);
  }

  function build() {
    const order = view.sort.split(":"), sorted = columnNamed(order.slice(0, -1).join(":")) || columnNamed("last report");
    const box = document.getElementById("run-grid");
    if (table) table.destroy();
    drawnAt = Date.now();
    const rows = shownRows();
    table = new Tabulator(box, {
      data: rows, index: "folder", columns: [chooser()].concat(columns.map(definitionOf)), nestedFieldSeparator: false, layout: "fitData",
      maxHeight: "70vh", movableColumns: true, columnHeaderSortMulti: true, placeholder: " ", resizableColumnFit: false, renderVerticalBuffer: 300,
      initialSort: [{ column: sorted.field, dir: order[order.length - 1] === "asc" ? "asc" : "desc" }],
      groupBy: view.group ? groupValue : false,
      groupHeader: function (value, count, inside) { return el("span", {}, groupWords(value, count, inside)); }
    });
    table.on("tableBuilt", function () {
      // A grid may only have rows in it; the keyboard reaches what is in these.
      box.querySelector(".tabulator-tableholder").removeAttribute("tabindex");
      place.dataset.drawn = String(rows.length);
      place.dataset.built = "true";
    });
    table.on("dataSorted", function (sorters) {
      if (!sorters.length) return;
      const column = columns.find(function (each) { return each.field === sorters[0].field; });
      const now = column && column.name + ":" + sorters[0].dir;
      if (now && now !== view.sort) { view.sort = now; remember(); }
    });
    menus();
    drawCharts();
  }

  /* A group in words: how many runs it has, and the mean of the values that are shown first. */
  function groupWords(value, count, inside) {
    const means = columns.filter(function (column) { return column.kind === "metric" && isShown(column); }).slice(0, 2).map(function (column) {
      const values = inside.map(function (row) { return row[column.field]; }).filter(Number.isFinite);
      if (!values.length) return "";
      const mean = values.reduce(function (sum, each) { return sum + each; }, 0) / values.length;
      return ", mean " + column.name + " " + hexloop.short(mean);
    });
    return view.group + ": " + value + " (" + count + (count === 1 ? " run" : " runs") + means.join("") + ")";
  }

  // Tags, notes, hiding

  async function change(folders, what) {
    for (let start = 0; start < folders.length; start += MOST_AT_ONCE) {
      const part = folders.slice(start, start + MOST_AT_ONCE);
      try {
        const answer = await fetch("labels", { method: "POST", cache: "no-store", body: JSON.stringify({ folders: part, ...what }),
                                               headers: { "Content-Type": "application/json" } });
        if (!answer.ok) { say("Not changed: " + (await answer.text())); return; }
      } catch (error) {
        say("Not changed: the board does not answer.");
        return;
      }
      part.forEach(function (folder) {
        const row = runs.get(folder);
        if (!row) return;
        row.tags = row.tags.filter(function (tag) { return !(what.remove || []).includes(tag); })
          .concat((what.add || []).filter(function (tag) { return !row.tags.includes(tag); }));
        if (what.notes !== undefined) row.notes = what.notes;
        if (what.hidden !== undefined) row.hidden = what.hidden;
      });
    }
    redraw();
  }

  // What is around the table

  const status = el("span", { id: "run-count", role: "status" });
  const searchBox = el("input", { type: "search", id: "run-filter", placeholder: "Filter: text, learning_rate<1e-3, tag:baseline", size: "34",
                                  "aria-label": "Filter the runs", autocomplete: "off" });
  const compareButton = el("button", { type: "button", id: "compare", disabled: true, on: { click: compare } }, "Compare");
  const groupBox = el("select", { id: "group-by", "aria-label": "Group by", on: { change: function () { view.group = groupBox.value; remember(); build(); } } });
  const hiddenBox = el("input", { type: "checkbox", id: "show-hidden", on: { change: function () { view.hidden = hiddenBox.checked; remember(); redraw(); } } });
  const columnMenu = el("div", { class: "menu-content" }), filterMenu = el("div", { class: "menu-content" });
  const tagBox = el("input", { type: "text", id: "new-tag", "aria-label": "Tag", size: "14", maxlength: "50", placeholder: "tag", list: "known-tags" });
  const knownTags = el("datalist", { id: "known-tags" });

  function compare() {
    const folders = Array.from(selected).filter(function (folder) { return runs.has(folder); });
    const query = new URLSearchParams(folders.map(function (folder) { return ["run", folder]; }));
    location.href = (pages ? "compare.html?" : "runs?") + query;
  }

  function chosen() {
    return Array.from(selected).filter(function (folder) { return runs.has(folder); });
  }

  function button(words, act) {
    return el("button", { type: "button", class: "of-chosen", disabled: true, on: { click: act } }, words);
  }

  function menu(words, content) {
    return el("details", { class: "menu" }, el("summary", {}, words), content);
  }

  function frame() {
    const tools = el("div", { class: "run-tools" }, searchBox, menu("Filter", filterMenu), menu("Columns", columnMenu),
                     el("label", {}, "group by ", groupBox),
                     el("label", {}, hiddenBox, " show hidden"), compareButton);
    if (!pages) {
      tools.append(
        menu("Tag", el("div", { class: "menu-content" }, el("form", { on: { submit: function (event) { event.preventDefault(); tag(true); } } },
          tagBox, knownTags, el("button", { type: "submit", class: "of-chosen", disabled: true }, "Add"), button("Remove", function () { tag(false); })))),
        button("Hide", function () { change(chosen(), { hidden: true }); }),
        button("Unhide", function () { change(chosen(), { hidden: false }); }));
    }
    tools.append(el("button", { type: "button", id: "save-csv", on: { click: saveTable } }, "CSV"));
    const charts = el("details", { id: "run-charts", on: { toggle: drawCharts } }, el("summary", {}, "Charts of these runs"),
      el("figure", { class: "plot" }, el("figcaption", {}, el("strong", {}, "Scatter"), " ", picker("scatter-x"), picker("scatter-y"), picker("scatter-colour")),
         el("div", { class: "chart tall", id: "scatter", role: "img", "aria-label": "Two values of each run" })),
      el("figure", { class: "plot" }, el("figcaption", {}, el("strong", {}, "Parallel coordinates"), " of the columns that are shown; drag along an axis to choose runs"),
         el("div", { class: "wide", tabindex: "0" }, el("div", { class: "chart tall", id: "run-parallel", role: "img", "aria-label": "Shown values of each run on parallel axes" }))));
    place.append(tools, el("p", { class: "note" }, status), el("div", { id: "run-grid" }), charts);
    searchBox.value = view.filter;
    hiddenBox.checked = view.hidden;
    let typed = 0;
    searchBox.addEventListener("input", function () {
      clearTimeout(typed);
      typed = setTimeout(function () { view.filter = searchBox.value; filtered(); }, SETTLE);
    });
    document.addEventListener("click", function (event) {  // a click elsewhere closes a menu
      place.querySelectorAll("details.menu[open]").forEach(function (each) { if (!each.contains(event.target)) each.open = false; });
    });
  }

  function filtered() {
    const unknown = filter();
    remember();
    redraw();
    if (unknown.length) say("There is no column " + unknown.join(", ") + ".");
  }

  function tag(add) {
    const words = tagBox.value.trim();
    if (!words || !selected.size) return;
    change(chosen(), add ? { add: [words] } : { remove: [words] });
    tagBox.value = "";
    tagBox.closest("details").open = false;
  }

  function saveTable() {
    const shown = columns.filter(isShown);
    const rows = table.getData("active").map(function (row) {
      return shown.map(function (column) { return column.field === "tags" ? row.tags.join(", ") : row[column.field]; });
    });
    hexloop.download("runs.csv", hexloop.csv([shown.map(function (column) { return column.name; })].concat(rows)), "text/csv");
  }

  function option(value, words, isChosen) {
    return el("option", { value: value, selected: isChosen }, words);
  }

  /* Fills the menus with the columns that there are. */
  function menus() {
    const kinds = { fact: "Facts", metric: "Logged last", argument: "Arguments that differ" };
    columnMenu.replaceChildren(...Object.entries(kinds).map(function (kind) {
      const own = columns.filter(function (column) { return column.kind === kind[0] && column.field !== "folder"; });
      return el("fieldset", {}, el("legend", {}, kind[1]), ...own.map(function (column) {
        const box = el("input", { type: "checkbox" });
        box.checked = isShown(column);
        box.addEventListener("change", function () {
          view.shown[column.name] = box.checked;
          remember();
          if (box.checked) table.showColumn(column.field); else table.hideColumn(column.field);
          drawCharts();
        });
        return el("label", {}, box, " " + column.name);
      }));
    }));
    const groups = ["state", "tags", "folder"].concat(columns.filter(function (column) { return column.kind === "argument"; })
      .map(function (column) { return column.name; }));
    groupBox.replaceChildren(option("", "nothing", !view.group), ...groups.map(function (name) { return option(name, name, name === view.group); }));
    const names = el("select", { "aria-label": "Column" }, ...columns.map(function (column) { return option(column.name, column.name); }));
    const signs = el("select", { "aria-label": "Comparison" }, ...["=", "!=", "<", "<=", ">", ">=", ":"].map(function (sign) {
      return option(sign, sign === ":" ? "contains" : sign);
    }));
    const value = el("input", { type: "text", size: "10", "aria-label": "Value" });
    filterMenu.replaceChildren(el("form", { on: { submit: function (event) {
      event.preventDefault();
      const quoted = function (words) { return /\s/.test(words) ? '"' + words + '"' : words; };
      const name = names.value.replace(/^last report$|^time left$/, function (found) { return { "time left": "left", "last report": "seen" }[found]; });
      searchBox.value = (searchBox.value + " " + name + signs.value + quoted(value.value)).trim();
      view.filter = searchBox.value;
      filtered();
    } } }, names, signs, value, el("button", { type: "submit" }, "Add")));
    fillPickers();
  }

  function say(words) {
    const count = shownRows().length, number = chosen().length;
    const texts = [count === runs.size ? count.toLocaleString("en") + (count === 1 ? " run" : " runs")
                                       : count.toLocaleString("en") + " of " + runs.size.toLocaleString("en") + " runs"];
    const concealed = Array.from(runs.values()).filter(function (row) { return row.hidden; }).length;
    if (concealed && !view.hidden) texts.push(concealed + " hidden");
    if (number) texts.push(number + " chosen" + (number > MOST_COMPARED ? ", of which at most " + MOST_COMPARED + " are compared" : ""));
    if (facts && !facts.complete) texts.push("reading" + (facts.waiting ? " " + facts.waiting.toLocaleString("en") + " more" : "") + "\u2026");
    if (facts && facts.cut) texts.push("the folder has more runs or folders than are listed");
    if (facts && facts.complete && !runs.size) texts.push("there are no runs in " + facts.folder + " yet; they appear here when they start");
    if (words) texts.push(words);
    status.textContent = texts.join("; ") + (words ? "" : ".");
    const apart = pages ? chosen().filter(function (folder) { return !given.compared.includes(folder); }).length : 0;
    compareButton.disabled = number < 1 || number > MOST_COMPARED || apart > 0 || Boolean(pages && given.compared.length < 2);
    compareButton.title = apart ? "The exported comparison has the " + given.compared.length + " runs that reported last." : "";
    compareButton.textContent = number > 1 ? "Compare " + number : "Compare";
    place.querySelectorAll("button.of-chosen").forEach(function (each) { each.disabled = number === 0; });
    const tags = new Set(Array.from(runs.values()).flatMap(function (row) { return row.tags; }));
    if (tags.size !== knownTags.children.length) knownTags.replaceChildren(...Array.from(tags, function (each) { return el("option", { value: each }); }));
    place.dataset.runs = String(runs.size);
    if (facts) place.dataset.complete = String(facts.complete);
  }

  // Charts of the runs that are shown

  function picker(identifier) {
    return el("label", { class: "control" }, identifier.slice(8) + " ", el("select", { id: identifier, on: { change: drawCharts } }));
  }

  function measured() {
    return columns.filter(function (column) { return column.kind !== "fact" || ["percent", "step", "seen", "started"].includes(column.field); });
  }

  function fillPickers() {
    const own = measured(), result = own.find(function (column) { return column.kind === "metric"; });
    const argument = own.find(function (column) { return column.kind === "argument"; });
    const first = { "scatter-x": argument || own[0], "scatter-y": result || own[0], "scatter-colour": null };
    Object.entries(first).forEach(function (each) {
      const box = document.getElementById(each[0]), before = box.value;
      const wanted = own.some(function (column) { return column.name === before; }) ? before : each[1] && each[1].name;
      const none = each[0] === "scatter-colour" ? [option("", "state", !wanted)] : [];
      box.replaceChildren(...none, ...own.map(function (column) { return option(column.name, column.name, column.name === wanted); }));
    });
  }

  function withLibrary(act) {
    if (window.echarts) { act(); return; }
    if (document.getElementById("chart-library")) return;
    const script = el("script", { id: "chart-library", src: "assets/echarts.min.js" });
    script.addEventListener("load", act);
    document.body.append(script);
  }

  function drawCharts() {
    const box = document.getElementById("run-charts");
    if (box && box.open && columns.length) withLibrary(function () {
      const rows = shownRows();
      drawScatter(rows);
      drawParallel(rows);
    });
  }

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

  function drawScatter(rows) {
    const named = ["scatter-x", "scatter-y", "scatter-colour"].map(function (name) { return columnNamed(document.getElementById(name).value); });
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
    plot.on("click", function (found) { if (found.data && found.data.folder) location.href = addressOf(found.data.folder); });
  }

  function drawParallel(rows) {
    const own = measured().filter(function (column) { return isShown(column) && !["seen", "percent", "step", "started"].includes(column.field); });
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

  remembered();
  frame();
  hexloop.onTheme(drawCharts);
  hexloop.onData(function (fresh) { if (fresh.table) take(fresh.table); });
  setInterval(function () {
    if (table && !editing && !document.hidden) table.getRows("visible").forEach(function (row) { row.reformat(); });
  }, AGED);
  if (given) take(given);
})();
