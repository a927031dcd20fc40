// The page: draws the module, answers to keys, finds operations. All names of the artifact are put in as text.

const SVG = "http://www.w3.org/2000/svg";
const PAD = 14, PARTS = 3, HEAD = 34, MOST_OPEN = 400, FIRST_OPEN = 36, READABLE = 0.6, MOST_FOUND = 60, LONGEST_TITLE = 80, LONGEST_SUB = 64, LONGEST_TYPE = 40;

const data = JSON.parse(document.getElementById("data").textContent);
const view = {
  box: document.querySelector("#graph"), canvas: document.querySelector("#canvas"), about: document.querySelector("#about"),
  search: document.querySelector("#search"), found: document.querySelector("#found"), tabs: document.querySelector("#tabs"),
  zoom: 1, open: new Set(), shown: [], chosen: null, modules: data.modules.map((raw) => (raw.functions ? new Module(raw) : null)),
};
const pen = document.createElement("canvas").getContext("2d");

function make(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function draw(parent, name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return parent.appendChild(made);
}

function shortened(text, most = LONGEST_TITLE) { return text.length > most ? `${text.slice(0, most - 1)}…` : text; }

function width(text, font) {
  pen.font = font;
  return pen.measureText(text).width;
}

// --- drawing ---

// The sizes of a level and of all that is open in it.
function measure(level, fonts) {
  label(level, fonts);
  for (const node of level.nodes) {
    if (node.type === "port") {
      [node.w, node.h] = [8, 0];
      continue;
    }
    node.inside = null;
    node.title1 = shortened(node.title);
    node.sub1 = shortened(node.sub ?? "", LONGEST_SUB);
    const wide = Math.max(width(node.title1, fonts.title), width(node.sub1, fonts.sub)) + (node.level ? 42 : 26);
    node.w = Math.max(72, wide);
    node.h = node.sub1 ? 40 : 28;
    if (node.level && view.open.has(node.key)) {
      node.inside = node.level();
      const size = measure(node.inside, fonts);
      node.w = Math.max(node.w, size.w + 2 * PAD);
      node.h = HEAD + size.h + PAD;
    }
  }
  for (const edge of level.edges) edge.ends = toPorts(level, edge);
  level.size = layered(level.nodes, level.edges);
  return level.size;
}

// What stands at the edges below each node: the types of its values.
function label(level, fonts) {
  const texts = level.nodes.map(() => new Set());
  for (const {from, values} of level.edges) {
    texts[from].add(values.length === 1 ? typeOf(level.of, values[0]) : `${values.length.toLocaleString("en")} arrays`);
  }
  level.nodes.forEach((node, i) => {
    if (node.type === "input" || !texts[i].size) return;
    node.label = shortened([end(node.type === "port" ? node.title : "", BESIDE), [...texts[i]].join(", ")].filter(Boolean).join(" "), LONGEST_TYPE);
    node.beside = 6 + width(node.label, fonts.label);
  });
}

// How far from the middle of an open node its ports for the values of an edge are.
function toPorts(level, edge) {
  const {inside} = level.nodes[edge.to];
  if (inside?.of !== level.of) return [0];
  const ports = inside.nodes.filter(({type, top, values}) => type === "port" && top && edge.values.some((value) => values.includes(value)));
  return ports.length ? ports.map((port) => port.x + port.w / 2 - inside.size.w / 2) : [0];
}

function redraw(keep) {
  const module = view.modules[view.at], focused = view.box.contains(document.activeElement);
  view.canvas.replaceChildren();
  view.shown = [];
  if (!module) return;
  const family = getComputedStyle(view.canvas).fontFamily;
  const fonts = {title: `600 12.5px ${family}`, sub: `11px ${family}`, label: `10px ${family}`};
  const level = levelOfBlock(module.root.block, `${view.at}`);
  const size = measure(level, fonts);
  view.size = {w: size.w + 2 * PAD, h: size.h + 2 * PAD};
  view.canvas.setAttribute("viewBox", `${-PAD} ${-PAD} ${view.size.w} ${view.size.h}`);
  const marker = draw(draw(view.canvas, "defs", {}), "marker", {
    id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto",
  });
  draw(marker, "path", {d: "M0 0.5 L8 4 L0 7.5 z"});
  drawLevel(view.canvas, level, fonts);
  scale(view.zoom);
  const again = keep && view.shown.find(({node}) => node.key === keep);
  choose(again ?? view.shown[0], Boolean(again) && focused);
}

function drawLevel(parent, level, fonts, above = null) {
  const lines = draw(parent, "g", {class: "edges"});
  for (const node of level.nodes) {
    if (node.type === "port") continue;
    const group_ = draw(parent, "g", {transform: `translate(${node.x} ${node.y})`, class: look(node)});
    const at = {node, group: group_, above};
    at.box = group_;
    draw(group_, "rect", {width: node.w, height: node.h, rx: node.inside ? 8 : 6});
    if (node.level) draw(group_, "path", {class: "fold", d: node.inside ? "M10 12 l8 0 l-4 6 z" : "M11 10 l6 4 l-6 4 z"});
    if (node.inside) {  // below the head, which lines from the border pass
      const body = draw(group_, "g", {transform: `translate(${(node.w - node.inside.size.w) / 2} ${HEAD})`});
      drawLevel(body, node.inside, fonts, at);
    }
    const left = node.level ? 24 : 13;
    draw(group_, "text", {class: "title", x: left, y: node.sub1 && !node.inside ? 17 : 19}, node.title1);
    if (node.sub1 && !node.inside) draw(group_, "text", {class: "sub", x: left, y: 32}, node.sub1);
    if (node.inside) {
      const beside = left + width(node.title1, fonts.title) + 10;
      if (beside + width(node.sub1, fonts.sub) < node.w - 8) draw(group_, "text", {class: "sub", x: beside, y: 19}, node.sub1);
    }
    group_.setAttribute("role", "button");
    group_.setAttribute("tabindex", "-1");
    group_.setAttribute("aria-label", `${node.title}, ${node.sub ?? ""}`);
    if (node.level) group_.setAttribute("aria-expanded", String(Boolean(node.inside)));
    group_.addEventListener("click", (event) => { event.stopPropagation(); choose(at, true); if (event.detail === 2) toggle(at); });
    view.shown.push(at);
    if (node.level) {
      group_.querySelector(".fold").addEventListener("click", (event) => { event.stopPropagation(); choose(at, true); toggle(at); });
    }
  }
  drawEdges(lines, level);
}

function look(node) {
  const change = node.mark ? ` ${data.modules[view.at].side === 0 ? "removed" : "added"}` : "";
  return `node ${node.type}${node.inside ? " open" : ""}${change}${colour(errorOf(node.ops))}`;
}

// Red for what an operation adds to the error of its operands, yellow for what reached it, in four strengths.
function colour([error, own]) {
  if (!error) return "";
  return ` ${own ? "own" : "reached"} strength${Math.min(4, Math.max(1, Math.ceil(Math.log10(own || error) / 2) + 4))}`;
}

function curve(x, y, toX, toY) {
  const half = (toY - y) / 2;
  return Math.abs(toX - x) < 0.5 ? ` L${toX} ${toY}` : ` C${x} ${y + half} ${toX} ${toY - half} ${toX} ${toY}`;
}

function drawEdges(parent, level) {
  for (const edge of level.edges) {
    const [first, below, ...rest] = edge.points;
    const from = level.nodes[edge.from];
    let path = `M${first[0]} ${from.top ? -HEAD : first[1]} L${below[0]} ${below[1]}`, [x, y] = below;
    const last = rest.pop();
    for (const [toX, toY] of rest) {
      path += curve(x, y, toX, toY);
      [x, y] = [toX, toY];
    }
    for (const aside of edge.ends) draw(parent, "path", {d: path + curve(x, y, last[0] + aside, last[1]), "marker-end": "url(#arrow)"});
  }
  for (const node of level.nodes) {
    if (node.label) draw(parent, "text", {x: node.x + node.w / 2 + 6, y: node.y + node.h + 12}, node.label);
  }
}

function scale(zoom) {
  view.zoom = Math.min(2.5, Math.max(0.15, zoom));
  if (!view.size) return;
  view.canvas.setAttribute("width", view.size.w * view.zoom);
  view.canvas.setAttribute("height", view.size.h * view.zoom);
}

function fit() {
  if (view.size) scale(Math.min(1, (view.box.clientWidth - 4) / view.size.w));
}

// --- choosing, opening ---

function choose(at, focus) {
  view.chosen?.group.setAttribute("tabindex", "-1");
  view.chosen?.group.classList.remove("chosen");
  view.chosen = at ?? null;
  if (!at) return;
  at.group.setAttribute("tabindex", "0");
  if (focus) {
    at.group.classList.add("chosen");
    at.group.focus({preventScroll: true});
    intoSight(at);
    describe(at.node);
  }
}

// Scrolls to the middle of the node, or of its head, if it is not in sight.
function intoSight(at) {
  const box = view.box.getBoundingClientRect(), own = at.group.firstChild.getBoundingClientRect();
  const x = Math.min((own.left + own.right) / 2, own.left + box.width / 2), y = own.top + HEAD / 2;
  const dx = x < box.left + 40 || x > box.right - 40 ? x - (box.left + box.right) / 2 : 0;
  const dy = y < box.top + 30 || y > box.bottom - 60 ? y - (box.top + box.bottom) / 2 : 0;
  view.box.scrollBy(dx, dy);
}

function toggle(at) {
  if (!at.node.level) return;
  if (!view.open.delete(at.node.key)) view.open.add(at.node.key);
  redraw(at.node.key);
}

// What is folded at first: shape checks, and the operation that a reduction makes.
function isDetail(node) { return node.aside || (node.type === "op" && /^(reduce|sort|scatter|map)/.test(node.title)); }

// Opens levels, outer ones first, while there is room for their nodes. If all is in one block, that one is opened. If not all
// fits at first, what has several parts is opened, and only the first of those that are alike.
function openUpTo(most) {
  const module = view.modules[view.at];
  if (!module || open(most, () => true) || most > FIRST_OPEN) return;
  open(most, (node, all) => {
    const isOnly = all.every((other) => other === node || !other.level || other.ops.length < PARTS || isDetail(other));
    return isOnly || (parts(node) >= PARTS && all.find((other) => other.sub === node.sub) === node);
  });
}

function parts(node) { return node.level().nodes.filter((inner) => inner.level && !isDetail(inner)).length; }

function drawn(nodes) { return nodes.filter((node) => node.type !== "port").length; }

function open(most, isWanted) {
  const root = levelOfBlock(view.modules[view.at].root.block, `${view.at}`).nodes;
  let waiting = [root], count = drawn(root), isAll = true;
  view.open.clear();
  while (waiting.length) {
    const next = [];
    const opening = waiting.flatMap((nodes) => nodes.filter((node) => node.level && (most > FIRST_OPEN || !isDetail(node)) && isWanted(node, nodes)));
    for (const node of opening) {
      const inner = node.level().nodes;
      if (count + drawn(inner) > most && (opening.length > 1 || count > most)) {
        isAll = false;
        continue;
      }
      count += drawn(inner);
      view.open.add(node.key);
      next.push(inner);
    }
    waiting = next;
  }
  return isAll;
}

function describe(node) {
  const rows = [];
  const op = node.op;
  const list = node.uses ?? op?.raw[OPERANDS] ?? [];
  const func = op?.of ?? node.of ?? view.modules[view.at].root;
  if (op) {
    rows.push(["operation", op.kind], ["function", func.name], ["scope", op.text(SCOPE)], ["source", op.text(SOURCE)]);
    rows.push(["says", op.text(MORE)], ["results", op.types.join("\n")]);
  } else if (node.values) {
    rows.push(["arguments", node.values.slice(0, 40).map((value, i) => `${node.names[i]}  ${typeOf(func, value)}`).join("\n")]);
  } else if (node.ops.length) {
    rows.push(["contains", node.sub], ["called at", node.called], ["scope", node.ops[0].text(SCOPE)], ["source", node.ops[0].text(SOURCE)]);
  }
  if (list.length) rows.push(["takes", list.slice(0, 20).map((value) => origin(func, value)).join("\n")]);
  const [error, own] = errorOf(node.ops);
  if (error) rows.push(["error", `${part(error)}\n${own ? "more than its operands and rounding explain" : "as its operands or rounding explain"}`]);
  if (node.mark) rows.push(["differs", `${node.mark.toLocaleString("en")} without a counterpart`]);
  const shown = make("dl");
  for (const [name, text] of rows) if (text) shown.append(make("dt", "", name), make("dd", "", text));
  view.about.replaceChildren(make("h3", "", node.title), shown);
}

function part(error) { return Number.isFinite(error) ? `${error.toPrecision(2)} of its size` : "other integers, NaN or infinities"; }

function origin(func, value) {
  if (value < 0) return "from outside";
  const {op, arg, block} = func.values[value];
  if (!op) return `${argument(block, arg).name}  ${typeOf(func, value)}`;
  return `${short(op.kind)}${op.hidden ? ` ${numberOf(op)}` : ""}  ${typeOf(func, value)}`;
}

// --- finding ---

function matches(words) {
  const module = view.modules[view.at], found = [];
  if (!module) return found;
  for (const func of module.functions.values()) {
    if (func !== module.main && !module.callers().has(func)) continue;
    for (const op of func.ops) {
      if (op === module.call) continue;
      const text = `${op.kind} ${op.text(SCOPE)} ${op.text(SOURCE)} ${op.text(MORE)} ${op.types.join(" ")} ${func.name}`.toLowerCase();
      if (words.every((word) => text.includes(word))) found.push(op);
    }
  }
  return found;
}

function find() {
  const words = view.search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = words.length ? matches(words) : [];
  const rows = found.slice(0, MOST_FOUND).map((op) => {
    const row = make("button", "hit");
    row.type = "button";
    row.append(make("b", "", short(op.kind)), make("span", "", op.text(SCOPE) || op.of.name), make("code", "", op.types[0] ?? ""));
    row.addEventListener("click", () => reveal(op));
    return row;
  });
  const count = `${found.length.toLocaleString("en")} found${found.length > MOST_FOUND ? `, the first ${MOST_FOUND} shown` : ""}`;
  view.found.replaceChildren(...(words.length ? [make("p", "size", count), ...rows] : []));
  view.found.hidden = !words.length;
}

// Opens all that an operation is inside of, and chooses it.
function reveal(op) {
  const module = view.modules[view.at], steps = [];
  if (op.hidden && !module.constants) constants(true);
  for (let at = op; at; at = at.of === module.root ? null : module.callers().get(at.of)) steps.unshift(...at.around, at);
  let level = levelOfBlock(module.root.block, `${view.at}`), key = null;
  for (const step of steps) {
    let node = level.nodes.find((one) => holds(one, step));
    while (node && node.op !== step) {
      view.open.add(node.key);
      level = node.level();
      node = level.nodes.find((one) => holds(one, step));
    }
    if (!node) break;
    key = node.key;
    if (step !== op) {
      view.open.add(node.key);
      level = node.level();
    }
  }
  view.found.hidden = true;
  redraw(key);
  choose(view.shown.find(({node}) => node.key === key), true);
}

function holds(node, op) { return node.ops.some((own) => own === op || (own.of === op.of && own.id <= op.id && op.id <= own.last)); }

function constants(shown) {
  document.querySelector("#constants").checked = shown;
  for (const module of view.modules) if (module) module.constants = shown;
}

// --- keys and pointers ---

const DIRECTIONS = {ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowRight: [1, 0], ArrowLeft: [-1, 0]};

function nearest(at, [dx, dy]) {
  const own = at.group.firstChild.getBoundingClientRect();
  const x = (own.left + own.right) / 2, y = dy ? (own.top + own.bottom) / 2 : own.top;
  let best = null, least = Infinity;
  for (const other of view.shown) {
    if (other === at || other.above !== at.above) continue;
    const box = other.group.firstChild.getBoundingClientRect();
    const along = ((box.left + box.right) / 2 - x) * dx + ((dy ? (box.top + box.bottom) / 2 : box.top) - y) * dy;
    const aside = Math.abs(dx ? box.top - y : (box.left + box.right) / 2 - x);
    if (along > 1 && along + 2 * aside < least) [best, least] = [other, along + 2 * aside];
  }
  return best;
}

function onKey(event) {
  const at = view.chosen;
  if (!at || event.ctrlKey || event.metaKey || event.altKey) return;
  const direction = DIRECTIONS[event.key];
  if (direction) {
    const inner = event.key === "ArrowDown" && at.node.inside ? view.shown.find((one) => one.above === at) : null;
    choose(inner ?? nearest(at, direction) ?? at, true);
  } else if (event.key === "Enter" || event.key === " ") toggle(at);
  else if (event.key === "Escape" && at.above) choose(at.above, true);
  else if (event.key === "+" || event.key === "-") scale(view.zoom * (event.key === "+" ? 1.25 : 0.8));
  else if (event.key === "0") fit();
  else return;
  event.preventDefault();
}

function drag(event) {
  if (event.pointerType !== "mouse" || event.button) return;
  const start = [event.clientX + view.box.scrollLeft, event.clientY + view.box.scrollTop];
  const move = (now) => view.box.scrollTo(start[0] - now.clientX, start[1] - now.clientY);
  view.box.classList.add("dragged");
  window.addEventListener("pointermove", move);
  window.addEventListener("pointerup", () => {
    view.box.classList.remove("dragged");
    window.removeEventListener("pointermove", move);
  }, {once: true});
}

function show(at) {
  view.at = at;
  [...view.tabs.children].forEach((tab, i) => {
    tab.setAttribute("aria-selected", String(i === at));
    tab.tabIndex = i === at ? 0 : -1;
  });
  document.querySelector("#why").textContent = data.modules[at].why ?? "";
  document.querySelector("#drawn").hidden = !view.modules[at];
  view.about.replaceChildren();
  view.search.value = "";
  find();
  openUpTo(FIRST_OPEN);
  redraw();
  fit();
  for (const key of [...view.open].reverse()) {  // inner ones first, until the rest is not too wide to be read
    if (view.zoom >= READABLE) break;
    view.open.delete(key);
    redraw();
    fit();
  }
  view.box.scrollTo((view.box.scrollWidth - view.box.clientWidth) / 2, 0);
  if (view.modules[at]?.first) reveal(view.modules[at].first);
}

function start() {
  data.modules.forEach(({label}, i) => {
    const tab = make("button", "", label);
    tab.type = "button";
    tab.setAttribute("role", "tab");
    tab.addEventListener("click", () => show(i));
    view.tabs.append(tab);
  });
  view.tabs.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    const next = view.tabs.children[view.at + step];
    if (next) { show(view.at + step); next.focus(); }
  });
  const buttons = {
    closer: () => scale(view.zoom * 1.25), farther: () => scale(view.zoom * 0.8), fit,
    all: () => { openUpTo(MOST_OPEN); redraw(); }, none: () => { view.open.clear(); redraw(); },
  };
  for (const [name, action] of Object.entries(buttons)) document.querySelector(`#${name}`).addEventListener("click", action);
  document.querySelector("#constants").addEventListener("change", (event) => { constants(event.target.checked); redraw(view.chosen?.node.key); });
  view.search.addEventListener("input", find);
  view.search.addEventListener("keydown", (event) => { if (event.key === "Escape") { view.search.value = ""; find(); } });
  view.canvas.addEventListener("keydown", onKey);
  view.box.addEventListener("pointerdown", drag);
  view.box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    scale(view.zoom * (event.deltaY < 0 ? 1.1 : 0.9));
  }, {passive: false});
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      view.search.focus();
    }
  });
  const folded = new Set();
  window.addEventListener("beforeprint", () => document.querySelectorAll("details:not([open])").forEach((one) => { folded.add(one); one.open = true; }));
  window.addEventListener("afterprint", () => { folded.forEach((one) => { one.open = false; }); folded.clear(); });
  view.tabs.hidden = data.modules.length < 2;
  document.querySelector("#drawing").hidden = false;
  const named = data.modules.findIndex(({first}) => first);
  show(named >= 0 ? named : Math.max(0, data.modules.findIndex(({side}) => side === 1)));
}

if (data.modules.length) start();
