"use strict";
(function () {
  const SECOND = 1000, SOON = 250;
  let isReading = Boolean(document.getElementById("run-list"));  // the list is asked for at once
  const address = document.body.dataset.updates;
  const status = document.getElementById("live");
  const shown = new Map();
  let answered = "";
  let version = document.body.dataset.version;
  const shape = chartsOf(hexloop.data());

  function chartsOf(data) {
    const search = data.search && [data.search.arguments, data.search.results].map(function (axes) {
      return axes.map(function (axis) { return axis.name; });
    });
    const trials = data.trials && [data.trials.parameters.map(function (axis) { return axis.name; }),
                                   data.trials.objectives.some(function (each) { return each.values.some(Number.isFinite); })];
    const media = data.media && data.media.map(function (panel) { return panel.name; });
    return JSON.stringify([data.runs, media, data.charts.map(function (chart) { return [chart.id, chart.title]; }), search, trials]);
  }

  function replace(identifier, html) {
    const place = document.querySelector("#" + CSS.escape(identifier) + " > .content");
    if (!place && document.getElementById("run-list")) location.reload();  // the first search of the folder
    if (!place) return;
    if (shown.get(identifier) === html) return;
    const chosen = Array.from(place.querySelectorAll("input:checked"), function (box) { return box.value; });
    const open = Array.from(place.querySelectorAll("details"), function (each) { return each.open; });
    const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
    place.innerHTML = html;  // the server has escaped it
    shown.set(identifier, html);
    place.querySelectorAll("input[type=checkbox]").forEach(function (box) {
      if (chosen.includes(box.value)) box.checked = true;
    });
    place.querySelectorAll("details").forEach(function (each, number) { each.open = Boolean(open[number]); });
    say(answered);
    if (focused) document.getElementById(focused)?.focus();
  }

  function take(fresh) {
    version = fresh.version;
    if (chartsOf(fresh.document) !== shape) {
      location.reload();
      return;
    }
    Object.entries(fresh.sections).forEach(function (each) { replace(each[0], each[1]); });
    if (fresh.document.charts.length || fresh.document.trials || fresh.document.table) {
      isReading = Boolean(fresh.document.table) && !fresh.document.table.complete;
      document.dispatchEvent(new CustomEvent("report-data", { detail: fresh.document }));
    }
  }

  function say(text) {
    answered = text;
    const place = document.getElementById("answer");
    if (place && place.textContent !== text) place.textContent = text;
  }

  async function command(button) {
    const words = button.textContent;
    if (button.dataset.action === "stop" && !confirm("Save a checkpoint and stop the run?")) return;
    const given = { folder: decodeURIComponent(button.dataset.folder), run: decodeURIComponent(button.dataset.run),
                    action: button.dataset.action };
    try {
      const answer = await fetch("commands", { method: "POST", cache: "no-store", body: JSON.stringify(given),
                                               headers: { "Content-Type": "application/json" } });
      if (answer.ok) say(words + ": given as command " + (await answer.json()).sequence + ".");
      else say(words + ": not given. " + (await answer.text()));
    } catch (error) {
      say(words + ": not given. The board does not answer.");
    }
  }

  document.addEventListener("click", function (event) {
    const button = event.target.closest("button.command");
    if (button) command(button);
  });

  document.addEventListener("change", function (event) {  // read a run that is about to be compared
    const box = event.target;
    if (box.name === "run" && box.checked) fetch("updates?" + new URLSearchParams({ run: box.value })).catch(function () {});
  });

  async function look() {
    try {
      if (!document.hidden) {
        const separator = address.includes("?") ? "&" : "?";
        const answer = await fetch(address + separator + "version=" + encodeURIComponent(version), { cache: "no-store" });
        if (answer.status === 200) take(await answer.json());
        status.textContent = answer.ok ? "Up to date." : "Not up to date: " + (await answer.text());
      }
    } catch (error) {
      status.textContent = "Not up to date: the board does not answer.";
    }
    setTimeout(look, isReading && !document.hidden ? SOON : SECOND);
  }

  setTimeout(look, isReading ? 0 : SECOND);
})();
