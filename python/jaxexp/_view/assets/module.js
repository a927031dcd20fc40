// A module as levels of nodes: functions, name scopes, loops and their bodies open into levels of their own.

// Nodes of a level before they are put into groups, and the size of such a group.
const MOST_NODES = 60, GROUP = 40;
// How many nodes may lie between two users of an argument that is drawn once for both.
const NEAR = 8;
const COPIES = new Set(["broadcast_in_dim", "convert", "reshape"]);
// The path of a weight, with its name.
const WEIGHT = /^weights\['(.*)'\]$/;
const BLOCKS = {while: ["condition", "body"], if: ["true", "false"]};
// What JAX calls the function that `main` calls after it has measured and checked the shapes of its arguments.
const WRAPPED = "_wrapped_jax_export_main";

// Index 0 to 7 of an operation, as graph.py makes it.
const KIND = 0, SCOPE = 1, SOURCE = 2, OPERANDS = 3, TYPES = 4, MORE = 5, INNER = 6, MARK = 7;

class Module {
  constructor({name, texts, functions, labels, kinds, takes}) {
    Object.assign(this, {texts, labels, kinds, takes, constants: false});
    this.functions = new Map(functions.map(([own, block]) => [own, new Function_(this, own, block)]));
    this.main = this.functions.get("main") ?? this.functions.values().next().value;
    // What is drawn is the function itself, with what `main` does before the call beside it.
    this.call = this.main.block.ops.find((op) => op.text(MORE) === WRAPPED && op.called && same(op.results, this.main.block.returned));
    this.root = this.call?.called ?? this.main;
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
    Object.assign(this, {module, name, ops: [], values: []});
    this.block = this.read(block, null);
  }

  // Numbers values as graph.py does: arguments, then results, then what is inside.
  read(block, parent) {
    const dimensions = new Map((block.d ?? []).map(([i, text]) => [i, this.module.texts[text]]));
    const made = {args: block.a, dimensions, returned: block.r ?? [], ops: [], parent, of: this, first: this.values.length};
    block.a.forEach((type, i) => this.values.push({type, arg: i, block: made}));
    for (const raw of block.o) {
      const op = new Operation(this, raw, made, this.ops.length);
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
  get types() { return this.raw[TYPES].map((type) => this.of.module.texts[type]); }
  get called() { return this.kind === "func.call" ? this.of.module.functions.get(this.text(MORE)) : undefined; }
  get opens() { return this.called !== undefined || this.blocks.some((block) => block.ops.length); }

  // A number, or one that was only spread out: its users show it.
  get hidden() {
    if (this.quiet === undefined) {
      const values = this.of.values;
      this.quiet = (this.kind === "constant" && (this.text(MORE) !== "" || this.types[0].endsWith("[]"))) ||
        (COPIES.has(this.kind) && this.raw[OPERANDS].every((i) => i >= 0 && values[i].op?.hidden));
    }
    return this.quiet;
  }

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

// The nodes of a block: its operations by name scopes, its arguments and its results.
function levelOfBlock(block, key) {
  const {module} = block.of;
  let ops = visible(module, block.ops);
  if (!ops.length) ops = block.ops;
  const isRoot = block.of === module.root && !block.parent;
  const nodes = [...(isRoot ? checks(module, key) : []), ...grouped(scoped(ops, isRoot), key, 0)];
  const level = {nodes: [...inputs(block, nodes, key), ...nodes], edges: []};
  if (block.returned.length) level.nodes.push(outputs(block, key));
  level.edges = edges(level.nodes, block.of);
  return level;
}

function visible(module, ops) { return module.constants ? ops : ops.filter((op) => !op.hidden); }

function same(a, b) { return a.length === b.length && a.every((one, i) => one === b[i]); }

// What `main` does before it calls the function, as a node of the function's level: it takes arguments as they are passed.
function checks(module, key) {
  const ops = module.call ? visible(module, module.main.block.ops).filter((op) => op !== module.call) : [];
  if (!ops.length) return [];
  const node = group("checks", "shape checks", ops, key, (own) => grouped(scoped(ops, false), own, 0));
  const passed = new Map(module.call.raw[OPERANDS].map((value, i) => [value, i]));
  const taken = new Set(ops.flatMap((op) => op.uses).filter((value) => passed.has(value) && !module.main.values[value]?.op));
  return [{...node, type: "scope", aside: true, uses: [...taken].map((value) => passed.get(value))}];
}

// Operations with their scopes; one without stands where its neighbours do. What all have in common says nothing.
function scoped(ops, isRoot) {
  const found = ops.map((op) => ({op, scopes: op.text(SCOPE) ? op.text(SCOPE).split("/") : []}));
  const named = found.filter(({scopes}) => scopes.length);
  const shared = isRoot || !named.length ? 0 : named.reduce((most, {scopes}) => common(most, scopes), named[0].scopes).length;
  let before = [];
  const after = [];
  for (let i = found.length - 1, next = []; i >= 0; i--) {
    after[i] = next;
    if (found[i].scopes.length) next = found[i].scopes;
  }
  found.forEach((one, i) => {
    if (one.scopes.length) before = one.scopes;
    else one.scopes = common(before, after[i]);
  });
  return found.map(({op, scopes}) => ({op, scopes: scopes.slice(shared)}));
}

function common(a, b) {
  let i = 0;
  while (i < a.length && i < b.length && a[i] === b[i]) i++;
  return a.slice(0, i);
}

// Nodes for operations in a row: those of one scope make one node, and so do many without.
function grouped(items, key, depth) {
  const nodes = [];
  for (let i = 0; i < items.length;) {
    const name = items[i].scopes[depth];
    if (name === undefined) {
      nodes.push(nodeOfOperation(items[i++].op, key));
      continue;
    }
    const run = [];
    while (i < items.length && items[i].scopes[depth] === name) run.push(items[i++]);
    nodes.push(run.length === 1 && depth > 0 ? nodeOfOperation(run[0].op, key) : nodeOfScope(run, key, depth));
  }
  return nodes.length > MOST_NODES ? chunked(nodes, key) : nodes;
}

function chunked(nodes, key) {
  const size = Math.max(GROUP, Math.ceil(nodes.length / MOST_NODES)), made = [];
  for (let i = 0; i < nodes.length; i += size) {
    const part = nodes.slice(i, i + size);
    made.push(group("part", `part ${made.length + 1}`, part.flatMap((node) => node.ops), key, () => part));
  }
  return made;
}

function nodeOfScope(run, key, depth) {
  const names = [run[0].scopes[depth]];
  let inside = depth + 1;
  while (run.every(({scopes}) => scopes[inside] !== undefined && scopes[inside] === run[0].scopes[inside])) {
    names.push(run[0].scopes[inside++]);
  }
  return group("scope", names.join("/"), run.map(({op}) => op), key, (own) => grouped(run, own, inside));
}

function group(type, title, ops, key, nodes) {
  const own = `${key}/${type}${ops[0].id}-${ops[ops.length - 1].id}`;
  return {
    type, title, ops, key: own, sub: summary(ops), mark: marked(ops),
    level: () => { const made = nodes(own); return {nodes: made, edges: edges(made)}; },
  };
}

function nodeOfOperation(op, key) {
  const own = `${key}/${op.id}`, calls = op.called;
  const node = {type: calls ? "call" : "op", op, ops: [op], key: own, mark: marked([op])};
  node.title = calls ? calls.name : short(op.kind);
  node.sub = calls ? summary(calls.ops) : said(op);
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
      sub: summary(block.ops), mark: marked(block.ops),
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
    for (const by of places) {
      const alike = `${kind} ${by.join()}`;
      const one = together.get(alike) ?? together.set(alike, {by, kind, values: [], names: []}).get(alike);
      one.values.push(value);
      one.names.push(name);
    }
  }
  return [...together.values()].map(({by, kind, values, names}) => ({
    type: "input", ops: [], values, names, weight: 0.001, key: `${key}/in${values[0]}-${by[0]}`, mark: 0,
    users: by.map((i) => nodes[i]),
    title: names.length === 1 ? names[0] : counted(kind, names.length, module.takes[kind]),
    sub: names.length === 1 ? module.texts[block.of.values[values[0]].type] : `${WEIGHT.exec(names[0])?.[1] ?? names[0]} …`,
  }));
}

// How many arguments of a kind, and of how many the function has.
function counted(kind, count, all = count) { return `${count < all ? `${count} of ${all}` : count} ${kind || "argument"}s`; }

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
    title: count === 1 ? "result" : `${count} results`,
    sub: count === 1 ? typeOf(block.of, block.returned[0]) : "",
  };
}

