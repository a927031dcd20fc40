"use strict";

// A layered drawing of a small graph: nodes in rows, edges from upper rows to lower ones.

// Space between rows and between nodes in a row; rows that an edge may cross with bends, and bends of one drawing; the space
// below a row that its labels need. There edges go straight down, so that none of them crosses a label.
const ROW_GAP = 46, NODE_GAP = 22, MOST_CROSSED = 60, MOST_BENDS = 2000, LABELS = 16;

// Sets `x` and `y` of each node (upper left corner) and `points` of each edge; returns the size of the drawing.
// Nodes have `w` and `h`, a `weight`: how much they pull at their neighbours, and the room that they need `beside` the edge
// that leaves them. Those at the `top` are above all others. Edges go from `from` to `to`, indices of nodes, of which the first
// is the smaller one.
function layered(nodes, edges) {
  const ranks = rankOf(nodes, edges);
  const cells = nodes.map((node, i) => ({
    left: node.w / 2, right: Math.max(node.w / 2, node.beside ?? 0), h: node.h, rank: ranks[i], up: [], down: [], x: 0, weight: node.weight ?? 1,
  }));
  const chains = edges.map((edge) => chain(edge, cells, ranks));
  const rows = [];
  cells.forEach((cell) => (rows[cell.rank] ??= []).push(cell));
  rows.forEach((row) => row.forEach((cell, i) => { cell.at = i; }));
  for (let sweep = 0; sweep < 8; sweep++) {
    order(sweep % 2 ? rows.slice().reverse() : rows, sweep % 2 ? "down" : "up");
  }
  rows.forEach((row) => spread(row, (cell) => cell.x));
  for (let sweep = 0; sweep < 10; sweep++) {
    const side = sweep % 2 ? "down" : "up";
    (sweep % 2 ? rows.slice().reverse() : rows).forEach((row) => spread(row, (cell) => mean(cell, side)));
  }
  return place(nodes, edges, cells, rows, chains);
}

// The longest way to each node; what nothing leads to stands right above what it leads to.
function rankOf(nodes, edges) {
  const first = nodes.some((node) => node.top) ? 1 : 0;
  const ranks = nodes.map((node) => (node.top ? 0 : first)), fed = nodes.map(() => false), next = nodes.map(() => Infinity);
  const sorted = edges.slice().sort((a, b) => a.from - b.from);
  for (const {from, to} of sorted) {
    ranks[to] = Math.max(ranks[to], ranks[from] + 1);
    fed[to] = true;
  }
  for (const {from, to} of sorted) next[from] = Math.min(next[from], ranks[to]);
  return ranks.map((rank, i) => (!fed[i] && !nodes[i].top && next[i] < Infinity ? Math.max(first, next[i] - 1) : rank));
}

// The cells along an edge: both ends, and a bend in each row between.
function chain({from, to}, cells, ranks) {
  const along = [cells[from]];
  const crossed = ranks[to] - ranks[from] - 1;
  if (crossed <= MOST_CROSSED && cells.length + crossed < MOST_BENDS) {
    for (let rank = ranks[from] + 1; rank < ranks[to]; rank++) {
      cells.push({left: 4, right: 4, h: 0, rank, up: [], down: [], x: 0, weight: 0.05, bend: true});
      along.push(cells[cells.length - 1]);
    }
  }
  along.push(cells[to]);
  for (let i = 1; i < along.length; i++) {
    along[i - 1].down.push(along[i]);
    along[i].up.push(along[i - 1]);
  }
  return along;
}

// Sorts each row by where its neighbours stand in the row before.
function order(rows, side) {
  for (const row of rows) {
    const wanted = new Map(row.map((cell) => {
      const around = cell[side];
      return [cell, around.length ? around.reduce((sum, other) => sum + other.at, 0) / around.length : cell.at];
    }));
    row.sort((a, b) => wanted.get(a) - wanted.get(b) || a.at - b.at);
    row.forEach((cell, i) => { cell.at = i; });
  }
}

function mean(cell, side) {
  const around = cell[side];
  const weight = around.reduce((sum, other) => sum + other.weight, 0);
  return weight ? around.reduce((sum, other) => sum + other.weight * other.x, 0) / weight : cell.x;
}

// Moves the cells of a row as near to where they want to be as their widths allow: the least sum of weighted squares. What
// they want less the width before them has to ascend; neighbours that break this share their mean.
function spread(row, wanted) {
  const pools = [];
  let before = 0, last = null;
  for (const cell of row) {
    if (last) before += last.right + cell.left + (last.bend && cell.bend ? NODE_GAP / 2 : NODE_GAP);
    last = cell;
    cell.before = before;
    let pool = {cells: [cell], sum: (wanted(cell) - before) * cell.weight, count: cell.weight};
    while (pools.length && pools[pools.length - 1].sum / pools[pools.length - 1].count > pool.sum / pool.count) {
      const left = pools.pop();
      left.cells.push(...pool.cells);
      pool = {cells: left.cells, sum: left.sum + pool.sum, count: left.count + pool.count};
    }
    pools.push(pool);
  }
  for (const pool of pools) {
    for (const cell of pool.cells) cell.x = pool.sum / pool.count + cell.before;
  }
}

function place(nodes, edges, cells, rows, chains) {
  const left = Math.min(...cells.map((cell) => cell.x - cell.left));
  const tops = [];
  let y = 0;
  rows.forEach((row, rank) => {
    const height = Math.max(...row.map((cell) => cell.h));
    tops[rank] = y;
    row.forEach((cell) => {
      cell.y = cell.weight < 0.01 ? y + height - cell.h : y;  // arguments stand near to what uses them
      cell.row = height;
    });
    y += height + ROW_GAP;
  });
  nodes.forEach((node, i) => {
    node.x = cells[i].x - node.w / 2 - left;
    node.y = cells[i].y;
  });
  edges.forEach((edge, i) => {
    edge.points = chains[i].flatMap((cell, j, all) => {
      const x = cell.x - left, top = tops[cell.rank], below = top + cell.row + LABELS;
      if (j === 0) return [[x, cell.y + cell.h], [x, below]];
      if (j === all.length - 1) return [[x, cell.y]];
      return [[x, top], [x, below]];
    });
  });
  const right = Math.max(...cells.map((cell) => cell.x + cell.right));
  return {w: right - left, h: y - ROW_GAP};
}
