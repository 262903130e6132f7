"use strict";
/* The filter of the list of the runs: words, and comparisons with the name of a column. */
(function () {
  const TOKEN = /"([^"]*)"|(\S+?(?:<=|>=|!=|<|>|=|:)"[^"]*")|(\S+)/g;
  const COMPARED = /^(.+?)(<=|>=|!=|<|>|=|:)(.*)$/;

  /* Reads a filter. columns: those that words are looked for in. named: finds one by its name.
     Returns the test of a row, and the names in comparisons that no column has. */
  hexloop.runFilter = function (words, columns, named) {
    const tests = [], unknown = [];
    for (const found of words.matchAll(TOKEN)) {
      let text = found[1] !== undefined ? found[1] : found[0].replace(/"/g, ""), wanted = true;
      if (found[1] === undefined && text.startsWith("-") && text.length > 1 && !/^-[\d.]/.test(text)) { wanted = false; text = text.slice(1); }
      const parts = found[1] === undefined ? COMPARED.exec(text) : null;
      const column = parts && named(parts[1]);
      if (parts && !column) unknown.push(parts[1]);
      const one = column ? compared(column, parts[2], parts[3]) : contains(text.toLowerCase(), columns);
      tests.push(function (row) { return one(row) === wanted; });
    }
    return { test: function (row) { return tests.every(function (one) { return one(row); }); }, unknown: unknown };
  };

  function contains(text, columns) {
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
})();
