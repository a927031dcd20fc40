// A module as levels of nodes: functions, groups of operations, loops and their bodies open into levels of their own.

// How many nodes may lie between two users of an argument that is drawn once for both.
const NEAR = 8;
// Ports of a level, before each of its nodes has one of its own.
const MOST_PORTS = 8;
// Characters of a name that is not shortened, of names that are listed below it, and of one beside a type.
const LONG_NAME = 34, LISTED = 44, BESIDE = 24;
// The path of a weight, with its name.
const WEIGHT = /^weights\['(.*)'\]$/;
// A step of a path, as facts.py has it.
const STEP = /\['(?:[^'\\]|\\.)*'\]|\["(?:[^"\\]|\\.)*"\]|\[[^\]]*\]|\.\w+|<\d+>|\/?[^[./<]+|./gs;
const BLOCKS = {while: ["condition", "body"], if: ["true", "false"]};
// What JAX calls the function that `main` calls after it has measured and checked the shapes of its arguments.
const WRAPPED = "_wrapped_jax_export_main";

// Index 0 to 7 of an operation, as graph.py makes it, and 0 to 5 of a group, as blocks.py does.
const KIND = 0, SCOPE = 1, SOURCE = 2, OPERANDS = 3, TYPES = 4, MORE = 5, INNER = 6, MARK = 7;
const TITLE = 0, ABOUT = 1, CALLED = 2, FIRST = 3, LAST = 4, GROUPS = 5;

class Module {
  constructor({name, texts, functions, labels, kinds, takes, errors, first}) {
    Object.assign(this, {texts, labels, kinds, takes, constants: false, errors: new Map()});
    for (const [own, id, ...both] of errors ?? []) this.errors.set(`${id} ${own}`, both.map((error) => error ?? Infinity));
    this.functions = new Map(functions.map(([own, block]) => [own, new Function_(this, own, block)]));
    this.main = this.functions.get("main") ?? this.functions.values().next().value;
    // What is drawn is the function itself, with what `main` does before the call beside it.
    this.call = this.main.block.ops.find((op) => op.text(MORE) === WRAPPED && op.called && same(op.results, this.main.block.returned));
    this.root = this.call?.called ?? this.main;
    this.first = first && this.functions.get(first[0])?.ops[first[1]];
    for (const one of [this.root, this.functions.get(WRAPPED)]) if (one) one.name = name;
  }

  // The first call of each function, from `main` on: how to get to its operations.
  callers() {
    if (!this.found) {
      this.found = new Map();
      this.calls = new Map();
      const waiting = [this.main];
      while (waiting.length) {
        for (const op of waiting.shift().ops) {
          const called = op.called;
          if (called) this.calls.set(called, (this.calls.get(called) ?? 0) + 1);
          if (called && called !== this.main && !this.found.has(called)) {
            this.found.set(called, op);
            waiting.push(called);
          }
        }
      }
    }
    return this.found;
  }

  // The only call of a function; undefined where there are several, or none.
  onlyCall(func) {
    const call = this.callers().get(func);
    return this.calls.get(func) === 1 ? call : undefined;
  }
}

class Function_ {
  constructor(module, name, block) {
    Object.assign(this, {module, name, key: name, ops: [], values: []});
    this.block = this.read(block, null);
  }

  // Its name without the number that makes it the only one of its name.
  get title() {
    const [, name] = /^(.+)_\d+$/.exec(this.name) ?? [];
    return this.module.functions.has(name) ? name : this.name;
  }

  // Numbers values as graph.py does: arguments, then results, then what is inside.
  read(block, parent) {
    const dimensions = new Map((block.d ?? []).map(([i, text]) => [i, this.module.texts[text]]));
    const made = {args: block.a, dimensions, returned: block.r ?? [], ops: [], parent, of: this, first: this.values.length};
    Object.assign(made, {groups: block.g ?? [], about: this.module.texts[block.s ?? 0]});
    const hidden = new Set(block.h);
    block.a.forEach((type, i) => this.values.push({type, arg: i, block: made}));
    for (const [i, raw] of block.o.entries()) {
      const op = new Operation(this, raw, made, this.ops.length);
      op.hidden = hidden.has(i);  // a number, or a copy of one: its users show it
      op.first = this.values.length;
      this.ops.push(op);
      made.ops.push(op);
      op.results = op.raw[TYPES].map((type) => this.values.push({type, op}) - 1);
      op.blocks = (raw[INNER] ?? []).map((inner) => this.read(inner, op));
      op.last = this.ops.length - 1;
    }
    return made;
  }
}

class Operation {
  constructor(of, raw, block, id) { Object.assign(this, {of, raw, block, id}); }
  text(which) { return this.of.module.texts[this.raw[which] ?? 0]; }
  get kind() { return this.text(KIND); }
  get mark() { return this.raw[MARK] ?? 0; }

