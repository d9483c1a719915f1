// Where each node of the tree is drawn. Pure.
//
// An icicle: a node is as wide as the tokens in it and below it together, its children stand under it from its left
// edge on, and what is left free below it is its own.

const HEATS = 5;

/**
 * Place the nodes of an answer of /ui/data/cache.
 *
 * `options`: `colour` "recency" or "hits"; `root` the serial of the node that fills the width, 0 for all;
 * `narrowest` the least width drawn, as a share of the whole. Returns `{boxes, numHidden, numRows, root}`: boxes
 * parents first, with `left` and `width` as shares from 0 to 1, `row` from 0, `heat` from 0 to 4; the namespaces are
 * boxes without a serial where there is more than one. `root` is 0 where the wanted node is gone.
 */
export function layout(snapshot, { colour, root = 0, narrowest = 0 }) {
  const forest = snapshot.namespaces.map(grow).filter((space) => space.numTokens > 0);
  const heatOf = heats(snapshot, colour);
  const wanted = root ? findSerial(forest, root) : undefined;
  const single = forest.length === 1;
  const tops = wanted ? [wanted] : single ? forest[0].children : forest;
  const total = tops.reduce((sum, top) => sum + top.total, 0);
  const placed = { boxes: [], numHidden: 0, numRows: 0, root: wanted ? root : 0 };
  let left = 0;
  for (const top of tops) {
    place(top, { left, row: 0, above: 0, total, narrowest, heatOf }, placed);
    left += total ? top.total / total : 0;
  }
  return placed;
}

/** One namespace as a nested tree; `total` is the tokens of a node and of all below it. */
function grow({ namespace, nodes }) {
  const grown = nodes.map((node) => ({ node, children: [], total: node.num_tokens }));
  const space = { node: null, name: nameOf(namespace), children: [], total: 0, numTokens: 0 };
  for (let at = nodes.length - 1; at >= 0; at -= 1) {
    const above = nodes[at].parent === null ? space : grown[nodes[at].parent];
    above.total += grown[at].total;
    above.children.unshift(grown[at]); // children come after their parents, so the last is whole first
  }
  space.numTokens = space.total;
  return space;
}

/** What sets a namespace apart from others, in words; the server tells only that there is a salt or a tenant. */
export function nameOf(namespace) {
  const words = [];
  if (namespace.adapter_id) words.push(`adapter ${namespace.adapter_id}`);
  if (namespace.extra_key) words.push(`extra key ${namespace.extra_key}`);
  if (namespace.tenant_salt) words.push("salted");
  if (namespace.tenant) words.push("of a tenant");
  return words.join(", ") || "shared by all";
}

function place(top, { left, row, above, total, narrowest, heatOf }, placed) {
  const width = total ? top.total / total : 0;
  if (width < narrowest) {
    placed.numHidden += 1 + numBelow(top);
    return;
  }
  placed.numRows = Math.max(placed.numRows, row + 1);
  const { node } = top;
  placed.boxes.push(
    node === null
      ? { serial: 0, above, left, width, row, name: top.name, numTokens: top.total, total: top.total }
      : {
          serial: node.serial, above, left, width, row, numTokens: node.num_tokens, total: top.total,
          numChildren: node.num_children, hits: node.hits, tick: node.tick, locks: node.lock_ref,
          heat: heatOf(node), text: node.text,
        },
  );
  let at = left;
  for (const child of top.children) {
    place(child, { left: at, row: row + 1, above: node?.serial ?? 0, total, narrowest, heatOf }, placed);
    at += total ? child.total / total : 0;
  }
}

const numBelow = (top) => top.children.reduce((sum, child) => sum + 1 + numBelow(child), 0);

function findSerial(tops, serial) {
  for (const top of tops) {
    if (top.node?.serial === serial) return top;
    const found = findSerial(top.children, serial);
    if (found) return found;
  }
  return undefined;
}

/**
 * Return what gives a node its heat, 0 (cold) to 4. Recency goes by order of use, for ticks count uses and no time;
 * hits by their logarithm, for few prefixes have most of them.
 */
export function heats(snapshot, colour) {
  const nodes = snapshot.namespaces.flatMap((space) => space.nodes);
  if (colour === "hits") {
    const most = Math.log1p(nodes.reduce((found, node) => Math.max(found, node.hits), 1));
    return (node) => Math.min(HEATS - 1, Math.ceil(((HEATS - 1) * Math.log1p(node.hits)) / most));
  }
  const ticks = [...new Set(nodes.map((node) => node.tick))].sort((a, b) => a - b);
  const ranks = new Map(ticks.map((tick, at) => [tick, at]));
  return (node) => (ticks.length < 2 ? HEATS - 1 : Math.round(((HEATS - 1) * ranks.get(node.tick)) / (ticks.length - 1)));
}
