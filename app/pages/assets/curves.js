"use strict";
/* The points of curves: over which axis, in which range, smoothed, and as rows of a table. Nothing here draws. */
const curves = (function () {
  const TICKS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
  const WORDS = { step: "step", time: "time since the start", samples: "samples", tokens: "tokens", epoch: "epoch" };

  /* The value at x of a line through points, of which xs ascend; it continues straight at both ends. */
  function interpolate(xs, ys, x) {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle; else high = middle;
    }
    if (xs[high] === xs[low]) return ys[low];
    return Math.max(ys[low] + (ys[high] - ys[low]) * (x - xs[low]) / (xs[high] - xs[low]), 0);
  }

  /* Whether a curve can be drawn over an axis. axes: those of its run, from steps. */
  function has(curve, axis, axes) {
    return axis === "step" || (axis === "time" && Boolean(curve.times)) || Boolean(axes[axis] && axes[axis][0].length > 1);
  }

  /* The points of a curve over an axis. What was measured in steps that the run repeated later is left out, except over time. */
  function over(curve, axis, axes) {
    if (axis === "time" && curve.times) {
      return curve.points.map(function (point, number) { return [curve.times[number], point[1]]; });
    }
    let points = curve.points;
    if (curve.times) {
      let least = Infinity;
      points = points.slice().reverse().filter(function (point) {
        least = Math.min(least, point[0]);
        return point[0] <= least;
      }).reverse();
    }
    if (axis === "step") return points;
    const [steps, values] = axes[axis];
    return points.map(function (point) { return [interpolate(steps, values, point[0]), point[1]]; });
  }

  /* The step at a place on an axis. */
  function stepAt(place, axis, axes) {
    if (axis === "step") return place;
    return axes[axis] ? interpolate(axes[axis][1], axes[axis][0], place) : null;
  }

  /* The mean distance between two logged points, of which there are `count`, also if some of them were left out. */
  function spacing(points, count) {
    return points.length < 2 ? Infinity : (points[points.length - 1][0] - points[0][0]) / Math.max(count - 1, 1) || 1;
  }

  /* Means of the points, each weighing less the further back it is. strength: the share of the past after a distance. */
  function smooth(points, strength, distance) {
    if (points.length < 2 || strength === 0) return points;
    let mean = 0, weight = 0, before = points[0][0] - distance;
    return points.map(function (point) {
      const kept = Math.pow(strength, Math.max(point[0] - before, 0) / distance);
      before = point[0];
      mean = kept * mean + (1 - kept) * point[1];
      weight = kept * weight + (1 - kept);
      return [point[0], weight > 0 ? mean / weight : point[1]];
    });
  }

  /* The points in a range, with where the line enters and leaves it; these two are marked as an edge. */
  function within(points, from, to) {
    const first = points.findIndex(function (point) { return point[0] >= from; });
    if (first < 0) return [];
    let last = points.length - 1;
    while (last >= 0 && points[last][0] > to) last -= 1;
    const found = points.slice(first, last + 1);
    function edge(one, other, place) {
      const height = one[1] + (other[1] - one[1]) * (place - one[0]) / (other[0] - one[0]);
      return { value: [place, height], symbol: "none", edge: true };
    }
    if (first > 0 && points[first][0] > from) found.unshift(edge(points[first - 1], points[first], from));
    if (last + 1 < points.length && last >= 0 && points[last][0] < to) found.push(edge(points[last], points[last + 1], to));
    return found;
  }

  /* The points of a curve with finer ones in their place, as far as these reach. */
  function refined(coarse, fine) {
    if (!fine || fine.length === 0) return coarse;
    const first = fine[0][0], last = fine[fine.length - 1][0];
    return coarse.filter(function (point) { return point[0] < first; }).concat(
      fine, coarse.filter(function (point) { return point[0] > last; }));
  }

  /* The places of the labels of an axis of time. */
  function ticks(from, to) {
    const least = (to - from) / 6, week = TICKS[TICKS.length - 1];
    const tick = TICKS.find(function (each) { return each >= least; }) || Math.ceil(least / week) * week;
    const found = [];
    for (let at = Math.ceil(from / tick) * tick; at <= to && found.length < 20; at += tick) found.push(at);
    return found;
  }

  /* A place on an axis in words. */
  function place(axis, value) {
    if (axis === "time") return hexloop.duration(value);
    if (axis === "epoch") return WORDS.epoch + " " + hexloop.short(value, 4);
    if (axis === "step") return "step " + Math.round(value).toLocaleString("en");
    return Math.round(value).toLocaleString("en") + " " + WORDS[axis];
  }

  /* The points of several curves of runs as rows of a table, with all axes that are known. */
  function rows(shown, runs, axes) {
    const known = Object.keys(WORDS).filter(function (axis) {
      return shown.some(function (curve) { return has(curve, axis, axes[curve.run]); });
    });
    const names = known.map(function (axis) { return axis === "time" ? "seconds since the start" : axis; });
    return [["run", "name"].concat(names, ["value"])].concat(shown.flatMap(function (curve) {
      return curve.points.map(function (point, number) {
        return [runs[curve.run], curve.name].concat(known.map(function (axis) {
          if (axis === "step") return point[0];
          if (axis === "time" && curve.times) return curve.times[number];
          const found = axes[curve.run][axis];
          return found && found[0].length > 1 ? Number(interpolate(found[0], found[1], point[0]).toPrecision(9)) : null;
        }), [point[1]]);
      });
    }));
  }

  return { WORDS, has, over, place, refined, rows, smooth, spacing, stepAt, ticks, within };
})();