  // By how much its result differs from that of another run, and how much of that it made itself: the most of all that is inside.
  get error() {
    if (!this.most) {
      this.most = [0, 0];  // for a function that calls itself
      const own = this.of.module.errors.get(`${this.id} ${this.of.key}`) ?? [0, 0];
      this.most = errorOf([...this.blocks.flatMap((block) => block.ops), ...(this.called?.block.ops ?? [])], own);
    }
    return this.most;
  }

  get types() { return this.raw[TYPES].map((type) => this.of.module.texts[type]); }
  get called() { return this.kind === "func.call" ? this.of.module.functions.get(this.text(MORE)) : undefined; }
  get opens() { return this.called !== undefined || this.blocks.some((block) => block.ops.length); }

  // All values that it takes, for what is inside of it, too.
  get uses() {
    if (!this.used) {
      this.used = [...this.raw[OPERANDS]];
      for (const block of this.blocks) {
        for (const op of block.ops) for (const value of op.uses) this.used.push(value);
        for (const value of block.returned) this.used.push(value);
      }
    }
    return this.used;
  }

  // The chain of operations that it is inside of, outermost first.
  get around() { return this.block.parent ? [...this.block.parent.around, this.block.parent] : []; }
}

// The nodes of a block: its operations in groups, its arguments and its results.
function levelOfBlock(block, key) {
  const {module} = block.of;
  const isRoot = block.of === module.root && !block.parent;
  const nodes = [...(isRoot ? checks(module, key) : []), ...nodesOf(block, key)];
  if (block.returned.length) nodes.push(outputs(block, key));
  return levelOf([...inputs(block, nodes, key), ...nodes], block.of, block.first);
}

// Nodes with their edges. Values of the function from before `first` enter at ports.
function levelOf(nodes, func, first) {
  const all = [...ports(nodes, func, first), ...nodes];
  return {of: func, nodes: all, edges: edges(all, func)};
}

// A port for all values from outside that the same nodes use; if these are many, one for all that a node uses. Weights have
// none: they are named where they are used.
function ports(nodes, func, first) {
  const entering = nodes.map((node) => [...new Set(usesOf(node))].filter((value) => value >= 0 && value < first && isPassed(func, value)));
  const users = new Map(), together = new Map();
  entering.forEach((values, i) => values.forEach((value) => users.set(value, [...(users.get(value) ?? []), i])));
  for (const [value, by] of users) together.set(by.join(), [...(together.get(by.join()) ?? []), value]);
  const isMany = together.size > MOST_PORTS;
  const found = isMany ? entering.map((values, i) => [values, [i]]) : [...together].map(([by, values]) => [values, by.split(",")]);
  return found.filter(([values]) => values.length).map(([values, by]) => ({
    type: "port", ops: [], values, weight: 0.05, mark: 0, top: !isMany, users: by.map((i) => nodes[i]),
    title: values.length > 1 || func.values[values[0]].op ? "" : argument(func.values[values[0]].block, func.values[values[0]].arg).name,
  }));
}

function isPassed(func, value) {
  const {op, arg, block} = func.values[value];
  if (op) return !op.hidden || func.module.constants;
  const {name, kind} = argument(block, arg);
  return kind !== "dimension" && !isWeight(name, kind);
}

function isWeight(name, kind) { return kind === "weight" || (kind === "argument" && steps(name).length > 1); }

function visible(module, ops) {
  const shown = module.constants ? ops : ops.filter((op) => !op.hidden);
  return shown.length ? shown : ops;
}

// Nodes for a part of a block, and for the groups in it.
function nodesOf(block, key, groups = block.groups, ops = visible(block.of.module, block.ops)) {
  const at = new Map(block.ops.map((op, i) => [op, i])), nodes = [];
  let i = 0;
  const before = (end) => { while (i < ops.length && at.get(ops[i]) < end) nodes.push(nodeOfOperation(ops[i++], key)); };
  for (const raw of groups) {
    before(raw[FIRST]);
    const inside = [];
    while (i < ops.length && at.get(ops[i]) <= raw[LAST]) inside.push(ops[i++]);
    if (inside.length) nodes.push(nodeOfGroup(block, raw, inside, key));
  }
  before(Infinity);
  return nodes;
}

function nodeOfGroup(block, raw, ops, key) {
  const {texts} = block.of.module, title = texts[raw[TITLE]];
  if (raw[FIRST] === raw[LAST] && ops[0].called) return {...nodeOfOperation(ops[0], key), title};
  const node = group("scope", title, ops, key, (own) => nodesOf(block, own, raw[GROUPS] ?? [], ops), texts[raw[ABOUT]]);
  return {...node, called: texts[raw[CALLED]]};
}

function same(a, b) { return a.length === b.length && a.every((one, i) => one === b[i]); }

