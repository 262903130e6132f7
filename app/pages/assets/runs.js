"use strict";
/* The list of the runs: a table with chosen columns that is sorted, filtered and grouped, and charts of what it shows. */
(function () {
  const place = document.getElementById("run-list");
  if (!place) return;
  const MOST_COMPARED = 20, MOST_AT_ONCE = 50;
  const { el } = hexloop;
  const SETTLE = 150, REDRAWN = 2000, AGED = 30000, DAY = 86400;
  const DEFAULT_METRICS = 4, DEFAULT_ARGUMENTS = 5;
  const runs = new Map(), selected = new Set();
  const given = hexloop.data().table;  // of a page that has its rows in it
  const pages = given && given.pages;  // of an exported page, which has no board behind it
  let table = null, shape = "", drawnAt = 0, later = 0, editing = false, facts = null, columns = [], test = function () { return true; };
  let view = { filter: "", group: "", sort: "seen:desc", shown: {}, hidden: false };

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

  function leftText(row) {
    if (row.left === null) return "-";
    return row.left < 1 ? "under 1 s" : hexloop.duration(Math.round(row.left));
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
        text: leftText }
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
      test = hexloop.runFilter(view.filter, columns, columnNamed).test;
      build();
    } else if (place.dataset.built && !fresh.whole && fresh.removed.length === 0 && fresh.rows.length <= MOST_AT_ONCE && areDrawn(fresh.rows)) {
      if (!editing && fresh.rows.length) table.updateData(fresh.rows.map(function (cells) { return runs.get(cells[0]); }));
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

  function follow() {
    if (!pages) curves.follow();
  }

  function redraw() {
    drawnAt = Date.now();
    const rows = shownRows();
    if (table) table.replaceData(rows).then(function () { place.dataset.drawn = String(rows.length); follow(); });
    say();
    charts.draw();
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
      setTimeout(follow);
      const now = column && column.name + ":" + sorters[0].dir;
      if (now && now !== view.sort) { view.sort = now; remember(); }
    });
    menus();
    charts.draw();
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

  const charts = hexloop.runCharts({ rows: shownRows, measured: measured, isShown: isShown, named: columnNamed, address: addressOf });
  const curves = hexloop.runCurves({
    rows: function () { return chosen().length ? chosenRows() : orderedRows(); },
    count: function () { return runs.size; },
    isComplete: function () { return Boolean(facts && facts.complete && table); },
    words: function (drawn) {
      const number = chosen().length, all = number || shownRows().length, kind = number ? "chosen " : "";
      if (drawn === all) return number || !drawn ? "" : "Choose runs in the table to see only theirs.";
      return "These are the first " + drawn + " of the " + all.toLocaleString("en") + " " + kind + "runs, in the order of the table" +
        (number ? "." : "; choose runs to see theirs.");
    }
  });

  const status = el("span", { id: "run-count", role: "status" });
  const searchBox = el("input", { type: "search", id: "run-filter", placeholder: "Filter: text, learning_rate<1e-3, tag:baseline", size: "34",
                                  "aria-label": "Filter the runs", autocomplete: "off" });
  const compareButton = el("button", { type: "button", id: "compare", disabled: true, on: { click: compare } }, "Compare");
  const groupBox = el("select", { id: "group-by", "aria-label": "Group by", on: { change: function () { view.group = groupBox.value; remember(); build(); } } });
  const hiddenBox = el("input", { type: "checkbox", id: "show-hidden", on: { change: function () { view.hidden = hiddenBox.checked; remember(); redraw(); } } });
  const columnMenu = el("div", { class: "menu-content" }), filterMenu = el("div", { class: "menu-content" });
  const tagBox = el("input", { type: "text", id: "new-tag", "aria-label": "Tag", size: "14", maxlength: "50", placeholder: "tag", list: "known-tags" });
  const knownTags = el("datalist", { id: "known-tags" });

  /* The rows of the table in its order. */
  function orderedRows() {
    return table ? table.getData("active") : [];
  }

  /* The chosen rows: those in the table in its order, then those that the filter leaves out. */
  function chosenRows() {
    const first = orderedRows().filter(function (row) { return selected.has(row.folder); });
    const known = new Set(first.map(function (row) { return row.folder; }));
    return first.concat(chosen().filter(function (folder) { return !known.has(folder); }).map(function (folder) { return runs.get(folder); }));
  }

  function compare() {
    const query = new URLSearchParams(chosenRows().slice(0, MOST_COMPARED).map(function (row) { return ["run", row.folder]; }));
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
    place.append(tools, el("p", { class: "note" }, status), el("div", { id: "run-grid" }), ...(pages ? [] : [curves.element]), charts.element);
    searchBox.value = view.filter;
    hiddenBox.checked = view.hidden;
    let typed = 0;
    searchBox.addEventListener("input", function () {
      clearTimeout(typed);
      typed = setTimeout(function () { view.filter = searchBox.value; filtered(); }, SETTLE);
    });
  }

  function filtered() {
    const found = hexloop.runFilter(view.filter, columns, columnNamed), unknown = found.unknown;
    test = found.test;
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
          charts.draw();
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
    charts.fill();
  }

  function say(words) {
    const count = shownRows().length, number = chosen().length;
    const texts = [count === runs.size ? count.toLocaleString("en") + (count === 1 ? " run" : " runs")
                                       : count.toLocaleString("en") + " of " + runs.size.toLocaleString("en") + " runs"];
    const concealed = Array.from(runs.values()).filter(function (row) { return row.hidden; }).length;
    if (concealed && !view.hidden) texts.push(concealed + " hidden");
    if (number) texts.push(number + " chosen" + (number > MOST_COMPARED ? "; a comparison shows the first " + MOST_COMPARED + " of them in the order of the table" : ""));
    if (facts && !facts.complete) texts.push("reading" + (facts.waiting ? " " + facts.waiting.toLocaleString("en") + " more" : "") + "\u2026");
    if (facts && facts.cut) texts.push("the folder has more runs or folders than are listed");
    if (facts && facts.complete && !runs.size) texts.push("there are no runs in " + facts.folder + " yet; they appear here when they start");
    if (words) texts.push(words);
    status.textContent = texts.join("; ") + (words ? "" : ".");
    const apart = pages ? chosen().filter(function (folder) { return !given.compared.includes(folder); }).length : 0;
    compareButton.disabled = number < 1 || apart > 0 || Boolean(pages && given.compared.length < 2);
    compareButton.title = apart ? "The exported comparison has the " + given.compared.length + " runs that reported last." : "";
    compareButton.textContent = number > MOST_COMPARED ? "Compare " + MOST_COMPARED + " of " + number : number > 1 ? "Compare " + number : "Compare";
    place.querySelectorAll("button.of-chosen").forEach(function (each) { each.disabled = number === 0; });
    const tags = new Set(Array.from(runs.values()).flatMap(function (row) { return row.tags; }));
    if (tags.size !== knownTags.children.length) knownTags.replaceChildren(...Array.from(tags, function (each) { return el("option", { value: each }); }));
    place.dataset.runs = String(runs.size);
    if (facts) place.dataset.complete = String(facts.complete);
    follow();
  }

  function measured() {
    return columns.filter(function (column) { return column.kind !== "fact" || ["percent", "step", "seen", "started"].includes(column.field); });
  }

  remembered();
  frame();
  hexloop.onTheme(charts.draw);
  hexloop.onData(function (fresh) { if (fresh.table) take(fresh.table); });
  setInterval(function () {
    if (table && !editing && !document.hidden) table.getRows("visible").forEach(function (row) { row.reformat(); });
  }, AGED);
  if (given) take(given);
})();