function typeOf(func, value) { return value < 0 ? "" : func.module.texts[func.values[value].type]; }

function usesOf(node) { return node.uses ?? node.ops.flatMap((op) => op.uses); }

// One edge for all values of a function that go from a node to another.
function edges(nodes, func = nodes.flatMap((node) => node.ops)[0]?.of) {
  const from = new Map(), made = new Map();
  const add = (source, to, value) => {
    const name = `${source}-${to}`;
    if (!made.has(name)) made.set(name, {from: source, to, types: []});
    made.get(name).types.push(func ? typeOf(func, value) : "");
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

function short(kind) { return kind.replace(/^func\./, ""); }

// How many operations of which kinds, most of them first.
function summary(ops) {
  const counts = new Map();
  for (const op of ops) if (!op.hidden) counts.set(short(op.kind), (counts.get(short(op.kind)) ?? 0) + 1);
  const kinds = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 2).map(([kind, count]) => (count > 1 ? `${count} ${kind}` : kind));
  return `${ops.length.toLocaleString("en")} ops: ${kinds.join(", ")}${counts.size > 2 ? ", …" : ""}`;
}

// What there is to say of an operation below its kind.
function said(op) {
  const more = op.text(MORE);
  if (op.kind === "custom_call" || op.kind === "composite") return more;
  if (op.kind === "constant") return more || op.types[0];
  const numbers = op.raw[OPERANDS].map((i) => (i >= 0 ? op.of.values[i].op : undefined))
    .filter((from) => from?.hidden).map(numberOf).filter(Boolean);
  if (op.kind === "compare") return (/comparison_direction = (\w+)/.exec(more)?.[1] ?? "") + (numbers.length ? ` ${numbers.join(", ")}` : "");
  if (numbers.length && !op.blocks.length) return numbers.join(", ");
  const body = op.blocks.length === 1 && op.blocks[0].ops.length === 1 ? short(op.blocks[0].ops[0].kind) : "";
  return body || (op.blocks.length ? `${op.last - op.id} ops inside` : "");
}

function numberOf(op) {
  if (op.kind === "constant") return op.text(MORE);
  const from = op.of.values[op.raw[OPERANDS][0]]?.op;
  return from ? numberOf(from) : "";
}