// What `main` does before it calls the function, as a node of the function's level: it takes arguments as they are passed.
function checks(module, key) {
  const ops = module.call ? visible(module, module.main.block.ops).filter((op) => op !== module.call) : [];
  if (!ops.length) return [];
  const {block} = module.main;
  const node = group("checks", "shape checks", ops, key, (own) => nodesOf(block, own, [], ops));
  const passed = new Map(module.call.raw[OPERANDS].map((value, i) => [value, i]));
  const taken = new Set(ops.flatMap((op) => op.uses).filter((value) => passed.has(value) && !module.main.values[value]?.op));
  return [{...node, type: "scope", aside: true, uses: [...taken].map((value) => passed.get(value))}];
}

function group(type, title, ops, key, nodes, about = "") {
  const own = `${key}/${type}${ops[0].id}-${ops[ops.length - 1].id}`;
  return {
    type, title, ops, key: own, sub: summary(ops, about), mark: marked(ops),
    level: () => levelOf(nodes(own), ops[0].of, ops[0].first),
  };
}

function nodeOfOperation(op, key) {
  const own = `${key}/${op.id}`, calls = op.called;
  const node = {type: calls ? "call" : "op", op, ops: [op], key: own, mark: marked([op])};
  node.title = calls ? calls.title : short(op.kind);
  node.sub = calls ? summary(calls.block.ops, calls.block.about) : said(op);
  if (calls) node.level = () => levelOfBlock(calls.block, own);
  else if (op.opens) node.level = () => levelOfBlocks(op, own);
  return node;
}

// What is inside of an operation: its only block, or a node for each.
function levelOfBlocks(op, key) {
  if (op.blocks.length === 1) return levelOfBlock(op.blocks[0], key);
  const names = BLOCKS[op.kind] ?? [];
  const nodes = op.blocks.map((block, i) => {
    const own = `${key}/block${i}`;
    return {
      type: "scope", title: names[i] ?? `branch ${i}`, ops: block.ops, block, key: own,
      sub: summary(block.ops, block.about), mark: marked(block.ops),
      level: block.ops.length ? () => levelOfBlock(block, own) : undefined,
    };
  });
  return {nodes, edges: []};
}

// A node for all arguments of a kind that the same nodes use; once more for users that stand far below.
function inputs(block, nodes, key) {
  const {module} = block.of;
  const users = new Map();
  nodes.forEach((node, i) => {
    for (const value of new Set(usesOf(node))) {
      if (value < block.first || value >= block.first + block.args.length) continue;
      const near = users.get(value) ?? users.set(value, []).get(value);
      if (near.length && i - near.at(-1).at(-1) <= NEAR) near.at(-1).push(i);
      else near.push([i]);
    }
  });
  const together = new Map();
  for (const [value, places] of [...users].sort((a, b) => a[0] - b[0])) {
    const {name, kind} = argument(block, value - block.first);
    if (kind === "dimension" && !module.constants) continue;  // types say it
    for (const by of places) {
      const alike = `${kind} ${isWeight(name, kind)} ${by.join()}`;
      const one = together.get(alike) ?? together.set(alike, {by, kind, values: [], names: []}).get(alike);
      one.values.push(value);
      one.names.push(name);
    }
  }
  return [...together.values()].map(({by, kind, values, names}) => ({
    type: "input", of: block.of, ops: [], values, names, weight: 0.001, key: `${key}/in${values[0]}-${by[0]}`, mark: 0,
    users: by.map((i) => nodes[i]),
    title: names.length === 1 ? end(names[0], LONG_NAME) : counted(kind, names.length, module.takes[kind]),
    sub: names.length === 1 ? module.texts[block.of.values[values[0]].type] : listed(names),
  }));
}

// The steps of a path; the first one is as in "args[0]".
function steps(name) {
  const [first, second = "", ...rest] = (WEIGHT.exec(name)?.[1] ?? name).match(STEP) ?? [name];
  return second.startsWith("[") ? [first + second, ...rest] : [first, second, ...rest].filter(Boolean);
}

// The end of a path, as many steps as there is room for.
function end(name, room) {
  const parts = steps(name);
  if (name.length <= room || parts.length < 2) return name;
  do parts.shift(); while (parts.length > 1 && parts.join("").length >= room);
  return `…${parts.join("")}`;
}

// Names, or what they have in common before them, as many as there is room for: "args[0]['b1']: ['bias'], 3 more".
function listed(names) {
  const parts = names.map(steps);
  let same = 0;
  while (parts.every((part) => part.length > same + 1 && part[same] === parts[0][same])) same++;
  const before = parts[0].slice(0, same).join(""), shown = [];
  let left = LISTED - before.length;
  for (const part of parts) {
    const name = part.slice(same).join("");
    left -= name.length + 2;
    if ((before || shown.length) && left < 0) break;
    shown.push(name);
  }
  const more = names.length - shown.length;
  if (!shown.length) return before;
  return `${before ? `${before}: ` : ""}${shown.join(", ")}${more ? `, ${more.toLocaleString("en")} more` : ""}`;
}

