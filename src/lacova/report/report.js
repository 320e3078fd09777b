"use strict";
// Draws the pictures of the report from the facts embedded in the page. All text goes through textContent, or through
// attributes that are neither links nor handlers: nothing from the data becomes markup.
(() => {
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const DASHES = ["", "7 3", "7 3 2 3", "2 3", "10 3 2 3 2 3", "12 4", "1 4", "5 2"];
  const colour = (k) => `var(--c${k % 8})`;

  const make = (name, attributes = {}, parent = null, text = null) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  };
  const element = (name, parent, text = null, kind = null) => {
    const node = document.createElement(name);
    if (text !== null) node.textContent = text;
    if (kind) node.className = kind;
    parent.appendChild(node);
    return node;
  };
  const show = (v) => (v === null || v === undefined ? "missing" : String(Number(v.toPrecision(4))));

  const tip = element("div", document.body, "", "tip");
  tip.hidden = true;
  const hover = (node, text) => {
    make("title", {}, node, text);
    node.addEventListener("pointermove", (event) => {
      tip.textContent = text;
      tip.hidden = false;
      const left = Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 8);
      tip.style.left = `${Math.max(4, left)}px`;
      tip.style.top = `${event.clientY + 14}px`;
    });
    node.addEventListener("pointerleave", () => { tip.hidden = true; });
  };

  const ticks = (low, high, count) => {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
    const values = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) values.push(Number((k * step).toPrecision(10)));
    return values;
  };
  const range = (values, room = 0.05) => {
    let low = Infinity, high = -Infinity;
    for (const v of values) if (v !== null && v !== undefined) { low = Math.min(low, v); high = Math.max(high, v); }
    if (low > high) return [0, 1];
    const pad = (high - low) * room || Math.abs(high) * 0.1 || 1;
    return [low - pad, high + pad];
  };
  const marker = (shape, x, y, r, attributes, parent) => {
    const path = {
      circle: `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
      square: `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
      triangle: `M${x},${y - r * 1.2}L${x + r * 1.1},${y + r}L${x - r * 1.1},${y + r}z`,
      diamond: `M${x},${y - r * 1.3}L${x + r * 1.3},${y}L${x},${y + r * 1.3}L${x - r * 1.3},${y}z`,
      down: `M${x},${y + r * 1.2}L${x + r * 1.1},${y - r}L${x - r * 1.1},${y - r}z`,
      plus: `M${x - r},${y}h${2 * r}M${x},${y - r}v${2 * r}`,
      cross: `M${x - r},${y - r}l${2 * r},${2 * r}M${x - r},${y + r}l${2 * r},${-2 * r}`,
      bar: `M${x},${y - r}v${2 * r}`,
    }[shape];
    return make("path", { d: path, ...attributes }, parent);
  };
  const SHAPES = ["circle", "square", "triangle", "diamond", "down", "plus", "bar"];  // a cross is a missing value
  const filled = (shape, k, hollow = false) => ["plus", "cross", "bar"].includes(shape)
    ? { fill: "none", stroke: colour(k), "stroke-width": 1.6 }
    : { fill: hollow ? "var(--paper)" : colour(k), stroke: colour(k), "stroke-width": 1.4 };

  // One panel: axes and layers of bands, lines, points, bars. All boxes are there before the first is measured.
  const panel = (box, spec) => {
    if (spec.title) element("h3", box, spec.title);
    const wide = Math.max(280, Math.min(box.clientWidth || 640, 900));
    const tall = spec.height || Math.round(Math.max(230, Math.min(360, wide * 0.55)));
    const left = spec.left || 56, right = 12, top = 10, bottom = 44;
    const svg = make("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": spec.alt }, box);
    const [x0, x1] = spec.x.range, [y0, y1] = spec.y.range;
    const X = (v) => left + ((v - x0) / (x1 - x0)) * (wide - left - right);
    const Y = (v) => tall - bottom - ((v - y0) / (y1 - y0)) * (tall - top - bottom);
    const id = `clip${Math.random().toString(36).slice(2)}`;
    const clip = make("clipPath", { id }, make("defs", {}, svg));
    make("rect", { x: left, y: top, width: wide - left - right, height: tall - top - bottom }, clip);
    const xt = spec.x.names ? spec.x.names.map((_, k) => k) : ticks(x0, x1, wide < 450 ? 4 : 7);
    const yt = spec.y.names ? spec.y.names.map((_, k) => k) : ticks(y0, y1, 5);
    const most = Math.max(4, Math.floor((wide - left) / Math.max(1, xt.length) / 6.5));
    const short = (text, n) => (text.length > n ? `${text.slice(0, n - 1)}…` : text);
    for (const t of yt) {
      make("line", { x1: left, x2: wide - right, y1: Y(t), y2: Y(t), class: "grid" }, svg);
      make("text", { x: left - 6, y: Y(t) + 4, "text-anchor": "end" }, svg, spec.y.names ? short(spec.y.names[t], Math.floor(left / 6.5)) : String(t));
    }
    for (const t of xt) make("text", { x: X(t), y: tall - bottom + 16, "text-anchor": "middle" }, svg, spec.x.names ? short(spec.x.names[t], most) : String(t));
    make("path", { d: `M${left},${top}V${tall - bottom}H${wide - right}`, class: "axis" }, svg);
    make("text", { x: (left + wide - right) / 2, y: tall - 8, "text-anchor": "middle", class: "soft" }, svg, spec.x.label);
    if (spec.y.label) make("text", { transform: `translate(13,${(top + tall - bottom) / 2}) rotate(-90)`, "text-anchor": "middle", class: "soft" }, svg, short(spec.y.label, 42));
    const plot = make("g", { "clip-path": `url(#${id})` }, svg);
    const legend = [];
    for (const layer of spec.layers) {
      const k = layer.colour || 0;
      if (layer.name) legend.push(layer);
      if (layer.type === "band") {
        const d = layer.x.map((x, i) => `${i ? "L" : "M"}${X(x)},${Y(layer.upper[i])}`).join("") + layer.x.map((_, i) => layer.x.length - 1 - i).map((i) => `L${X(layer.x[i])},${Y(layer.lower[i])}`).join("") + "z";
        make("path", { d, fill: colour(k), "fill-opacity": layer.opacity || 0.2, stroke: colour(k), "stroke-width": 0.6, "stroke-dasharray": DASHES[layer.dash || 0] }, plot);
      } else if (layer.type === "line") {
        const d = layer.x.map((x, i) => [x, layer.y[i]]).filter((p) => p[1] !== null).map((p, i) => `${i ? "L" : "M"}${X(p[0])},${Y(p[1])}`).join("");
        make("path", { d, fill: "none", stroke: layer.grey ? "var(--soft)" : colour(k), "stroke-width": layer.width || 2, "stroke-dasharray": DASHES[layer.dash || 0] }, plot);
      } else if (layer.type === "bars") {
        layer.x.forEach((x, i) => {
          const bar = make("rect", { x: X(x) + 1, y: Y(layer.y[i]), width: Math.max(1, X(x + layer.width) - X(x) - 2), height: Math.max(0, Y(y0) - Y(layer.y[i])), fill: colour(k), "fill-opacity": layer.opacity || 0.8, stroke: colour(k) }, plot);
          hover(bar, layer.tips[i]);
        });
      } else if (layer.type === "points") {
        layer.x.forEach((x, i) => {
          if (x === null || layer.y[i] === null) return;
          const group = make("g", {}, plot);
          if (layer.lower) {
            const across = layer.across;
            const a = across ? [X(layer.lower[i]), Y(layer.y[i]), X(layer.upper[i]), Y(layer.y[i])] : [X(x), Y(layer.lower[i]), X(x), Y(layer.upper[i])];
            make("line", { x1: a[0], y1: a[1], x2: a[2], y2: a[3], stroke: colour(k), "stroke-width": layer.thick || 1.6, "stroke-dasharray": DASHES[layer.dash || 0] }, group);
          }
          const shade = layer.fills ? { fill: layer.fills[i], stroke: "var(--soft)", "stroke-width": 0.3 } : { ...filled(layer.shape || "circle", k, layer.hollow), ...(layer.thin ? { "stroke-width": 0.8 } : {}) };
          marker(layer.shape || "circle", X(x), Y(layer.y[i]), layer.size || 4, { ...shade, "fill-opacity": layer.opacity || 1 }, group);
          if (layer.tips) hover(group, layer.tips[i]);
        });
      }
    }
    if (legend.length) {
      const list = element("ul", box, null, "legend");
      for (const layer of legend) {
        const item = element("li", list);
        const key = make("svg", { viewBox: "0 0 28 14", "aria-hidden": "true" }, item);
        const k = layer.colour || 0;
        if (layer.type === "band") make("rect", { x: 2, y: 2, width: 24, height: 10, fill: colour(k), "fill-opacity": layer.opacity || 0.2, stroke: colour(k) }, key);
        else if (layer.type === "bars") make("rect", { x: 2, y: 2, width: 24, height: 10, fill: colour(k) }, key);
        else {
          if (layer.type === "line" || layer.lower) make("line", { x1: 0, x2: 28, y1: 7, y2: 7, stroke: layer.grey ? "var(--soft)" : colour(k), "stroke-width": 2, "stroke-dasharray": DASHES[layer.dash || 0] }, key);
          if (layer.type === "points") marker(layer.shape || "circle", 14, 7, 4, layer.fills ? { fill: "var(--soft)" } : filled(layer.shape || "circle", k, layer.hollow), key);
        }
        item.appendChild(document.createTextNode(layer.name));
      }
    }
    if (spec.table) {
      const more = element("details", box);
      element("summary", more, "These values as a table");
      const holder = element("div", more, null, "scroll");
      more.addEventListener("toggle", () => {
        if (!more.open || holder.firstChild) return;
        holder.tabIndex = 0;
        const table = element("table", holder);
        const head = element("tr", element("thead", table));
        for (const cell of spec.table.head) element("th", head, cell).scope = "col";
        const body = element("tbody", table);
        for (const line of spec.table.lines) {
          const row = element("tr", body);
          for (const cell of line) element("td", row, typeof cell === "number" || cell === null ? show(cell) : cell);
        }
      });
    }
  };

  const panels = (canvas, ...specs) => {
    const boxes = specs.map(() => element("div", canvas, null, "panel"));
    specs.forEach((spec, k) => panel(boxes[k], spec));
  };

  const pick = (chart, what, names, start = 0) => {
    const select = chart.querySelector(`select[data-pick="${what}"]`);
    names.forEach((name, k) => { element("option", select, name).value = String(k); });
    select.value = String(start);
    return select;
  };
  const columns = (record) => record[0].map((_, k) => record.map((values) => values[k]));

  const draw = {
    training(chart, canvas, data) {
      const terms = data.terms;
      const bounds = terms.filter((t) => ["elbo", "validation"].includes(t.name));
      const names = ["bound", "all terms", ...terms.map((t) => t.label)];
      const select = pick(chart, "Curves", names);
      return () => {
        const k = Number(select.value);
        const shown = k === 0 ? bounds : k === 1 ? terms : [terms[k - 2]];
        const late = shown.flatMap((t) => t.values.slice(Math.floor(t.values.length / 10)));
        panels(canvas, {
          alt: `Training curves: ${shown.map((t) => `${t.label} from ${show(t.values[0])} to ${show(t.values[t.values.length - 1])}`).join("; ")}, over ${data.epochs} epochs`,
          x: { label: "epoch", range: range(data.epoch, 0.01) }, y: { label: "nats per row", range: range(late) },
          layers: shown.map((t, i) => ({ type: "line", x: data.epoch, y: t.values, colour: i, dash: i, name: t.label })),
          table: { head: ["epoch", ...shown.map((t) => t.label)], lines: columns([data.epoch, ...shown.map((t) => t.values)]) },
        });
      };
    },
    gaps(chart, canvas, data) {
      return () => {
        const box = element("div", canvas, null, "panel");
        const wide = Math.max(280, Math.min(box.clientWidth || 640, 900));
        const few = data.columns.length <= 40, top = 18, left = data.rows.length <= 30 ? 112 : 16, bottom = few ? 14 + 7 * Math.min(13, Math.max(...data.columns.map((n) => n.length))) : 24;
        const cell = (wide - left - 4) / data.columns.length, high = Math.max(2.4, Math.min(16, 320 / data.rows.length));
        const tall = top + bottom + high * data.rows.length;
        const cut = data.roles.filter((r) => r === "measurement").length;
        const mean = (k) => data.share.reduce((a, line) => a + line[k], 0) / data.share.length;
        const worst = data.columns.map((name, k) => [mean(k), name]).sort((a, b) => b[0] - a[0]).slice(0, 3);
        const svg = make("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": `Gap pattern of ${data.columns.length} columns by ${data.axis}; most gaps: ${worst.map((w) => `${w[1]} ${Math.round(100 * w[0])}%`).join(", ")}` }, box);
        make("rect", { x: left, y: top, width: cell * data.columns.length, height: high * data.rows.length, fill: "var(--gap0)" }, svg);
        data.columns.forEach((name, k) => {
          data.share.forEach((line, i) => {
            if (line[k] > 0) make("rect", { x: left + k * cell, y: top + i * high, width: Math.max(0.5, cell - (cell > 5 ? 1 : 0)), height: high + 0.05, fill: "var(--gap1)", "fill-opacity": line[k] }, svg);
          });
          hover(make("rect", { x: left + k * cell, y: top, width: cell, height: high * data.rows.length, fill: "transparent" }, svg), `${name}: ${Math.round(1000 * mean(k)) / 10}% missing`);
          if (few) {
            const text = name.length > 13 ? `${name.slice(0, 12)}…` : name;
            make("text", { transform: `translate(${left + (k + 0.5) * cell + 4},${tall - bottom + 6}) rotate(-90)`, "text-anchor": "end" }, svg, text);
          }
        });
        if (left > 100) data.rows.forEach((name, i) => make("text", { x: left - 4, y: top + (i + 0.5) * high + 4, "text-anchor": "end" }, svg, name.length > 17 ? `${name.slice(0, 16)}…` : name));
        else make("text", { transform: `translate(11,${top + high * data.rows.length / 2}) rotate(-90)`, "text-anchor": "middle", class: "soft" }, svg, data.axis);
        make("text", { x: left, y: 12, class: "soft" }, svg, "measurements");
        if (cut < data.columns.length) {
          make("text", { x: wide - 4, y: 12, "text-anchor": "end", class: "soft" }, svg, "covariates");
          make("line", { x1: left + cut * cell, x2: left + cut * cell, y1: 4, y2: tall - bottom, stroke: "var(--c1)", "stroke-width": 2 }, svg);
        }
        element("p", box, "Dark marks are gaps; if rows share a line, the shade is the share that is missing.");
      };
    },
    calibration(chart, canvas, data) {
      const select = pick(chart, "Column", data.columns.map((c) => `${c.name} (${c.n})`));
      return () => {
        const c = data.columns[Number(select.value)];
        const grid = Array.from({ length: 41 }, (_, k) => k / 40);
        const chance = grid.map((p) => 1.96 * Math.sqrt((p * (1 - p)) / c.n));
        const specs = [{
          title: "Coverage against nominal coverage",
          alt: `Calibration of ${c.name}: ${data.nominal.map((p, i) => `${Math.round(100 * p)}% intervals hold ${Math.round(100 * c.coverage[i])}%`).join(", ")}`,
          x: { label: "nominal coverage", range: [0, 1] }, y: { label: "share of hidden values inside", range: [0, 1] },
          layers: [
            { type: "band", x: grid, lower: grid.map((p, i) => p - chance[i]), upper: grid.map((p, i) => p + chance[i]), colour: 6, opacity: 0.12, name: "by chance, if calibrated" },
            { type: "line", x: [0, 1], y: [0, 1], grey: true, width: 1 },
            { type: "line", x: data.nominal, y: c.coverage, colour: 0, name: c.name },
            { type: "points", x: data.nominal, y: c.coverage, colour: 0, tips: data.nominal.map((p, i) => `nominal ${Math.round(100 * p)}%, actual ${Math.round(1000 * c.coverage[i]) / 10}%`) },
          ],
          table: { head: ["nominal", "actual"], lines: columns([data.nominal, c.coverage]) },
        }];
        const expected = c.n / 10, spread = 1.96 * Math.sqrt(expected * 0.9);
        specs.push({
          title: "Where true values fall among the draws",
          alt: `Histogram of the share of draws below the truth, ${c.name}: ${c.pit.join(", ")}; ${show(expected)} expected in each of ten bins`,
          x: { label: "share of draws below the true value", range: [0, 1] }, y: { label: "hidden values", range: [0, Math.max(...c.pit, expected + spread) * 1.1] },
          layers: [
            { type: "bars", x: c.pit.map((_, k) => k / 10), y: c.pit, width: 0.1, colour: 0, tips: c.pit.map((v, k) => `${k / 10} to ${(k + 1) / 10}: ${v}`) },
            { type: "band", x: [0, 1], lower: [expected - spread, expected - spread], upper: [expected + spread, expected + spread], colour: 6, opacity: 0.15, name: "by chance, if calibrated" },
          ],
          table: { head: ["from", "count"], lines: c.pit.map((v, k) => [k / 10, v]) },
        });
        if (c.scatter) {
          const [truth, mean, lower, upper] = c.scatter, both = range([...truth, ...mean], 0.05);
          specs.push({
            title: "Imputed against true values", alt: `Imputed against true values of ${c.name}, ${truth.length} hidden entries`,
            x: { label: `true ${c.label}`, range: both }, y: { label: `imputed ${c.label}`, range: both },
            layers: [
              { type: "line", x: both, y: both, grey: true, width: 1 },
              { type: "points", x: truth, y: mean, lower, upper, colour: 0, size: 3, thick: 0.5, opacity: 0.8, name: "mean and 90% interval", tips: truth.map((t, i) => `true ${show(t)}, imputed ${show(mean[i])} (${show(lower[i])} to ${show(upper[i])})`) },
            ],
            table: { head: ["true", "imputed", "lower", "upper"], lines: columns(c.scatter) },
          });
        }
        panels(canvas, ...specs);
      };
    },
    patients(chart, canvas, data) {
      const who = pick(chart, "Patient", data.people.map((p) => p.id));
      const what = pick(chart, "Measurement", data.measurements);
      return () => {
        const p = data.people[Number(who.value)], d = Number(what.value), v = p.values[d], label = data.measurements[d];
        const gap = new Set(v.gap), seen = p.at.map((_, k) => k).filter((k) => !gap.has(k));
        const at = (list) => list.map((k) => p.at[k]), value = (list) => list.map((k) => v.mean[k]);
        const layers = [], all = [...v.mean, ...v.lower, ...v.upper], times = [...p.at];
        const lines = p.at.map((t, k) => [t, v.mean[k], gap.has(k) ? "imputed" : "observed"]);
        if (p.fan) {
          const f = p.fan.values[d];
          layers.push({ type: "band", x: p.fan.at, lower: f.ends[0], upper: f.ends[3], colour: 1, opacity: 0.18, name: "forecast, 90%" });
          layers.push({ type: "band", x: p.fan.at, lower: f.ends[1], upper: f.ends[2], colour: 1, opacity: 0.35, dash: 1, name: "forecast, 50%" });
          layers.push({ type: "line", x: p.fan.at, y: f.mean, colour: 1, dash: 1, name: "forecast, mean" });
          layers.push({ type: "points", x: p.fan.at, y: f.mean, colour: 1, shape: "diamond", size: 3, tips: p.fan.at.map((t, k) => `forecast at ${show(t)}: ${show(f.mean[k])} (90%: ${show(f.ends[0][k])} to ${show(f.ends[3][k])})`) });
          all.push(...f.ends[0], ...f.ends[3]);
          times.push(...p.fan.at);
          p.fan.at.forEach((t, k) => lines.push([t, f.mean[k], "forecast"]));
        }
        layers.push({ type: "line", x: p.at, y: v.mean, grey: true, width: 1 });
        layers.push({ type: "points", x: at(seen), y: value(seen), colour: 0, name: "observed", tips: seen.map((k) => `observed at ${show(p.at[k])}: ${show(v.mean[k])}`) });
        if (v.gap.length) layers.push({ type: "points", x: at(v.gap), y: value(v.gap), lower: v.lower, upper: v.upper, colour: 3, shape: "square", hollow: true, name: "imputed, 90% interval", tips: v.gap.map((k, i) => `imputed at ${show(p.at[k])}: ${show(v.mean[k])} (${show(v.lower[i])} to ${show(v.upper[i])})`) });
        panels(canvas, {
          alt: `${label} of ${data.instance} ${p.id}: ${seen.length} observed, ${v.gap.length} imputed values${p.fan ? ", and a forecast" : ""}`,
          x: { label: data.axis, range: range(times, 0.03) }, y: { label, range: range(all) }, layers,
          table: { head: [data.axis, label, "what"], lines },
        });
      };
    },
    covariates(chart, canvas, data) {
      const select = pick(chart, "Covariate", data.map((c) => `${c.name} (${c.all} gaps)`));
      return () => {
        const c = data[Number(select.value)], names = c.gaps.map((g) => g.who);
        const rows = names.map((_, k) => k), tall = 60 + 22 * names.length, left = Math.min(150, 24 + 6.5 * Math.max(...names.map((n) => n.length)));
        const y = { names, range: [names.length - 0.5, -0.5], label: "" };
        if (c.kind === "continuous") {
          const part = (key, i) => c.gaps.map((g) => g[key][i]);
          const distributions = [["prior", "before: prior", 6, 3, "bar", -0.17], ["posterior", "after: posterior", 0, 0, "circle", 0.17]];
          panels(canvas, {
            height: tall, left, alt: `${c.name}: prior and posterior means and 90% intervals of ${names.length} gaps`,
            x: { label: c.label, range: range(["prior", "posterior"].flatMap((k) => [...part(k, 0), ...part(k, 1)])) }, y,
            layers: distributions.map(([key, name, k, dash, shape, shift]) => ({
              type: "points", across: true, x: part(key, 2), y: rows.map((r) => r + shift), lower: part(key, 0), upper: part(key, 1), colour: k, dash, shape, thick: 2, name: `${name}, 90% interval`,
              tips: c.gaps.map((g) => `${g.who}, ${name}: ${show(g[key][2])} (${show(g[key][0])} to ${show(g[key][1])})`),
            })),
            table: { head: ["gap of", "before", "after"], lines: c.gaps.map((g) => [g.who, g.prior[2], g.posterior[2]]) },
          });
          return;
        }
        const levels = c.levels.length === 2 ? [[c.levels[1], 1]] : c.levels.slice(0, 6).map((level, l) => [level, l]);
        panels(canvas, ...levels.map(([level, l]) => ({
            title: `probability of ${c.name} = ${level}`, height: tall, left, alt: `Probability that ${c.name} is ${level}, before and after, of ${names.length} gaps`,
            x: { label: "probability", range: [-0.02, 1.02] }, y,
            layers: [
              { type: "points", x: c.gaps.map((g) => g.prior[l]), y: rows, colour: 6, shape: "bar", size: 6, name: "before: prior", tips: c.gaps.map((g) => `${g.who}, before: ${show(g.prior[l])}`) },
              { type: "points", x: c.gaps.map((g) => g.posterior[l]), y: rows, colour: 0, name: "after: posterior", tips: c.gaps.map((g) => `${g.who}, after: ${show(g.posterior[l])}`) },
            ],
            table: { head: ["gap of", "before", "after"], lines: c.gaps.map((g) => [g.who, g.prior[l], g.posterior[l]]) },
        })));
      };
    },
    effects(chart, canvas, data) {
      const names = Object.keys(data.lines);
      const which = pick(chart, "Component", names), what = pick(chart, "Measurement", data.measurements);
      return () => {
        const name = names[Number(which.value)], c = data.lines[name], d = Number(what.value), lines = c.measurements[d];
        const layers = [];
        lines.forEach((line, k) => {
          const tips = line.at.map((t, i) => `${line.name ? `${line.name}, ` : ""}${c.levels ? c.levels[i] : show(t)}: ${show(line.mean[i])} (${show(line.lower[i])} to ${show(line.upper[i])})`);
          if (c.kind === "levels") {
            layers.push({ type: "points", x: line.at, y: line.mean, lower: line.lower, upper: line.upper, colour: k, tips, name: "mean and 90% interval" });
            return;
          }
          layers.push({ type: "band", x: line.at, lower: line.lower, upper: line.upper, colour: k, opacity: 0.15, dash: k });
          layers.push({ type: "line", x: line.at, y: line.mean, colour: k, dash: k, name: line.name || "mean and 90% band" });
          layers.push({ type: "points", x: line.at, y: line.mean, colour: k, size: 3, shape: SHAPES[k], tips });
        });
        const all = lines.flatMap((l) => [...l.lower, ...l.upper]), at = lines.flatMap((l) => l.at);
        const across = c.levels ? [-0.5, c.levels.length - 0.5] : range(at, 0.02);
        layers.unshift({ type: "line", x: across, y: [0, 0], grey: true, width: 1 });
        panels(canvas, {
          alt: `Effect of ${name} on ${data.measurements[d]}, from ${show(Math.min(...lines.flatMap((l) => l.mean)))} to ${show(Math.max(...lines.flatMap((l) => l.mean)))}`,
          x: { label: c.axis, range: across, names: c.levels }, y: { label: `effect on ${data.measurements[d]}`, range: range([...all, 0]) }, layers,
          table: { head: ["line", c.axis, "mean", "lower", "upper"], lines: lines.flatMap((l) => l.at.map((t, i) => [l.name, c.levels ? c.levels[i] : t, l.mean[i], l.lower[i], l.upper[i]])) },
        });
        if (c.note) element("p", canvas, c.note);
      };
    },
    latent(chart, canvas, data) {
      const select = pick(chart, "Colour", data.colours.map((c) => c.name));
      // The ends of the scale "cividis", which is even in greyscale and to colour-blind readers.
      const stops = [[0, 34, 78], [65, 77, 107], [124, 123, 120], [188, 175, 111], [254, 232, 56]];
      const shade = (u) => {
        const f = Math.max(0, Math.min(1, u)) * 4, k = Math.min(3, Math.floor(f));
        return `rgb(${stops[k].map((a, i) => Math.round(a + (stops[k + 1][i] - a) * (f - k))).join(",")})`;
      };
      return () => {
        const c = data.colours[Number(select.value)], layers = [];
        const who = (k) => (data.who ? `${data.who[k]}: ` : "");
        const take = (list, more) => layers.push({ type: "points", x: list.map((k) => data.x[k]), y: list.map((k) => data.y[k]), size: 2.6, opacity: 0.7, thin: true, tips: list.map((k) => `${who(k)}${c.name} ${c.values[k] === null ? "missing" : c.levels ? c.levels[c.values[k]] : show(c.values[k])}`), ...more });
        const index = data.x.map((_, k) => k);
        if (c.levels) c.levels.forEach((level, l) => take(index.filter((k) => c.values[k] === l), { colour: l, shape: SHAPES[l], name: level }));
        else {
          const sorted = c.values.filter((v) => v !== null).sort((a, b) => a - b);
          const low = sorted[Math.floor(0.02 * (sorted.length - 1))], high = sorted[Math.ceil(0.98 * (sorted.length - 1))];
          const known = index.filter((k) => c.values[k] !== null);
          take(known, { fills: known.map((k) => shade((c.values[k] - low) / (high - low || 1))), name: `dark ${show(low ?? null)} to light ${show(high ?? null)}` });
        }
        const lost = index.filter((k) => c.values[k] === null);
        if (lost.length) take(lost, { colour: 6, shape: "cross", size: 2.5, name: "missing" });
        panels(canvas, {
          alt: `Latent space of ${data.rows} rows, coloured by ${c.name}`, height: 380,
          x: { label: data.labels[0], range: range(data.x) }, y: { label: data.labels[1], range: range(data.y) }, layers,
        });
      };
    },
  };

  const redraws = [];
  for (const chart of document.querySelectorAll(".chart")) {
    const key = chart.dataset.chart, canvas = chart.querySelector(".canvas");
    const paint = draw[key](chart, canvas, facts[key]);
    const redraw = () => { canvas.replaceChildren(); tip.hidden = true; paint(); };
    for (const select of chart.querySelectorAll("select")) select.addEventListener("change", redraw);
    redraws.push(redraw);
    redraw();
  }
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    for (const redraw of redraws) redraw();
  });
})();