// How many arguments of a kind, and of how many the function has.
function counted(kind, count, all = count) {
  const [some, whole] = [count, all].map((number) => number.toLocaleString("en"));
  return `${count < all ? `${some} of ${whole}` : some} ${kind || "argument"}s`;
}

// The name and the kind of an argument. That of a function that is called once is what the call passes.
function argument(block, i) {
  const {module} = block.of;
  let at = {block, arg: i};
  while (!at.block.parent && at.block.of !== module.main) {
    const call = module.onlyCall(at.block.of), passed = call?.of.values[call.raw[OPERANDS][at.arg]];
    if (!passed || passed.op) break;
    at = passed;
  }
  const isOfMain = at.block.of === module.main && !at.block.parent;
  if (isOfMain && module.labels[at.arg] !== undefined) return {name: module.labels[at.arg], kind: module.kinds[at.arg]};
  const dimension = at.block.dimensions.get(at.arg);
  return dimension === undefined ? {name: `argument ${i}`, kind: ""} : {name: dimension, kind: "dimension"};
}

function outputs(block, key) {
  const count = block.returned.length;
  return {
    type: "output", ops: [], uses: block.returned, key: `${key}/out`, mark: 0,
    title: count === 1 ? "result" : `${count.toLocaleString("en")} results`,
    sub: count === 1 ? typeOf(block.of, block.returned[0]) : "",
  };
}

function typeOf(func, value) { return value < 0 ? "" : func.module.texts[func.values[value].type]; }

function usesOf(node) { return node.uses ?? node.ops.flatMap((op) => op.uses); }

// One edge for all values of a function that go from a node to another.
function edges(nodes, func) {
  const from = new Map(), made = new Map();
  const add = (source, to, value) => {
    const name = `${source}-${to}`;
    if (!made.has(name)) made.set(name, {from: source, to, values: []});
    made.get(name).values.push(value);
  };
  nodes.forEach((node, i) => {
    for (const op of node.ops) if (op.of === func) for (const value of op.results) from.set(value, i);
  });
  nodes.forEach((node, to) => {
    if (node.block) return;
    for (const user of node.users ?? []) for (const value of node.values) add(to, nodes.indexOf(user), value);
    for (const value of new Set(usesOf(node))) {
      const source = from.get(value);
      if (source !== undefined && source < to) add(source, to, value);
    }
  });
  return [...made.values()];
}

function marked(ops) { return ops.reduce((sum, op) => sum + op.mark + op.blocks.reduce((inner, block) => inner + marked(block.ops), 0), 0); }

function errorOf(ops, start = [0, 0]) { return ops.reduce((most, {error}) => most.map((one, i) => Math.max(one, error[i])), start); }

function short(kind) { return kind.replace(/^(func|chlo|sdy)\./, ""); }

function summary(ops, about) { return `${ops.length.toLocaleString("en")} op${ops.length === 1 ? "" : "s"}${about ? `: ${about}` : ""}`; }

// What there is to say of an operation below its kind.
function said(op) {
  const more = op.text(MORE);
  if (op.kind === "custom_call" || op.kind === "composite") return more;
  if (op.kind === "constant") return more || op.types[0];
  const numbers = op.raw[OPERANDS].map((i) => (i >= 0 ? op.of.values[i].op : undefined))
    .filter((from) => from?.hidden).map(numberOf).filter(Boolean);
  if (op.kind === "compare") return (/comparison_direction = (\w+)/.exec(more)?.[1] ?? "") + (numbers.length ? ` ${numbers.join(", ")}` : "");
  if (numbers.length && !op.blocks.length) return numbers.join(", ");
  const weights = op.raw[OPERANDS].filter((i) => i >= 0 && op.of.values[i].arg !== undefined)
    .map((i) => ({...argument(op.of.values[i].block, op.of.values[i].arg), type: typeOf(op.of, i)})).filter(({name, kind}) => isWeight(name, kind));
  if (weights.length && !op.blocks.length) return weights.map(({name, type}) => `${end(name, BESIDE)} ${type}`).join(", ");
  const body = op.blocks.length === 1 && op.blocks[0].ops.length === 1 ? short(op.blocks[0].ops[0].kind) : "";
  return body || (op.blocks.length ? `${(op.last - op.id).toLocaleString("en")} ops inside` : "");
}

function numberOf(op) {
  if (op.kind === "constant") return op.text(MORE);
  if (op.raw[OPERANDS].length > 1) return "";
  const from = op.of.values[op.raw[OPERANDS][0]]?.op;
  return from ? numberOf(from) : "";
}
